"""deny.toml against the crates that the server is built of: its bans, its licences, where crates may come from. `cargo
deny` judges that too, and advisories besides; this test asks no network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Set
from typing import Any

import pytest
from rust_sources import ROOT, read

sys.path.insert(0, str(ROOT / "scripts"))
from bundling import crates  # noqa: E402
from forge.places import Places  # noqa: E402

try:
    import tomllib
except ImportError:
    import tomli as tomllib


def policy() -> dict[str, Any]:
    return tomllib.loads(read("deny.toml"))


def locked() -> list[dict[str, Any]]:
    """Every crate of the server and of its tests, on any machine."""
    return tomllib.loads(read("Cargo.lock"))["package"]


def satisfied(expression: str, allowed: Set[str]) -> bool:
    """Whether a choice that an SPDX expression leaves is allowed in all its parts."""
    words = re.findall(r"[()]|[^\s()]+", expression)

    def follows(word: str) -> bool:
        return words[:1] == [word] and bool(words.pop(0))

    def either() -> bool:
        met = both()
        while follows("OR"):
            met = both() or met
        return met

    def both() -> bool:
        met = one()
        while follows("AND"):
            met = one() and met
        return met

    def one() -> bool:
        if follows("("):
            met = either()
            assert follows(")"), expression
            return met
        word = words.pop(0)
        return (f"{word} WITH {words.pop(0)}" if follows("WITH") else word) in allowed

    met = either()
    assert not words, f"{expression} is no SPDX expression"
    return met


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND ISC", True),
        ("MIT AND GPL-3.0-only OR ISC", True),
        ("MIT AND (GPL-3.0-only OR LGPL-3.0-only)", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH LLVM-exception OR GPL-3.0-only", False),
        ("ISC WITH LLVM-exception", False),
    ],
)
def test_expressions_are_read_as_they_are_meant(expression: str, met: bool) -> None:
    assert satisfied(expression, {"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"}) == met


def test_every_crate_of_the_server_has_a_licence_that_may_ship() -> None:
    allowed = set(policy()["licenses"]["allow"])
    server, parts = crates.server(Places.here())
    linked = [part for part in parts if part.ref.startswith("pkg:cargo/")]
    assert len(linked) > 200 and server.licence in allowed
    assert not [(part.name, part.licence) for part in linked if not satisfied(part.licence, allowed)]


def test_no_banned_crate_is_locked() -> None:
    banned = {ban["crate"] for ban in policy()["bans"]["deny"]}
    names = {crate["name"] for crate in locked()}
    assert "reqwest" in banned and len(names) > 300
    assert not banned & names


def test_crates_come_from_one_registry_and_each_in_a_version_that_is_said() -> None:
    assert policy()["sources"] == {"unknown-registry": "deny", "unknown-git": "deny"}
    sources = {crate["source"] for crate in locked() if "source" in crate}
    assert len(sources) == 1 and sources.pop().startswith("registry+")
    assert all("checksum" in crate for crate in locked() if "source" in crate)
    assert policy()["bans"]["wildcards"] == "deny"
    manifest = tomllib.loads(read("Cargo.toml"))
    asked = [*manifest["dependencies"].values(), *manifest["dev-dependencies"].values()]
    versions = [about if isinstance(about, str) else about["version"] for about in asked]
    assert not [version for version in versions if "*" in version]
