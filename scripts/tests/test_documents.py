"""The documents: that the files, links and sources of weights which they name
exist, and that the API guide, the changelog, the page for contributors and the
figures of memory say what the sources say.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

from rust_sources import ROOT, cargo_version, constant, default, error_codes, error_fields, model_ids, operations, read

PAGES = [path for folder in ("", "docs/", "models/", "models/*/", "scripts/*/") for path in ROOT.glob(f"{folder}*.md")]
# `make notices` writes the one that is left out.
DOCUMENTS = sorted({path.relative_to(ROOT).as_posix() for path in PAGES} - {"THIRD_PARTY.md"})


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


def test_every_metric_is_explained_once() -> None:
    table = read("docs/operations.md").split("| Metric | What it is |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = [name for cell in cells for name in words(cell) if name.startswith(("dichroic_", "process_"))]
    assert len(named) > 25, "the table is not written as this test reads it"
    assert len(named) == len(set(named)), sorted(name for name in named if named.count(name) > 1)


def test_the_guide_has_the_limits_of_the_sources() -> None:
    guide = read("docs/api.md")
    assert f"at most {constant('http/extract.rs', 'TEXT_BODY_BYTES') >> 10} KiB" in guide
    assert f"at most {constant('http/extract.rs', 'IMAGE_BODY_BYTES') >> 20} MiB where it may hold pictures" in guide
    assert f"at most {constant('domain/image.rs', 'MAX_BYTES') >> 20} MiB, 40 megapixels" in guide
    text, items = constant("domain/text.rs", "MAX_CHARACTERS"), constant("domain/input.rs", "MAX_ITEMS")
    assert f"1 to {text} characters" in guide and f"1 to {items} texts" in guide and f"{text * items:,} char" in guide


def is_made(name: str) -> bool:
    """Whether git leaves it out because somebody makes it: a build, or an operator."""
    ignored = [line.strip("/") for line in read(".gitignore").splitlines() if line]
    return any(fnmatch(str(place), rule) for rule in ignored for place in (Path(name), *Path(name).parents))


def test_files_that_documents_name_exist() -> None:
    tops, found = "deploy|docs|examples|src|scripts|models|tests", 0
    for document in DOCUMENTS:
        for name in re.findall(rf"(?<![\w/])((?:{tops})/[\w./*-]*\w)", read(document)):
            assert any(ROOT.glob(name)) or is_made(name), f"{document} names {name}"
            found += 1
    assert found > 100, "files are not named as this test reads them"


def anchors(path: Path) -> set[str]:
    """What `#` may be followed by in a link to a page: its headings, as its readers' programs write them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    found = 0
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", read(document)):
            path = (ROOT / document).parent / target if target else ROOT / document
            assert path.exists(), f"{document} links to {target}"
            assert not anchor or anchor in anchors(path), f"{document} links to {target}#{anchor}"
            found += 1
    assert found > 50, "links are not written as this test reads them"


def test_every_card_is_on_the_page_of_models() -> None:
    linked = set(re.findall(r"\]\(([^)]+\.md)\)", read("models/README.md")))
    cards = {path.removeprefix("models/") for path in DOCUMENTS if path.startswith("models/")} - {"README.md"}
    assert {f"{model}/README.md" for model in model_ids()} < cards <= linked


def test_weights_that_others_packed_are_named_with_a_variable_for_a_copy_of_ones_own() -> None:
    sources = json.loads(read("scripts/sources.json"))["sources"]
    variables = {re.sub(r"\W", "_", name).upper(): source for name, source in sources.items()}
    packed = {name for name, source in variables.items() if "third party" in source.get("note", "")}
    assert packed
    for document in DOCUMENTS:
        told = set(re.findall(r"\bDICHROIC_SOURCE_(\w+)", read(document)))
        assert told <= set(variables), document
        assert packed <= told or document != "docs/security.md", packed - told
        # How every other variable is named is told by rule and example.
        assert document != "README.md" or (told and "`scripts/sources.json`, in capitals" in read(document))


def test_the_memory_of_caches_is_that_of_the_built_generators() -> None:
    """As docs/operations.md computes it. Those that were not built here have no manifest to be compared with."""
    pages = {name: read(f"docs/{name}.md") for name in ("operations", "performance")}
    rows = default("generator_slots") + constant("engine/generate/scheduler.rs", "PREFIX_ROWS")
    built = {model: ROOT / "models" / model / "build/generator/manifest.json" for model in model_ids()}
    assert any(path.is_file() for path in built.values()), "no model is built: run make setup"
    for model, path in built.items():
        [said] = re.findall(rf"([\d,]+) MiB for\s+`{model}`", pages["operations"])
        row = rf"^\| `{model}` \|.* = ([\d,]+) \| ([\d,]+) tokens: ([\d,]+) MB \|$"
        [cells] = re.findall(row, pages["performance"], re.MULTILINE)
        if path.is_file():
            shape = json.loads(path.read_text(encoding="utf-8"))["generator"]
            token = 2 * 4 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]
            full = token * shape["window"]
            assert said == f"{rows * full / 2**20:,.0f}", model
            assert cells == (f"{token:,}", f"{shape['window']:,}", f"{full / 1e6:,.0f}"), model


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
