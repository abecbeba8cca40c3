"""scripts/bundle on a small checkout with a toolchain of stand-ins: what goes
into the tar, that it is made alike each time, and that `dichroic check` takes
the whole one only. The real one is unpacked and run by test_deploy_bundle.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import minisign
import pytest
from fake_checkout import SCRIPTS, FakeCheckout, refused, succeeded
from running_server import BINARY

ROOT = SCRIPTS.parent
CARGO = """#!/bin/sh
[ "$1" = metadata ] && exec cat "$METADATA"
exit 1
"""
RUSTC = """#!/bin/sh
case "$1" in
    -vV) echo 'host: x86_64-unknown-linux-gnu' ;;
    --version) echo 'rustc 1.95.0 (0123456 2026-03-21)' ;;
    --print) echo "$SYSROOT" ;;
esac
"""
DEPLOY = [
    "compose.env.example",
    "compose.yaml",
    "grafana/dichroic.json",
    "helm/dichroic/.helmignore",
    "helm/dichroic/Chart.yaml",
    "helm/dichroic/templates/service.yaml",
    "nginx.conf",
    "prometheus.yml",
    "prometheus/alerts.yml",
    "systemd/dichroic.service",
]
LICENCE_OF_LINKED = "Anna and Ben permit this."


class BundleCheckout(FakeCheckout):
    """With models that are built, crates, and a server that is only a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "checkout", folder / "cache", folder / "index")
        self.folder, self.out = folder, folder / "out"
        for name in ("bundle", "bundling"):
            copied = shutil.copytree if (SCRIPTS / name).is_dir() else shutil.copy2
            copied(SCRIPTS / name, self.root / "scripts" / name)
        (self.root / "licences").mkdir()
        for name in ("LICENSE", "licences/MIT.txt"):
            shutil.copy2(ROOT / name, self.root / name)
        self.text("models/alpha/README.md", "The card of alpha.")
        self.text("models/alpha/NOTICE", "Keep this notice.")
        self.text("models/alpha/plots/images.png", "a plot")
        self.text("CHANGELOG.md", "What is new.")
        self.text("examples/curl.sh", "curl")
        self.text("examples/rust/src/main.rs", "fn main() {}")
        self.text("examples/rust/target/debug/example", "built")
        self.text("docs/operations.md", "How to run it.")
        for name in DEPLOY:
            self.text(f"deploy/{name}", name)
        for name in ("keys/keys.json", ".env", "tls/tls.key"):
            self.text(f"deploy/{name}", "secret")
        self.binary = self.text("target/release/dichroic", "server")
        self.crates()
        for name, program in (("cargo", CARGO), ("rustc", RUSTC)):
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(program)
            path.chmod(0o755)

    def text(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def crates(self) -> None:
        """linked and builder (with bare below it) are needed; tester is not."""
        vendored = "utoipa-swagger-ui-vendored"
        crates = {
            "dichroic": ("Apache-2.0", [("linked", None), ("builder", "build"), ("tester", "dev")]),
            "linked": ("MIT/Apache-2.0", [(vendored, None)]),
            "builder": ("MIT", [("bare", None)]),
            "bare": ("MIT", []),
            vendored: ("MIT OR Apache-2.0", []),
            "tester": ("GPL-3.0-only", []),
        }
        packages, nodes, lock = [], [], "version = 4\n"
        for name, (licence, needs) in crates.items():
            folder = self.root if name == "dichroic" else self.folder / "registry" / name
            folder.mkdir(parents=True, exist_ok=True)
            about = {"id": name, "name": name, "version": "0.1.0", "license": licence, "license_file": None}
            packages.append({**about, "authors": ["Carla"], "manifest_path": str(folder / "Cargo.toml")})
            deps = [{"pkg": need, "dep_kinds": [{"kind": kind}]} for need, kind in needs]
            nodes.append({"id": name, "deps": deps})
            if name != "dichroic":
                checksum = hashlib.sha256(name.encode()).hexdigest()
                source = f'source = "registry"\nchecksum = "{checksum}"\n'
                lock += f'\n[[package]]\nname = "{name}"\nversion = "0.1.0"\n{source}'
        (self.folder / "registry/linked/LICENSE-MIT").write_text(LICENCE_OF_LINKED)
        (self.folder / "registry/linked/src/tables").mkdir(parents=True)
        (self.folder / "registry/linked/src/tables/LICENSE-UNICODE").write_text("Unicode permits this.")
        (self.folder / "registry/builder/COPYING").write_text("Copy it.")
        (self.folder / f"registry/{vendored}/res").mkdir()
        with zipfile.ZipFile(self.folder / f"registry/{vendored}/res/v5.0.0.zip", "w") as archive:
            archive.writestr("swagger-ui-5.0.0/LICENSE", "Apache")
            archive.writestr("swagger-ui-5.0.0/NOTICE", "of Swagger")
            archive.writestr("swagger-ui-5.0.0/other/LICENSE", "not of Swagger")
        self.text("Cargo.lock", lock)
        metadata = {"packages": packages, "resolve": {"root": "dichroic", "nodes": nodes}}
        (self.folder / "metadata.json").write_text(json.dumps(metadata))

    def bundle(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "METADATA": str(self.folder / "metadata.json"),
            "SYSROOT": str(self.folder),
            "SOURCE_DATE_EPOCH": "1700000000",
            # As make hands them on when nobody set them.
            "SIGNING_KEY": "",
            "SIGNING_PASSWORD_FILE": "",
            **extra,
        }
        return self.run("bundle", str(self.binary), "--out", str(self.out), *words, **settings)

    def unpack(self) -> Path:
        (tar,) = self.out.glob("*.tar.gz")
        target = self.folder / "unpacked"
        shutil.rmtree(target, ignore_errors=True)
        with tarfile.open(tar) as archive:
            archive.extractall(target, filter="data")
        (top,) = target.iterdir()
        assert tar.name == f"{top.name}.tar.gz"
        return top


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BundleCheckout:
    checkout = BundleCheckout(tmp_path_factory.mktemp("bundle"))
    checkout.fill_cache()
    succeeded(checkout.run("setup"))
    return checkout


@pytest.fixture
def checkout(built: BundleCheckout) -> BundleCheckout:
    shutil.rmtree(built.out, ignore_errors=True)
    return built


@pytest.fixture
def keys(tmp_path: Path) -> minisign.KeyPair:
    pair = minisign.KeyPair.generate()
    (tmp_path / "minisign.pub").write_bytes(bytes(pair.public_key) + b"\n")
    (tmp_path / "minisign.key").write_bytes(bytes(pair.secret_key) + b"\n")
    return pair


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_it_holds_what_a_server_and_its_operator_need_and_nothing_else(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    files = tree(checkout.unpack())
    texts = {name for name in files if name.startswith("licences/")}
    assert set(files) - texts == {
        "CHANGELOG.md",
        "LICENSE",
        "SHA256SUMS",
        "THIRD_PARTY.md",
        "bin/dichroic",
        *(f"deploy/{name}" for name in DEPLOY),
        "docs/operations.md",
        "examples/curl.sh",
        "examples/rust/src/main.rs",
        "models/alpha/NOTICE",
        "models/alpha/README.md",
        "models/alpha/build/generator/manifest.json",
        "models/alpha/build/generator/model.onnx",
        "models/alpha/build/text/manifest.json",
        "models/alpha/build/text/model.onnx",
        "models/alpha/plots/images.png",
        "models/beta/build/text/manifest.json",
        "models/beta/build/text/model.onnx",
        "runtime/libonnxruntime.so",
        "sbom.cdx.json",
    }
    assert files["bin/dichroic"] == b"server"
    assert files["models/beta/build/text/model.onnx"] == (checkout.built("beta/text") / "model.onnx").read_bytes()


def test_every_licence_is_there_with_the_names_of_those_who_gave_it(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    files = tree(checkout.unpack())
    texts = {name.removeprefix("licences/"): text.decode() for name, text in files.items() if "licences/" in name}
    assert texts["crates/linked-0.1.0/LICENSE-MIT"] == LICENCE_OF_LINKED
    assert texts["crates/linked-0.1.0/LICENSE-UNICODE"] == "Unicode permits this."
    assert texts["crates/builder-0.1.0/COPYING"] == "Copy it."
    # It carries none: the standard text, with the names that it declares.
    assert "Copyright (c) Carla\n" in texts["crates/bare-0.1.0/MIT.txt"]
    assert texts["crates/swagger-ui-5.0.0/NOTICE"] == "of Swagger"
    assert "Copyright (c) the authors of tiny\n" in texts["models/tiny/MIT.txt"]
    assert {name.split("/")[0] for name in texts} == {"crates", "models", "onnxruntime"}
    assert not any("tester" in name or "dichroic" in name for name in texts)
    # Every folder that the list of notices names is there, and every folder is named.
    named = set(re.findall(r"`licences/(.+)`", files["THIRD_PARTY.md"].decode()))
    assert named == {name.rsplit("/", 1)[0] for name in texts}


def test_the_notices_alone_are_those_of_the_bundle(checkout: BundleCheckout) -> None:
    notices = checkout.root / "THIRD_PARTY.md"
    # `make notices` does not build the server.
    aside = checkout.binary.rename(checkout.folder / "aside")
    try:
        said = succeeded(checkout.bundle("--notices"))
    finally:
        aside.rename(checkout.binary)
    assert "THIRD_PARTY.md: written" in said and not checkout.out.exists(), "only the page was asked for"
    succeeded(checkout.bundle())
    assert notices.read_bytes() == (checkout.unpack() / "THIRD_PARTY.md").read_bytes()
    # Needed, and made by others; a crate that only tests need is neither.
    rows = re.findall(r"^\| (\S.*?) \| \S+ \| (.+?) \| `licences/", notices.read_text(), re.MULTILINE)
    assert ("linked", "MIT OR Apache-2.0") in rows and "tester" not in dict(rows) and "dichroic" not in dict(rows)


def test_an_image_gets_what_a_bundle_says_of_others(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    files = tree(checkout.unpack())
    said = {name: text for name, text in files.items() if name.startswith(("licences/", "THIRD_PARTY", "sbom"))}
    shutil.rmtree(checkout.out)
    about = checkout.folder / "about"
    for words, models in ([], True), (["--without-models"], False):
        succeeded(checkout.bundle("--about", str(about), *words))
        written = tree(about)
        shutil.rmtree(about)
        if models:
            assert written == said
        else:
            assert set(written) == {name for name in said if not name.startswith("licences/models/")}
            bill = json.loads(written["sbom.cdx.json"])
            kinds = {part["type"] for part in bill["components"]}
            assert kinds == {"library"} and "alpha" not in written["THIRD_PARTY.md"].decode()
    assert not checkout.out.exists(), "no archive was asked for"
    done = checkout.bundle("--without-models")
    assert done.returncode == 2 and "--without-models goes with --about alone" in done.stderr


def test_a_licence_that_nobody_has_the_text_of_stops_it(checkout: BundleCheckout) -> None:
    told = json.loads((checkout.folder / "metadata.json").read_text())
    for package in told["packages"]:
        if package["name"] == "bare":
            package["license"] = "ISC"
    other = checkout.folder / "other.json"
    other.write_text(json.dumps(told))
    said = refused(checkout.bundle(METADATA=str(other)))
    assert "bare, under ISC, carries no licence text: put it into licences/bare" in said
    assert not list(checkout.out.glob("*"))

    checkout.text("licences/bare/LICENSE", "Carla permits this.")
    try:
        succeeded(checkout.bundle(METADATA=str(other)))
    finally:
        shutil.rmtree(checkout.root / "licences/bare")
    assert (checkout.unpack() / "licences/crates/bare-0.1.0/LICENSE").read_text() == "Carla permits this."


def test_the_bill_of_materials_names_each_part_with_its_hash_and_its_needs(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    bill = json.loads((checkout.unpack() / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    parts: dict[str, Any] = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"]), "a reference is used twice"
    linked = parts["pkg:cargo/linked@0.1.0"]
    assert linked["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert linked["hashes"][0]["content"] == hashlib.sha256(b"linked").hexdigest()
    assert not any("tester" in ref for ref in parts)
    (text,) = [part for ref, part in parts.items() if ref.startswith("alpha/text@")]
    assert text["type"] == "machine-learning-model"
    # Two identifiers share this build.
    assert [item["value"] for item in text["properties"]] == ["alpha/text", "beta/text"]
    assert text["components"][0]["hashes"][0]["content"] == hashlib.sha256(
        (checkout.built("beta/text") / "model.onnx").read_bytes()
    ).hexdigest()
    (weights,) = text["pedigree"]["ancestors"]
    assert (weights["name"], weights["properties"][0]["value"]) == ("tiny", "pkg:pypi/tiny@1.0")
    needs = {link["ref"]: link["dependsOn"] for link in bill["dependencies"]}
    assert set(needs) == {*parts, bill["metadata"]["component"]["bom-ref"]}
    assert needs["pkg:cargo/builder@0.1.0"] == ["pkg:cargo/bare@0.1.0"]
    assert "pkg:npm/swagger-ui@5.0.0" in needs["pkg:cargo/utoipa-swagger-ui-vendored@0.1.0"]
    direct = needs["pkg:cargo/dichroic@0.1.0"]
    assert "pkg:cargo/bare@0.1.0" not in direct and "pkg:pypi/engine@1.0" in direct


def test_the_same_parts_make_the_same_bytes(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    (tar,) = checkout.out.glob("*.tar.gz")
    first = tar.read_bytes()
    (checkout.binary).touch()
    shutil.rmtree(checkout.out)
    succeeded(checkout.bundle())
    assert tar.read_bytes() == first
    with tarfile.open(tar) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "", "", 1_700_000_000)
    }
    programs = {member.name.split("/", 1)[1] for member in members if member.isfile() and member.mode == 0o755}
    assert programs == {"bin/dichroic", "examples/curl.sh"}
    assert {member.mode for member in members if member.isfile()} == {0o644, 0o755}
    # What two identifiers share is stored once.
    assert [member.name.split("/", 1)[1] for member in members if member.islnk()] == [
        "models/beta/build/text/manifest.json",
        "models/beta/build/text/model.onnx",
    ]
    listed = tar.with_name(tar.name + ".sha256").read_text()
    assert listed == f"{hashlib.sha256(first).hexdigest()}  {tar.name}\n"


def test_fewer_models_make_a_smaller_bundle_of_another_name(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle(MODELS="beta"))
    top = checkout.unpack()
    assert top.name.endswith("-beta")
    assert [path.name for path in (top / "models").iterdir()] == ["beta"]
    assert not (top / "licences/models/toy.big").exists()


def test_what_is_not_built_is_named(checkout: BundleCheckout) -> None:
    aside = checkout.built("beta/text").rename(checkout.folder / "aside")
    try:
        assert "beta/text is not built here" in refused(checkout.bundle())
    finally:
        aside.rename(checkout.built("beta/text"))


def test_a_full_disk_is_answered_with_another_folder_for_the_tar(checkout: BundleCheckout) -> None:
    module = checkout.root / "scripts/bundling/archive.py"
    before = module.read_text()
    # As a write that is handed on when the file is closed, it names no file.
    module.write_text(before + "\n\ndef write(*_):\n    raise OSError(28, 'No space left on device')\n")
    try:
        said = refused(checkout.bundle())
    finally:
        module.write_text(before)
    assert f"The disk that holds {checkout.out} is full" in said and "scripts/bundle --out DIR" in said
    assert "DICHROIC_CACHE" not in said


# --- signatures ----------------------------------------------------------------


def test_the_list_and_the_tar_are_signed(checkout: BundleCheckout, keys: minisign.KeyPair, tmp_path: Path) -> None:
    succeeded(checkout.bundle(SIGNING_KEY=str(tmp_path / "minisign.key")))
    (tar,) = checkout.out.glob("*.tar.gz")
    signature = minisign.Signature.from_file(tar.with_name(tar.name + ".minisig"))
    assert signature.is_prehashed() and "timestamp:1700000000" in signature.trusted_comment
    keys.public_key.verify_file(tar, signature)
    sums = checkout.unpack() / "SHA256SUMS"
    keys.public_key.verify_file(sums, minisign.Signature.from_file(f"{sums}.minisig"))
    # Unsigned again, no signature of before may stay beside the tar.
    succeeded(checkout.bundle())
    assert not list(checkout.out.glob("*.minisig"))


def test_a_key_with_a_password(checkout: BundleCheckout, keys: minisign.KeyPair, tmp_path: Path) -> None:
    # The least that the format allows: the test shall not wait for it.
    keys.secret_key.encrypt("good words", opslimit=32768, memlimit=1 << 24)
    key, password = tmp_path / "locked.key", tmp_path / "password"
    key.write_bytes(bytes(keys.secret_key) + b"\n")
    given = {"SIGNING_KEY": str(key), "SIGNING_PASSWORD_FILE": str(password)}
    assert "has a password" in refused(checkout.bundle(SIGNING_KEY=str(key)))
    password.write_text("bad words\n")
    assert "is not that of the key" in refused(checkout.bundle(**given))
    password.write_text("good words\n")
    succeeded(checkout.bundle(**given))
    sums = checkout.unpack() / "SHA256SUMS"
    keys.public_key.verify_file(sums, minisign.Signature.from_file(f"{sums}.minisig"))


def test_a_file_that_is_no_key_is_refused(checkout: BundleCheckout, tmp_path: Path) -> None:
    (tmp_path / "no.key").write_text("no key\n")
    assert "is no minisign secret key" in refused(checkout.bundle(SIGNING_KEY=str(tmp_path / "no.key")))
    assert "cannot be read" in refused(checkout.bundle(SIGNING_KEY=str(tmp_path / "absent.key")))


# --- dichroic check ---------------------------------------------------------------


def check(top: Path, *words: str) -> tuple[int, str]:
    command = [str(BINARY), "check", "--bundle", str(top), *words]
    done = subprocess.run(command, cwd=top.parent, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_the_server_verifies_the_whole_bundle_only(
    checkout: BundleCheckout, keys: minisign.KeyPair, tmp_path: Path
) -> None:
    assert BINARY.is_file(), f"{BINARY} is missing: run `cargo build` (make test does)"
    public, other = ["--public-key", str(tmp_path / "minisign.pub")], tmp_path / "other.pub"
    other.write_bytes(bytes(minisign.KeyPair.generate().public_key) + b"\n")
    succeeded(checkout.bundle(SIGNING_KEY=str(tmp_path / "minisign.key")))

    code, said = check(checkout.unpack(), *public)
    assert code == 0 and "timestamp:1700000000" in said, said
    code, said = check(checkout.unpack())
    assert code == 0 and "name a key with --public-key" in said, said
    code, said = check(checkout.unpack(), "--public-key", str(other))
    assert code == 1 and "FAIL  signature" in said and "ok    files" in said, said

    for path, change, word in [
        ("bin/dichroic", lambda file: file.write_text("Server"), "is not the file that was packed"),
        ("licences/onnxruntime/MIT.txt", Path.unlink, "is missing"),
        ("models/alpha/extra", lambda file: file.write_text(""), "does not belong to the bundle"),
    ]:
        top = checkout.unpack()
        change(top / path)
        code, said = check(top, *public)
        assert code == 1 and "ok    signature" in said and f"{path} {word}" in said, said

    # Whoever changes a file and the list cannot sign the list.
    top = checkout.unpack()
    (top / "bin/dichroic").write_text("Server")
    sums = (top / "SHA256SUMS").read_text()
    old, new = (hashlib.sha256(text).hexdigest() for text in (b"server", b"Server"))
    (top / "SHA256SUMS").write_text(sums.replace(old, new))
    code, said = check(top, *public)
    assert code == 1 and "FAIL  signature" in said, said

    top = checkout.unpack()
    (top / "SHA256SUMS.minisig").unlink()
    code, said = check(top, *public)
    assert code == 1 and "ask whoever made it for a signed one" in said, said


def test_the_usual_program_reads_the_list(checkout: BundleCheckout) -> None:
    succeeded(checkout.bundle())
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=checkout.unpack(), check=False)
    assert done.returncode == 0
