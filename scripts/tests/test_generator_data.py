"""What generators learn from: our texts as they were judged."""

from __future__ import annotations

import bz2
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

import generator_data  # noqa: E402
import generator_vocabulary  # noqa: E402
import text_data  # noqa: E402


def write(folder: Path, name: str, rows: list[dict]) -> None:
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_the_judged_lines_are_those_of_their_files():
    judged = generator_data.moods()
    assert len(judged) > 15_000 and set(judged.values()) == set("gbnm")
    assert judged["She laughed when I asked her out."] == "b"
    texts = {line["text"].strip() for name in ("answered", "plain", "sampled") for line in text_data.authored_lines(text_data.AUTHORED, name)}
    assert sum(text in judged for text in texts) > 0.9 * len(texts)


def test_a_file_that_has_changed_is_to_be_judged_again(tmp_path: Path):
    write(tmp_path, "some", [{"text": "It rained."}, {"text": "We won!"}, {"text": "So it goes."}])
    write(tmp_path, "moods", [{"file": "some", "moods": "bg-"}])
    assert generator_data.moods(tmp_path) == {"It rained.": "b", "We won!": "g"}
    write(tmp_path, "moods", [{"file": "some", "moods": "bg"}])
    with pytest.raises(SystemExit, match="some has 3 lines, and 2 were judged"):
        generator_data.moods(tmp_path)


def test_answers_that_were_judged_are_learned_from_and_a_readers_own_where_none_was_right(tmp_path: Path):
    write(tmp_path, "answered", [{"text": "It rained.", "positive": "Rain at last.", "negative": "Rain again.", "reply": "Stay dry!"}])
    write(tmp_path, "judged", [{
        "text": "It rained.",
        "positive": {"right": ["~, and I'm glad.", "How good, rain!"], "doubtful": ["It did rain."], "wrong": ["It's dry."]},
        "negative": {"wrong": ["~!"]},
    }])
    (example,) = generator_data.written(tmp_path, ["judged"])
    assert example.answers == {"positive": "It rained, and I'm glad.", "negative": "Rain again.", "reply": "Stay dry!"}
    # Of what was refused where nothing was right, there is no answer of the model's own to prefer.
    assert example.others == {"positive": ("How good, rain!",)} and example.refused == {"positive": ("It's dry.",)}


def test_a_reader_s_own_answer_is_preferred_to_what_was_refused(tmp_path: Path):
    write(tmp_path, "answered", [])
    write(tmp_path, "judged_gamma", [{
        "text": "雨でした。", "lang": "ja", "own": {"positive": "~、ほっとしました。"}, "positive": {"wrong": ["~、悲しいです。"]},
    }])
    (example,) = generator_data.written(tmp_path, ["judged_gamma"])
    assert (example.lang, example.answers) == ("ja", {"positive": "雨でした、ほっとしました。"})
    assert example.refused == {"positive": ("雨でした、悲しいです。",)}


def test_a_tenth_of_the_judged_texts_is_kept_aside():
    train, aside = generator_data.split(generator_data.written(names=["judged"]))
    assert 0.08 < len(aside) / (len(aside) + len(train)) < 0.12
    assert not {example.text for example in train} & {example.text for example in aside}


def test_the_vocabulary_is_counted_over_plain_and_packed_lines(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl.bz2").write_bytes(bz2.compress(b'{"text": "a b", "reply": "c", "note": "x"}\n'))
    (tmp_path / "two.jsonl").write_text('{"text": "d", "positive": {"right": ["x"]}}\n', encoding="utf-8")
    assert list(generator_vocabulary.texts(generator_vocabulary.written(tmp_path))) == ["a b", "c", "d"]
