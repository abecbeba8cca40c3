"""Which texts a larger generator answers for a smaller one, and which of its answers are fit to be learned."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train")]

import generator_widen  # noqa: E402
import text_data  # noqa: E402
from generator_data import Example  # noqa: E402

TEXT = "My train to Leeds was 40 minutes late and I missed the start."


class Judge:
    """Finds harm in `awful`, and light in `glad`."""

    def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[9.0 if "awful" in text else -9.0] * 5 for text in texts]), np.zeros((len(texts), 5))

    def first(self, texts: list[str], output: str) -> np.ndarray:
        assert output == "sentiment"
        return np.array([[2.0 if "glad" in text else -2.0] for text in texts])


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [{"point": 0.0, "below": 1.0, "above": 1.0}] * 5
    monkeypatch.setattr(generator_widen, "built", lambda folder, threads: (Judge(), places))


def kept(answers: dict[str, str], text: str = TEXT) -> set[str]:
    lines, dropped = generator_widen.checked([{"text": text, **answers}], Path(), 1)
    left = {task for line in lines for task in line if task != "text"}
    assert bool(dropped) == (left != set(answers)), "what is left out is counted"
    return left


def test_right_answers_are_kept():
    answers = {
        "positive": "My train to Leeds was 40 minutes late and I missed the start, but I'm glad I got there.",
        "negative": "My train to Leeds was 40 minutes late, so I missed the start, and I'm fed up with it.",
        "reply": "I'm sorry that the train to Leeds made you miss the start.",
    }
    assert kept(answers) == set(answers)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("positive", "My train to York was 40 minutes late and I missed the start, but I'm glad I got there."),
        ("positive", "My train to Leeds was late and I missed the start, but I'm glad I got there."),
        ("positive", "My train to Leeds was 40 minutes late and I missed the start, and I'm fed up with it."),
        ("negative", "My train to Leeds was 40 minutes late and I missed the start, and I'm glad of it."),
        ("negative", TEXT),
        ("negative", "My train to Leeds was 40 minutes late, I missed the start, and it was awful."),
        ("reply", "I'm sorry. The train to Leeds was very late."),
        ("reply", "I'm sorry that Tom had to wait for the train to Leeds."),
        ("reply", "Oh dear."),
        ("reply", "I hope [NAME] has a quicker train to Leeds tomorrow."),
        ("negative", "My train to Leeds was 40 minutes late and I missed the start" + " and it kept on being late" * 3 + "."),
        ("negative", f"{TEXT[:-1]}, which was bad" + ", and worse, and sad, and dull, and grey, and slow, and cold" * 2 + "."),
    ],
    ids=[
        "other place", "number lost", "wrong light", "glad of it", "copy", "flagged", "two sentences", "a stranger", "too short",
        "place-holder", "loop", "too long",
    ],
)
def test_wrong_answers_are_left_out(task: str, answer: str):
    assert kept({task: answer}) == set()


def test_two_expressions_that_say_the_same_are_no_pair():
    said = "My train to Leeds was 40 minutes late, so I missed the start and I'm glad of a long walk"
    light = {"positive": f"{said}.", "negative": f"{said} now."}
    assert kept(light) == {"positive"}, "by the judge both are glad"


def test_of_replies_that_begin_alike_a_few_are_kept():
    # Refused ones take nobody's place.
    items = [{"text": TEXT, "reply": f"I'm sorry that the train to Leeds was late. It is bad, {n}."} for n in "abcdefghij" * 10]
    items += [{"text": TEXT, "reply": f"I'm sorry that the train to Leeds was late on day {n}."} for n in "abcdefghij" * 10]
    lines, dropped = generator_widen.checked(items, Path(), 1)
    assert len(lines) == generator_widen.ALIKE and dropped == {
        "reply: not one sentence": 100, "reply: alike": 100 - generator_widen.ALIKE
    }


def test_chosen_are_ordinary_texts_of_the_side_that_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder, name in (("moderation", "goemotions"), ("expression", "positive-frames")):
        (tmp_path / folder / "train").mkdir(parents=True)
        lines = [{"text": f"Day {n} of the rain and  nobody minds it", "labels": {"hate": 0}} for n in range(40)]
        lines += [{"text": f"Bad words {n} about all of them", "labels": {"hate": 1}} for n in range(40)]
        lines += [{"text": text, "labels": {}} for text in (
            "@user look at this one now", "Too short", "see http for it all now", "What an élan they have here today",
            "Thank [NAME] for all of this now", "1234 5678 9012 3456 of them", "so " * 40,
        )]
        if folder == "expression":
            lines = [{"text": f"Late again {n} times this week", "positive": "Early", "negative": None} for n in range(40)]
            lines += [{"text": f"On time {n} times this week", "positive": None, "negative": "Late"} for n in range(40)]
        with gzip.open(tmp_path / folder / "train" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as handle:
            handle.write("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(generator_widen, "written", lambda names: [])
    all_of_them = generator_widen.chosen(tmp_path, 1)
    answered = [Example(all_of_them["goemotions"][0], {}, "ours")]
    monkeypatch.setattr(generator_widen, "written", lambda names: answered if "answered" in names else [])
    assert set(generator_widen.chosen(tmp_path, 1)["goemotions"]) == set(all_of_them["goemotions"][1:]), "ours have answers"
    monkeypatch.setattr(generator_widen, "written", lambda names: [])
    found = generator_widen.chosen(tmp_path, 1)
    assert found == generator_widen.chosen(tmp_path, 1)
    assert 20 < len(found["goemotions"]) < 40 and all(text.startswith("Day ") and "  " not in text for text in found["goemotions"])
    assert 20 < len(found["positive-frames"]) < 40 and all(text.startswith("Late") for text in found["positive-frames"])
    assert {text_data.split_of(text, "goemotions") for text in found["goemotions"]} == {"train"}
