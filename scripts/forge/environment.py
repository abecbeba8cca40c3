"""The private Python environment `.venv` and the runtime library: what the
build and the server need besides models.

The environment is made from `requirements.lock`, wheels only, every hash
checked. Its wheels stay in the cache, so that a second clone needs no network.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import SetupError, from_client
from .fetch import Sources, fetch
from .manifest import MANIFEST, link, listed, read_intact, read_json, replacing, write_json
from .places import Places, remove
from .progress import Progress

# Measured: wheels kept in the cache, and the environment made of them.
WHEELS_BYTES = 133_000_000
VENV_BYTES = 570_000_000

# What pip says of kept wheels that are damaged or gone.
_DAMAGED = re.compile(r"DO NOT MATCH THE HASHES|BadZipFile|is invalid|No matching distribution")

DEVICES = ("cpu", "cuda")

_REMEDIES = {
    "cargo": "install Rust with rustup",
    "rustc": "install Rust with rustup",
    "cc": "install a C compiler (Debian and Ubuntu: apt install build-essential)",
    "make": "install make",
    "npm": "install Node.js with npm",
    "node": "install Node.js 20 or newer",
}


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option that chooses between the runtime and models for the CPU and those for GPUs."""
    default = os.environ.get("DEVICE") or "cpu"
    if default not in DEVICES:
        raise SystemExit(f"DEVICE is {default}: set it to {' or '.join(DEVICES)}, or to nothing.")
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=default,
        help="cuda: ONNX Runtime with CUDA, and models in half precision beside the others (default: $DEVICE, else cpu)",
    )


def require(places: Places, tools: list[str]) -> None:
    """Refuses to begin without the named programs, or with a Rust that cannot build this checkout."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise SetupError(f"{tool} is not installed: {_REMEDIES.get(tool, 'install it')}, then run again.")
    if "cargo" in tools:
        _require_rust(places)


def _require_rust(places: Places) -> None:
    """rustup brings what rust-toolchain.toml names; a Rust without it, as distributions have, must be new enough."""
    cargo, rustup = shutil.which("cargo"), shutil.which("rustup")
    # rustup may also lie behind a distribution's cargo on the PATH.
    if cargo and rustup and Path(cargo).parent == Path(rustup).parent:
        return
    require(places, ["rustc"])
    least = re.search(r'^rust-version = "(.+)"', (places.root / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)
    for tool in ("cargo", "rustc"):
        said = re.search(rf"^{tool} (\d[\d.]*)", _run([tool, "--version"], places.root).stdout, re.MULTILINE)
        if least and (said is None or _numbers(said[1]) < _numbers(least[1])):
            found = said[1] if said else "one that does not tell its version"
            raise SetupError(
                f"Rust {least[1]} is needed and {shutil.which(tool)} is {found}: install Rust with rustup, and see that"
                " its folder comes first on the PATH, then run again."
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number]


def check_machine() -> None:
    """Refuses machines that no pinned runtime exists for."""
    if sys.platform != "linux":
        raise SetupError("Set-up supports Linux only: run it on a Linux machine (x86_64 or aarch64).")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"Python's venv module is missing from {sys.executable}: install it (Debian and Ubuntu:"
            " apt install python3-venv), or name another Python with make PYTHON=..., then run again."
        )
    if not _gnu_libc():
        raise SetupError("ONNX Runtime needs the GNU C library: run set-up on a glibc-based Linux.")


def _gnu_libc() -> bool:
    """Asked of the library itself: before Python 3.14 platform.libc_ver() finds no name for musl."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):
        return False


def _state(places: Places) -> dict[str, str]:
    lock = (places.scripts / "requirements.lock").read_bytes()
    return {
        "lock": hashlib.sha256(lock).hexdigest(),
        "python": f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}",
    }


def _stamp(places: Places) -> Path:
    return places.venv / "dichroic.json"


def _wheels(places: Places) -> Path:
    state = _state(places)
    return places.cache / "wheels" / f"{state['lock'][:16]}-{state['python']}"


def environment_ready(places: Places) -> bool:
    """Whether `.venv` was finished from this very lock by this Python version."""
    return read_json(_stamp(places)) == _state(places) and places.venv_python.exists()


def environment_space(places: Places) -> tuple[int, int]:
    """Bytes that the environment still takes in the cache and in the checkout."""
    if environment_ready(places):
        return 0, 0
    return (0 if _wheels(places).is_dir() else WHEELS_BYTES), VENV_BYTES


def make_environment(places: Places, progress: Progress) -> None:
    """Makes `.venv` unless it is ready. The stamp is written last, so a `.venv`
    that was interrupted is made anew.
    """
    if environment_ready(places):
        return
    wheels = _wheels(places)
    progress.say("making the Python environment .venv")
    remove(places.venv)
    made = _run([sys.executable, "-m", "venv", str(places.venv)])
    if made.returncode != 0:
        remove(places.venv)
        if "ensurepip is not available" in made.stdout:
            raise SetupError(
                f"{sys.executable} -m venv failed: install Python's venv module (Debian and Ubuntu: apt install"
                " python3-venv), then run again."
            )
        raise from_client("venv", "the Python environment .venv", made.stdout)
    locked = ["--require-hashes", "--only-binary=:all:", "--no-deps", "-r", str(places.scripts / "requirements.lock")]
    pip = [str(places.venv_python), "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    if not wheels.is_dir():
        progress.say("fetching its packages")
        partial = wheels.with_name(wheels.name + ".partial")
        # Wheels of an interrupted run are kept: pip takes those whose hash is right.
        partial.mkdir(parents=True, exist_ok=True)
        download = [*pip, "download", "--progress-bar", "off", "--retries", "3", "--dest", str(partial), *locked]
        _pip(download)
        partial.rename(wheels)
    install = [*pip, "install", "--progress-bar", "off", "--no-index", "--find-links", str(wheels), *locked]
    _pip(install, wheels)
    write_json(_stamp(places), _state(places))


def _pip(command: list[str], wheels: Path | None = None) -> None:
    """Runs pip. Kept `wheels` that it finds damaged are removed, so that the next run fetches them again."""
    done = _run(command)
    if done.returncode != 0:
        if wheels is not None and _DAMAGED.search(done.stdout):
            remove(wheels)
        raise from_client("pip", "the Python packages of scripts/requirements.lock", done.stdout)


def _run(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(os.environ, LC_ALL="C.UTF-8"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


# --- the runtime library -----------------------------------------------------


def runtime_source(sources: Sources, device: str = "cpu") -> str:
    """The pinned runtime for this machine's processor, with or without CUDA."""
    machine = platform.machine()
    pinned = sources.runtime_cuda if device == "cuda" else sources.runtime
    if machine not in pinned:
        known = " and ".join(sorted(pinned))
        raise SetupError(f"No ONNX Runtime is pinned for {machine} processors: run set-up on {known}.")
    return pinned[machine]


def runtime_ready(places: Places, sources: Sources, device: str = "cpu") -> bool:
    """Whether `runtime/` holds the pinned library, whole."""
    found = read_intact(places.runtime)
    source = sources.get(runtime_source(sources, device))
    pinned = {file.path: file.sha256 for file in source.files}
    return found is not None and {file["path"]: file["sha256"] for file in found["files"]} == pinned


def install_runtime(places: Places, sources: Sources, progress: Progress, device: str = "cpu") -> None:
    """Puts the library, its licence texts and their manifest into `runtime/`."""
    if runtime_ready(places, sources, device):
        return
    source = sources.get(runtime_source(sources, device))
    fetch(sources, [source], progress)
    found = sources.locate(source.name)
    with replacing(places.runtime) as folder:
        for file in source.files:
            link(found[file.role], folder / file.path)
        about = {"format": 1, "kind": "runtime", "name": "ONNX Runtime", "version": source.version}
        write_json(folder / MANIFEST, {**about, "licence": source.licence, "files": listed(folder)})
