"""The peers in an environment of their own, `.venv-peers`: wheels of
requirements.lock, and llama.cpp built for this processor from the sources that
the pinned llama-cpp-python package holds.

The build takes a quarter of an hour on two cores, once: it stays in the cache,
under the version and the processor's features, and leaves nothing else behind.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from forge.manifest import read_json, write_json
from forge.places import Places, remove

from . import PeersError

HERE = Path(__file__).resolve().parent
LOCKS = (HERE / "requirements.lock", HERE / "llama_cpp.lock")
BUILD_SECONDS = 3600
# Everything that is not llama-server stays out; nothing is fetched.
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
]


class Peers:
    """Where the installed peers are."""

    def __init__(self, places: Places) -> None:
        self.root = places.root / ".venv-peers"
        self.python = self.root / "bin" / "python"
        self.libraries = places.cache / "peers" / f"llama.cpp-{_features()[:16]}"
        self.llama_server = self.libraries / "llama-server"
        self._stamp = self.root / "made-from.json"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a peer."""
        path = os.pathsep.join([str(self.root / "bin"), os.environ.get("PATH", "")])
        return dict(os.environ, PATH=path, LLAMA_CPP_LIB_PATH=str(self.libraries), TOKENIZERS_PARALLELISM="false")

    def ready(self) -> bool:
        return read_json(self._stamp) == _state() and self.python.exists() and self.llama_server.exists()

    def finish(self) -> None:
        write_json(self._stamp, _state())

    def versions(self) -> dict[str, str]:
        """Name and version of each peer, as they are pinned."""
        text = "".join(lock.read_text(encoding="utf-8") for lock in LOCKS)
        wanted = ("llama-cpp-python", "onnxruntime-genai", "onnxruntime", "fastapi", "uvicorn", "tokenizers")
        pins = {}
        for line in text.splitlines():
            name, _, rest = line.partition("==")
            if name in wanted and "< '3.11'" not in rest:
                pins[name] = rest.split(" ")[0]
        return {name: pins[name] for name in wanted}


def _features() -> str:
    """Hash of all that decides what is built: version, options, processor."""
    flags = next((line for line in _cpuinfo().splitlines() if line.lower().startswith(("flags", "features"))), "")
    parts = [LOCKS[1].read_text(encoding="utf-8"), *CMAKE, platform.machine(), " ".join(sorted(flags.split()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _state() -> dict[str, str]:
    locks = b"".join(lock.read_bytes() for lock in LOCKS)
    return {"locks": hashlib.sha256(locks).hexdigest(), "python": f"{sys.version_info[:2]}", "features": _features()}


def make(places: Places, say: Callable[[str], None]) -> Peers:
    """Installs what is missing. The stamp is written last, so what was interrupted is made anew."""
    peers = Peers(places)
    if peers.ready():
        return peers
    if sys.version_info < (3, 11):
        raise PeersError("onnxruntime-genai needs Python 3.11 or newer: name one with make PYTHON=python3.12")
    for tool in ("cc", "c++"):
        if shutil.which(tool) is None:
            raise PeersError(f"{tool} is missing, and llama.cpp is built here: install a C++ compiler")
    say("making the Python environment .venv-peers")
    remove(peers.root)
    _run([sys.executable, "-m", "venv", str(peers.root)], os.environ)
    pip = [str(peers.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "install", "--require-hashes", "--only-binary=:all:", "--no-deps", "-r", str(LOCKS[0])], os.environ)
    peers.libraries.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=peers.libraries.parent) as name:
        work = Path(name)
        say("fetching the sources of llama-cpp-python")
        source = ["--require-hashes", "--no-binary=:all:", "--no-deps", "--no-build-isolation"]
        _run([*pip, "download", *source, "--dest", str(work), "-r", str(LOCKS[1])], peers.environment)
        (archive,) = work.glob("*.tar.gz")
        if not peers.llama_server.exists():
            say("building llama.cpp for this processor; this takes a while, once")
            _build(peers, archive, work)
        # Its own build is off: it loads the libraries that are here already.
        without = dict(peers.environment, CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF")
        _run([*pip, "install", "--no-deps", "--no-build-isolation", "--no-cache-dir", str(archive)], without)
    peers.finish()
    return peers


def _build(peers: Peers, archive: Path, work: Path) -> None:
    with tarfile.open(archive) as members:
        # Python 3.11.0 to 3.11.3 have no filters; the archive's hash is pinned.
        members.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = work.glob("llama_cpp_python-*/vendor/llama.cpp")
    build = work / "build"
    cmake = str(peers.root / "bin" / "cmake")
    _run([cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *CMAKE], peers.environment)
    _run([cmake, "--build", str(build), "--target", "llama-server"], peers.environment)
    remove(peers.libraries)
    partial = work / "libraries"
    shutil.copytree(build / "bin", partial, symlinks=True)
    partial.rename(peers.libraries)


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeersError(f"{Path(command[0]).name} did not end within {BUILD_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        tail = "\n  ".join(done.stdout.decode(errors="replace").splitlines()[-15:])
        raise PeersError(f"{Path(command[0]).name} {command[1]} failed:\n  {tail}")
