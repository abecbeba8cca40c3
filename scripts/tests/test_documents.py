"""The API guide, the changelog and the page for contributors: that they say
what the sources say.
"""

from __future__ import annotations

import re

import pytest
from rust_sources import ROOT, cargo_version, constant, error_codes, error_fields, operations

DOCUMENTS = ["docs/api.md", "CHANGELOG.md", "CONTRIBUTING.md"]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def rows(table_head: str) -> list[list[str]]:
    """The cells of the table of the API guide that begins with this head."""
    table = read("docs/api.md").split(f"| {table_head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_guide_has_every_error_as_the_server_gives_it() -> None:
    codes, fields = error_codes(), error_fields()
    listed = rows("Code")
    assert [words(row[0]) for row in listed] == [[code] for code in codes], "every code, in the order of the source"
    for cell, status, kind, field, meaning, remedy in listed:
        [code] = words(cell)
        assert (int(status), words(kind)) == (codes[code][0], [codes[code][1]]), code
        assert ("—" in field) == (None in fields[code]), code
        assert set(words(field)) <= fields[code] - {None} and (words(field) or "—" in field), code
        assert len(meaning) > 10 and len(remedy) > 5, code


def test_the_guide_has_every_operation_with_its_scope() -> None:
    listed = {words(row[2])[0]: words(row[1])[0].removeprefix("POST ") for row in rows("Operation")}
    assert listed == operations()


def test_the_guide_has_the_limits_of_the_sources() -> None:
    guide = read("docs/api.md")
    assert f"at most {constant('http/extract.rs', 'TEXT_BODY_BYTES') >> 10} KiB" in guide
    assert f"at most {constant('http/extract.rs', 'IMAGE_BODY_BYTES') >> 20} MiB where it may hold pictures" in guide
    assert f"at most {constant('domain/image.rs', 'MAX_BYTES') >> 20} MiB, 40 megapixels" in guide
    text, items = constant("domain/text.rs", "MAX_CHARACTERS"), constant("domain/input.rs", "MAX_ITEMS")
    assert f"1 to {text} characters" in guide and f"1 to {items} texts" in guide and f"{text * items:,} char" in guide


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document: str) -> None:
    text = read(document)
    tops = "deploy|docs|examples|src|scripts|models|tests"
    named = re.findall(rf"(?<![\w/])((?:{tops})/[\w./-]+\w)", text)
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", text)
    assert named or linked
    for name in named:
        assert (ROOT / name).exists(), f"{document} names {name}"
    for target in linked:
        assert (ROOT / document).parent.joinpath(target).exists(), f"{document} links to {target}"


def test_contributors_are_told_five_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE))
    page = read("CONTRIBUTING.md")
    assert len(re.findall(r"^\| `make ([a-z-]+)` \|", page, re.MULTILINE)) == 5
    told = set(re.findall(r"`make ([a-z-]+)`", page))
    assert told <= targets | {"help"}, told - targets


def test_the_changelog_has_the_version_that_is_built() -> None:
    assert cargo_version() in read("CHANGELOG.md")
    headings = set(re.findall(r"^### (.*)$", read("CHANGELOG.md"), re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
