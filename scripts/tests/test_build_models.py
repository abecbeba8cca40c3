"""The model build: when it runs, what it leaves, and what it shares."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_checkout import FakeCheckout, refused, sha256, succeeded


@pytest.fixture
def clone(tmp_path: Path) -> FakeCheckout:
    """A checkout that is set up."""
    made = FakeCheckout(tmp_path / "clone", tmp_path / "cache", tmp_path / "index")
    made.fill_cache()
    succeeded(made.run("setup"))
    assert made.builds() == 2
    return made


def test_the_manifest_says_what_was_built(clone: FakeCheckout) -> None:
    manifest = clone.read("models/alpha/build/text/manifest.json")
    fingerprint = manifest.pop("fingerprint")
    data = b"TINY WEIGHTS + delta"

    assert len(fingerprint) == 64
    assert manifest == {
        "format": 1,
        "kind": "text_classifier",
        "name": "Toy of tiny",
        "source": "tiny",
        "licence": "MIT",
        "files": [{"path": "model.onnx", "bytes": len(data), "sha256": sha256(data)}],
        "text_classifier": {"layers": 2},
    }


def test_a_component_that_is_the_same_as_another_costs_no_disk(clone: FakeCheckout) -> None:
    assert (clone.built("beta/text") / "model.onnx").samefile(clone.built("alpha/text") / "model.onnx")


def test_what_is_unchanged_is_not_built(clone: FakeCheckout) -> None:
    assert "up to date" in succeeded(clone.run("build_models"))
    assert clone.builds() == 2


@pytest.mark.parametrize("what", ["recipe", "delta", "code", "imported code"])
def test_a_change_rebuilds_and_drops_the_old_build(clone: FakeCheckout, what: str) -> None:
    if what == "recipe":
        clone.change("models/alpha/model.json", "components", "generator", "window", to=512)
    elif what == "delta":
        (clone.root / "models/alpha/delta.safetensors").write_bytes(b" + another")
    else:
        path = clone.root / "scripts/forge" / ("toy.py" if what == "code" else "shouting.py")
        path.write_text(path.read_text() + "\n# changed\n")

    succeeded(clone.run("build_models", "--models", "alpha,beta"))

    assert clone.builds() == (3 if what == "recipe" else 4)
    assert len(list((clone.cache / "built").iterdir())) == 2
    if what == "delta":
        for title in ("alpha/text", "beta/text"):
            assert (clone.built(title) / "model.onnx").read_bytes() == b"TINY WEIGHTS + another"


def test_a_build_that_another_checkout_uses_is_kept(clone: FakeCheckout) -> None:
    second = FakeCheckout(clone.root.with_name("second"), clone.cache, clone.index)
    succeeded(second.run("setup"))
    (clone.root / "models/alpha/delta.safetensors").write_bytes(b" + another")

    succeeded(clone.run("build_models"))

    assert len(list((clone.cache / "built").iterdir())) == 4
    assert (second.built("alpha/text") / "model.onnx").read_bytes() == b"TINY WEIGHTS + delta"


def test_a_read_only_cache_keeps_the_build_that_was_replaced(clone: FakeCheckout) -> None:
    # Another checkout brings the new one, and goes.
    second = FakeCheckout(clone.root.with_name("second"), clone.cache, clone.index)
    for each in (second, clone):
        (each.root / "models/alpha/delta.safetensors").write_bytes(b" + another")
    succeeded(second.run("setup"))
    folders = [path for path in [clone.cache, *clone.cache.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        if os.access(clone.cache, os.W_OK):
            pytest.skip("this user may write to any folder")
        succeeded(clone.run("build_models"))
    finally:
        for folder in folders:
            folder.chmod(0o755)

    assert len(list((clone.cache / "built").iterdir())) == 4
    assert (clone.built("alpha/text") / "model.onnx").read_bytes() == b"TINY WEIGHTS + another"


def test_a_damaged_build_is_replaced(clone: FakeCheckout) -> None:
    damaged = clone.built("alpha/text") / "model.onnx"
    damaged.unlink()
    damaged.write_bytes(b"TINY WEIGHTS + dElta")
    assert "alpha/text: from the cache" in succeeded(clone.run("build_models"))
    assert damaged.read_bytes() == b"TINY WEIGHTS + delta"

    # Through the hard link this damages the cached copy as well.
    damaged.chmod(0o644)
    damaged.write_bytes(b"TINY WEIGHTS + dElta")
    assert "alpha/text: built" in succeeded(clone.run("build_models"))
    assert damaged.read_bytes() == b"TINY WEIGHTS + delta"


def test_only_and_force_name_what_is_built(clone: FakeCheckout) -> None:
    out = succeeded(clone.run("build_models", "--only", "alpha/text", "--force"))

    assert out.count("built") == 1 and clone.builds() == 3
    said = refused(clone.run("build_models", "--only", "alpha/image"))
    assert "choose from alpha/generator, alpha/text, beta/text" in said


def test_a_recipe_that_fails_leaves_the_old_build(clone: FakeCheckout) -> None:
    module = clone.root / "scripts/forge/toy.py"
    module.write_text(
        'def build(source, recipe, model_dir, out):\n    raise ValueError("the delta has no heads; restore it")\n'
    )

    said = refused(clone.run("build_models", "--only", "alpha/text"))

    assert said == "build_models: alpha/text cannot be built: the delta has no heads; restore it"
    assert (clone.built("alpha/text") / "model.onnx").read_bytes() == b"TINY WEIGHTS + delta"
    assert clone.leftovers() == []


def test_a_missing_delta_and_a_missing_source_are_named(clone: FakeCheckout) -> None:
    sources = clone.cache / "sources/tiny"
    sources.rename(sources.with_name("gone"))
    said = refused(clone.run("build_models", "--only", "alpha/text", "--force"))
    assert "The source tiny is not in the cache: run scripts/setup --source tiny" in said
    assert "up to date" in succeeded(clone.run("build_models", "--only", "alpha/text")), "the kept build is not given up"

    (clone.root / "models/alpha/delta.safetensors").unlink()
    said = refused(clone.run("build_models", "--only", "alpha/text"))
    assert "names delta.safetensors, which is not in models/alpha" in said


def with_company(clone: FakeCheckout) -> None:
    """alpha and gamma, each of which judges beside or instead of the other."""
    clone.change("models/alpha/model.json", "components", "text", to={**clone.recipe("tiny"), "elsewhere": "gamma"})
    own = {**clone.recipe("tiny"), "name": "Toy of gamma", "licence": "Apache-2.0", "ensemble": ["alpha"]}
    clone.write("models/gamma/model.json", {"id": "gamma", "components": {"text": own}})
    (clone.root / "models/gamma/delta.safetensors").write_bytes(b" + another")


def test_company_is_built_without_its_own_and_listed_by_the_whole(clone: FakeCheckout) -> None:
    with_company(clone)
    succeeded(clone.run("build_models"))
    # The generator and each classifier once; beta's is alpha's.
    assert clone.builds() == 3
    alpha, gamma = clone.built("alpha/text"), clone.built("gamma/text")
    found = json.loads((alpha / "manifest.json").read_text())
    assert found["text_classifier"] == {"layers": 2, "elsewhere": "gamma"}
    assert found["licence"] == "MIT AND Apache-2.0"
    listed = {file["path"]: file["sha256"] for file in found["files"]}
    assert sorted(listed) == ["gamma/manifest.json", "gamma/model.onnx", "model.onnx"]
    for path, digest in listed.items():
        assert sha256((alpha / path).read_bytes()) == digest
    alone = json.loads((alpha / "gamma/manifest.json").read_text())
    assert alone["text_classifier"] == {"layers": 2}
    assert [file["path"] for file in alone["files"]] == ["model.onnx"]
    assert (alpha / "gamma/model.onnx").samefile(gamma / "model.onnx")
    assert json.loads((gamma / "manifest.json").read_text())["text_classifier"] == {"layers": 2, "ensemble": ["alpha"]}
    assert clone.built("beta/text").joinpath("gamma/model.onnx").samefile(gamma / "model.onnx")


def test_one_of_a_company_that_changes_renews_all_and_the_old_ones_go(clone: FakeCheckout) -> None:
    with_company(clone)
    succeeded(clone.run("build_models"))
    kept = {path.name for path in (clone.cache / "built").iterdir()}
    (clone.root / "models/gamma/delta.safetensors").write_bytes(b" + a third")
    succeeded(clone.run("build_models"))
    assert clone.builds() == 4
    for title in ("alpha/text/gamma", "beta/text/gamma", "gamma/text"):
        assert clone.built(title.removesuffix("/gamma")).joinpath(*title.split("/")[2:], "model.onnx").read_bytes() == (
            b"TINY WEIGHTS + a third"
        )
    left = {path.name for path in (clone.cache / "built").iterdir()}
    # The generator and alpha's network alone stay.
    assert len(left) == len(kept) and len(left & kept) == 2
    damaged = clone.built("alpha/text") / "gamma/model.onnx"
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    succeeded(clone.run("build_models"))
    assert clone.built("alpha/text").joinpath("gamma/model.onnx").read_bytes() == b"TINY WEIGHTS + a third"


def test_company_must_be_built_by_another(clone: FakeCheckout) -> None:
    with_company(clone)
    for other in ("alpha", "beta", "delta"):
        clone.change("models/alpha/model.json", "components", "text", "elsewhere", to=other)
        assert "has company that no other model builds" in refused(clone.run("build_models"))
