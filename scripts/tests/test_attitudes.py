"""Which attitudes fit a text: how what readers told is read, and the heads that are kept as factors."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train")]

import attitude_data  # noqa: E402
from forge import low_rank  # noqa: E402


def write(folder: Path, fit: list[str]) -> None:
    texts = [{"text": "We won!"}, {"text": "It rained."}, {"text": "Gewonnen!", "lang": "de"}]
    codes = {"codes": {"positive": ["glad", "proud"], "negative": ["sad"], "reply": ["cheer"]}, "later": ["proud"]}
    for name, rows in (("some", texts), ("attitudes", [codes, {"file": "some", "fit": fit}])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_what_was_not_there_to_be_told_is_not_known(tmp_path: Path):
    write(tmp_path, ["glad|*", "", "glad proud|sad|cheer"])
    first, second = attitude_data.read(folder=tmp_path)
    assert (first.text, first.fit.tolist(), first.known.tolist()) == ("We won!", [1, 0, 0], [1, 0, 1])
    assert (second.text, second.fit.tolist(), second.known.tolist()) == ("Gewonnen!", [1, 1, 1], [1, 1, 1])
    assert [one.text for one in attitude_data.read("de", folder=tmp_path)] == ["Gewonnen!"]
    first, second = attitude_data.read(replies=True, folder=tmp_path)
    assert (first.known.tolist(), second.fit.tolist(), second.known.tolist()) == ([1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1])


def test_of_replies_that_are_as_likely_the_rarer_is_lifted():
    count = sum(map(len, attitude_data.names(replies=True)))
    fit = np.zeros((4, count), np.float32)
    fit[:, -1], fit[0, -2], fit[:, 0] = 1, 1, 1
    rows = [attitude_data.Fitting("", "en", one, np.ones(count, np.float32), False) for one in fit]
    bias = attitude_data.lifted(np.zeros(count, np.float32), rows)
    replies = sum(map(len, attitude_data.names()))
    assert (bias[:replies] == 0).all(), "attitudes stay as they are"
    assert bias[-2] > bias[-1] and abs(bias[-1]) < 0.01


def test_a_file_that_has_changed_is_to_be_read_again(tmp_path: Path):
    write(tmp_path, ["glad|"])
    with pytest.raises(SystemExit, match="some has 3 lines, and 1 were read"):
        attitude_data.read(folder=tmp_path)


def test_the_lines_that_were_read_are_those_of_their_files():
    rows = attitude_data.read()
    positive, negative = attitude_data.names()
    assert len(rows) > 5_000 and all(len(row.fit) == len(positive) + len(negative) for row in rows)
    assert 100 < sum(row.aside for row in rows) < 1_000
    # Whoever read a text found something for either light in nearly all of them.
    for part in (slice(None, len(positive)), slice(len(positive), None)):
        assert np.mean([row.fit[part].any() for row in rows]) > 0.97


@pytest.mark.parametrize(("model", "languages"), [("alpha-4o-mini", 1), ("gamma-1.5-flash", 8)])
def test_the_sentences_are_as_many_as_were_read_for(model: str, languages: int):
    said = json.loads(lzma.decompress((ROOT / "models" / model / "situations.json.xz").read_bytes()))["attitudes"]
    assert len(said) == languages
    counts = [len(names) for names in attitude_data.names(replies=True)]
    for kinds in said.values():
        assert [len(kind) for kind in kinds] == counts
        assert len(set(sum(kinds, []))) == sum(map(len, kinds))


def test_the_likeliest_is_looked_for_among_what_is_known():
    told = attitude_data.Fitting("We won!", "en", np.array([1, 0, 1], np.float32), np.array([1, 0, 1], np.float32), True)
    assert attitude_data.report(np.array([[0.0, 9.0, 0.0]]), [told], [2, 1]).startswith("positive 1.000 of 1")


def test_factors_are_nearest_for_the_states_that_there_are():
    random = np.random.default_rng(5)
    # States that hardly leave a plane: of the weight no more than that counts.
    states = random.standard_normal((400, 2)) @ random.standard_normal((2, 12)) + 1e-3 * random.standard_normal((400, 12))
    weight = random.standard_normal((5, 12)).astype(np.float32)
    a, b = low_rank.least_for(weight, states, 2)
    centred = states - states.mean(axis=0)
    wanted = centred @ weight.T
    assert (a.shape, b.shape) == ((2, 12), (5, 2))
    assert np.abs(centred @ (b @ a).T - wanted).max() < 0.02 * np.abs(wanted).max()
