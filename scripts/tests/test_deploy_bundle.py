"""The bundle as somebody gets it who has no network: packed with one model,
signed, unpacked in an empty folder, verified, and run by a user without rights
on a read-only file system where only loopback exists. Run by `make test-deploy`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from loopback_only import PORT, TAKES_ROOT, USER, Plan, seen_apart
from rust_sources import ROOT, cargo_version

try:
    import tomllib
except ImportError:
    import tomli as tomllib

# Built without default features, as what `make bundle` packs.
BINARY = Path(os.environ.get("DICHROIC_TEST_BUNDLED", ROOT / "target/bundled/dichroic"))
PYTHON = ROOT / ".venv/bin/python"
CATEGORIES = ["sexual", "hate", "self_harm", "violence", "defamation"]
# The program that those have who get a bundle; scripts/deploy_tools brings it.
MINISIGN = Path(sys.executable).with_name("minisign")


def model() -> str:
    """The smallest identifier with all four operations that is set up here."""
    asked = [name for name in re.split(r"[,\s]+", os.environ.get("MODELS", "")) if name]
    for name in ("beta-3-haiku", "alpha-4o-mini"):
        if not asked or name in asked:
            return name
    pytest.skip(f"MODELS={os.environ['MODELS']} has no identifier with all four operations")


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    # pytest's own folders are closed to other users, and one of those shall run the server.
    folder = Path(tempfile.mkdtemp(prefix="dichroic-bundle-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bundle(work: Path) -> Path:
    """The tar, signed; its public key lies beside it as minisign.pub."""
    assert PYTHON.is_file(), "run `make setup` first (make test does)"
    assert BINARY.is_file(), f"{BINARY} is missing: make test-deploy builds it"
    keys = [str(work / "minisign.key"), str(work / "minisign.pub")]
    # -W: without a password.
    made = minisign("-G", "-W", "-s", keys[0], "-p", keys[1])
    assert made.returncode == 0, made.stderr
    command = [PYTHON, "scripts/bundle", str(BINARY), "--out", str(work), "--models", model(), "--level", "1"]
    environment = {**os.environ, "SIGNING_KEY": keys[0], "SIGNING_PASSWORD_FILE": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    (tar,) = work.glob("*.tar.gz")
    return tar


@pytest.fixture(scope="module")
def unpacked(bundle: Path) -> Path:
    folder = bundle.parent / "empty"
    folder.mkdir()
    folder.chmod(0o755)
    subprocess.run(["tar", "--extract", "--file", bundle, "--no-same-owner"], cwd=folder, check=True)
    (top,) = folder.iterdir()
    assert top.name.startswith(f"dichroic-{cargo_version()}-linux-")
    return top


def minisign(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MINISIGN, *words], capture_output=True, text=True, check=False, timeout=120)


def check(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [top / "bin/dichroic", "check", "--bundle", top, *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=300)


def test_the_server_verifies_the_bundle_that_it_came_in(bundle: Path, unpacked: Path) -> None:
    public = ["--public-key", str(bundle.parent / "minisign.pub")]
    done = check(unpacked, *public)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"^(\S+)\s+(\w+)", done.stdout, re.MULTILINE) == [
        ("ok", "list"),
        ("ok", "signature"),
        ("ok", "files"),
    ]
    graph = next(unpacked.glob("models/*/build/text/model.onnx"))
    whole = graph.read_bytes()
    try:
        graph.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        done = check(unpacked, *public)
    finally:
        graph.write_bytes(whole)
    assert done.returncode == 1 and f"{graph.relative_to(unpacked)} is not the file" in done.stdout


def test_the_server_of_a_bundle_is_no_client(unpacked: Path) -> None:
    command = [str(unpacked / "bin/dichroic"), "bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "unrecognized subcommand 'bench'" in done.stderr


def test_minisign_itself_takes_our_signatures_and_no_other_file(bundle: Path, unpacked: Path) -> None:
    key = ["-p", bundle.parent / "minisign.pub"]
    title = bundle.name.removesuffix(".tar.gz")
    for signed in (bundle, unpacked / "SHA256SUMS"):
        # -H: the hash was signed, as large files need it.
        done = minisign("-V", "-H", *key, "-m", signed)
        assert done.returncode == 0, done.stderr
        assert "Signature and comment signature verified" in done.stdout and f"Trusted comment: {title} " in done.stdout
        done = minisign("-V", *key, "-m", unpacked / "LICENSE", "-x", f"{signed}.minisig")
        assert done.returncode != 0 and "verification failed" in done.stderr


def test_what_the_pages_explain_is_that_of_the_checkout(unpacked: Path) -> None:
    explained = set(re.findall(r"\bdeploy/[\w./-]*\w", (unpacked / "docs/operations.md").read_text(encoding="utf-8")))
    # An image is built from a checkout; the rest is the operator's.
    explained -= {"deploy/Containerfile", "deploy/.env", "deploy/keys", "deploy/tls"}
    assert {"deploy/compose.yaml", "deploy/helm/dichroic", "deploy/systemd/dichroic.service"} <= explained
    for name in explained:
        assert contents(unpacked / name) == contents(ROOT / name) != {}, name
    # And what the composition mounts, beside the keys.
    mounts = set(re.findall(r"- (\./[\w./-]+):", (unpacked / "deploy/compose.yaml").read_text(encoding="utf-8"))) - {"./keys"}
    assert mounts and all((unpacked / "deploy" / mount).is_file() for mount in mounts), mounts


def contents(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def test_the_bill_of_materials_is_cyclonedx_and_has_every_crate(unpacked: Path) -> None:
    text = (unpacked / "sbom.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    bill = json.loads(text)
    purls = {part.get("purl", "") for part in bill["components"]}
    direct = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["dependencies"]
    assert len(direct) > 20

    def listed(name: str) -> bool:
        return any(purl.startswith(f"pkg:cargo/{name}@") for purl in purls)

    assert not [name for name in direct if not listed(name)]
    # Test tools are in no server.
    assert not listed("criterion")
    kinds = [part for part in bill["components"] if part["type"] == "machine-learning-model"]
    assert len(kinds) == len(list(unpacked.glob("models/*/build/*")))


def test_nothing_inside_is_without_its_licence(unpacked: Path) -> None:
    named = re.findall(r"`(licences/.+)`", (unpacked / "THIRD_PARTY.md").read_text(encoding="utf-8"))
    assert len(named) > 200
    for folder in named:
        texts = [path for path in (unpacked / folder).rglob("*") if path.is_file()]
        assert texts and all(path.stat().st_size > 0 for path in texts), folder
    assert "onnxruntime" in {path.name for path in (unpacked / "licences").iterdir()}
    assert (unpacked / "licences/onnxruntime/ThirdPartyNotices.txt").stat().st_size > 100_000


# --- without a network ---------------------------------------------------------------


def requests() -> list[dict[str, Any]]:
    image = base64.b64encode((ROOT / "tests/golden/images/landscape.png").read_bytes()).decode()
    text = "My sister Anna got the job in Leeds."
    return [
        {"path": "/v1/prisms/text", "body": {"text": text, "model": model()}},
        {"path": "/v1/sunshines/text", "body": {"text": text, "model": model()}},
        {"path": "/v1/guardians/text", "body": {"text": text, "model": model()}},
        {"path": "/v1/guardians/image", "body": {"image": image, "model": model()}},
    ]


@pytest.fixture(scope="module")
def alone(unpacked: Path) -> dict[str, Any]:
    """What was seen of the bundle, with the defaults of its server."""
    if os.geteuid() != 0:
        pytest.skip(TAKES_ROOT)
    listen = {"DICHROIC_LISTEN": f"127.0.0.1:{PORT}"}
    return seen_apart(Plan(["bin/dichroic", "serve"], str(unpacked), requests(), listen), timeout=560)


def test_all_four_operations_answer(alone: dict[str, Any]) -> None:
    assert [status for status, _ in alone["answers"]] == [200] * 4, alone["log"]
    expressions, reply, *moderated = [body for _, body in alone["answers"]]
    assert list(expressions) == ["positive", "negative"] and all(expressions.values())
    assert list(reply) == ["text"] and reply["text"]
    for body in moderated:
        assert list(body["category_scores"]) == CATEGORIES
    assert alone["exit_code"] == 0, alone["log"]


def test_the_server_has_no_rights_and_no_place_to_write(alone: dict[str, Any], unpacked: Path, bundle: Path) -> None:
    assert alone["user"] == [str(USER)] * 4
    assert int(alone["capabilities"], 16) == 0
    assert alone["writable"] == []
    # And it left nothing behind.
    assert check(unpacked, "--public-key", str(bundle.parent / "minisign.pub")).returncode == 0


def test_the_server_opens_no_connection(alone: dict[str, Any]) -> None:
    assert alone["interfaces"] == ["lo"] and alone["routes"] == []
    # The listening socket has no other end; its callers' is loopback.
    assert set(alone["peers"]) <= {"0.0.0.0", "127.0.0.1", "::"}
    assert "127.0.0.1" in alone["peers"], "no call was seen"
    # Every connection that this network counted was opened by the test itself, so none by the server, not even to
    # loopback; no name was asked for; and nobody tried to leave.
    assert alone["counted"] == {"connections": alone["connections_of_the_client"], "datagrams": 0, "no_way": 0}
    assert alone["counted_when_somebody_tries"]["no_way"] > 0, "this kernel does not count attempts"
