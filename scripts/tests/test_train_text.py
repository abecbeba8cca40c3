"""The text classifier's training code: splits, masks, mixing, measures, calibration.

Works on a small data folder made here; neither PyTorch nor the real data is
needed.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import multiprocessing
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train")]

import generator_data  # noqa: E402
import text_average  # noqa: E402
import text_calibrate  # noqa: E402
import text_card  # noqa: E402
import text_data  # noqa: E402
import text_disguise  # noqa: E402
import text_made  # noqa: E402
import text_mixture  # noqa: E402
import text_narrow  # noqa: E402
import text_scores  # noqa: E402
import text_supply  # noqa: E402
import text_teach  # noqa: E402
from measure import metrics  # noqa: E402
from normalise import normalise  # noqa: E402
from text_data import CATEGORIES, Row  # noqa: E402


PAIRED = ("imdb-counterfactual", "positive-frames")


@pytest.fixture()
def data(tmp_path: Path) -> Path:
    """Every source of the mixture, 40 texts each, every third one harmful."""
    (tmp_path / "moderation" / "train").mkdir(parents=True)
    (tmp_path / "authored").mkdir()
    (tmp_path / "expression" / "train").mkdir(parents=True)
    said = [{"text": f"it rains on day {i}", "positive": f"fine rain {i}", "negative": None} for i in range(60)]
    for source in PAIRED:
        with gzip.open(tmp_path / "expression" / "train" / f"{source}.jsonl.gz", "wt", encoding="utf-8") as handle:
            handle.write("\n".join(map(json.dumps, said)))
    names = [s for s in text_mixture.MIXTURE if "/" not in s and s not in PAIRED] + list(text_data.HELD_OUT_SOURCES)
    for source in names:
        lines = []
        for i in range(40):
            labels = dict.fromkeys(CATEGORIES) | {"hate": int(i % 3 == 0), "violence": 0}
            lines.append(json.dumps({"text": f"{source} says number {i} <user>", "labels": labels, "source": source}))
        with gzip.open(tmp_path / "moderation" / "train" / f"{source}.jsonl.gz", "wt", encoding="utf-8") as handle:
            handle.write("\n".join(lines))
    read = [
        {"digest": text_data.name_of(f"{source} says number {i} @user"), "found": ["sexual", "violence"] if i % 3 else [], "doubtful": i % 2 == 0}
        for source in ("davidson", text_data.HELD_OUT_SOURCES[0]) for i in range(30)
    ]
    (tmp_path / "authored" / "readings.jsonl").write_text("\n".join(map(json.dumps, read)), encoding="utf-8")
    judged = (*text_data.HARM_FILES, *text_data.JUDGED_FILES, text_data.CALIBRATION_FILE)
    names = (*judged, *text_data.STATEMENT_FILES, *text_data.EXPRESSED_FILES, *text_data.EVERYDAY_FILES, *text_data.SPECIAL_FILES)
    for name in dict.fromkeys(names):
        lines = []
        for i in range(40):
            item = {"text": f"{name} line {i}", "lang": "en"}
            if name in judged:
                own = name if name in CATEGORIES or name == "benign_lookalikes" else "hate"
                item["labels"] = {c: int(c == own and i % 2 == 0) for c in CATEGORIES}
            else:
                item["kind"] = "formula" if name in text_data.SPECIAL_FILES and i % 4 else "statement"
                if item["kind"] == "formula":
                    item |= {"positive": "false", "negative": "false"}
                elif i:
                    item |= {"positive": f"glad of {name} {i}", "negative": f"tired of {name} {i}"}
            lines.append(json.dumps(item))
        (tmp_path / "authored" / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("packer", [bz2, lzma])
def test_packed_lines_are_read_and_an_unpacked_file_goes_first(tmp_path, packer):
    with packer.open(tmp_path / f"a.jsonl.{'xz' if packer is lzma else 'bz2'}", "wt", encoding="utf-8") as handle:
        handle.write('{"text": "packed"}\n')
    assert list(text_data.all_authored_lines(tmp_path)) == [{"text": "packed"}]
    assert text_data.authored_lines(tmp_path, "a") == [{"text": "packed"}]
    (tmp_path / "a.jsonl").write_text('{"text": "plain"}\n', encoding="utf-8")
    assert text_data.authored_lines(tmp_path, "a") == [{"text": "plain"}]


@pytest.mark.parametrize("name", ["languages_eval", "borders_eval", "everyday_eval", "unseen_eval", "unseen_places_eval"])
def test_no_line_that_is_for_measuring_alone_is_trained_on(name):
    def texts(name: str) -> set[str]:
        return {item["text"].casefold().strip(" .!?") for item in text_data.authored_lines(text_data.AUTHORED, name)}

    measured = texts(name)
    assert len(measured) > 200
    for other in (*text_data.HARM_FILES, *text_data.JUDGED_FILES, text_data.CALIBRATION_FILE, *text_data.STATEMENT_FILES,
                  *text_data.EVERYDAY_FILES, *text_data.LIGHT_FILES, *text_data.SPECIAL_FILES):
        assert not measured & texts(other), other


def test_an_unjudged_category_weighs_nothing(data):
    row = next(r for r in text_data.load(data, data / "authored") if r.source == "davidson" and not r.read)
    weights = dict(zip(CATEGORIES, row.weights))
    assert weights["sexual"] == weights["self_harm"] == weights["defamation"] == 0
    assert weights["violence"] == 1 and weights["hate"] == text_data.TRUST["davidson", "hate"]


def test_a_public_text_that_was_read_has_the_readers_labels_unless_it_is_measured_on(data):
    rows = text_data.load(data, data / "authored")
    davidson = [(r, int(r.text.split()[3])) for r in rows if r.source == "davidson"]
    assert len(davidson) == 40
    for row, number in davidson:
        read = number < 30 and row.side() != "validation"
        assert row.read is read
        if read:
            assert row.targets == ((1, 0, 0, 1, 0) if number % 3 else (0,) * 5)
            assert row.weights == (0.5 if number % 2 == 0 else 1.0,) * 5
        else:
            assert row.targets == (0, number % 3 == 0, 0, 0, 0)
            assert row.weights == (0, text_data.TRUST["davidson", "hate"], 0, 1, 0)
    assert any(number < 30 and row.side() == "validation" for row, number in davidson)
    assert not any(r.read for r in rows if r.source in text_data.HELD_OUT_SOURCES)


def test_a_reader_who_finds_no_claim_does_not_say_that_what_a_source_calls_an_insult_is_harmless():
    insult = Row("you are no good", "civil-spans", (0, 0, 0, 0, 1), (0, 1, 0, 1, 0.35))
    silent = text_data.as_read(insult, {"found": ["hate"], "doubtful": False})
    assert silent.targets == (0, 1, 0, 0, 0) and silent.weights == (1, 1, 1, 1, 0)
    assert text_data.as_read(insult, {"found": ["defamation"], "doubtful": True}).weights == (0.5,) * 5
    claim = Row("he is a thief", "ailuminate", (0, 0, 0, 0, 1), (1,) * 5)
    assert text_data.as_read(claim, {"found": [], "doubtful": False}).weights == (1,) * 5


def test_an_operating_point_is_lowered_where_that_is_asked_and_nowhere_else():
    points = [{"point": 1.0, "below": 2.0, "above": 3.0}] * 5
    lower = text_calibrate.lowered(points, [["defamation", "0.9"], ["self_harm", "0.4"]])
    assert [point["point"] for point in lower] == [1.0, 1.0, 0.6, 1.0, 0.1]
    assert all((point["below"], point["above"]) == (2.0, 3.0) for point in lower) and points[4]["point"] == 1.0
    with pytest.raises(SystemExit, match="slander"):
        text_calibrate.lowered(points, [["slander", "1"]])


def test_of_a_source_that_was_read_nothing_else_sets_operating_points(data):
    rows = text_data.load(data, data / "authored")
    points = text_data.for_points(rows)
    assert {r.side() for r in points} == {"calibration"} and {r.read for r in points if r.source == "davidson"} == {True}
    others = [r for r in rows if r.side() == "calibration" and r.source != "davidson"]
    assert others == [r for r in points if r.source != "davidson"]


def test_no_public_text_is_read_both_for_training_and_for_measuring():
    read, aside = ({item["digest"] for item in text_data.authored_lines(text_data.AUTHORED, name)}
                   for name in (text_data.READINGS, text_data.READINGS_ASIDE))
    assert len(read) > 10_000 and len(aside) > 1000 and not read & aside


def test_of_a_text_with_two_sets_of_answers_generators_learn_the_later_one():
    learned = {}
    for example in generator_data.learned():
        assert learned.setdefault(example.text, example) is example, example.text
    plain = [e for e in generator_data.split(generator_data.written(names=["plain"]))[0]]
    assert plain and all(learned[e.text].answers == e.answers and not learned[e.text].refused for e in plain)


def test_authored_files_weigh_most_where_they_speak(data):
    rows = text_data.load(data, data / "authored")
    own = next(r for r in rows if r.source == "authored/violence" and r.positive())
    assert dict(zip(CATEGORIES, own.weights)) == {c: 1.0 if c == "violence" else text_data.WEAK_ZERO for c in CATEGORIES}
    whole = ("authored/benign_lookalikes", "authored/hate", "authored/prompts")
    assert all(r.weights == (1.0,) * 5 for r in rows if r.source in whole)
    feelings = next(r for r in rows if r.source == "authored/en_feelings")
    assert feelings.weights[CATEGORIES.index("self_harm")] == 0


def test_everyday_texts_are_harmless_statements(data):
    rows = [r for r in text_data.load(data, data / "authored") if r.source == "authored/everyday"]
    assert len(rows) == 40 * len(text_data.EVERYDAY_FILES)
    assert all(r.targets == (0.0,) * 5 and r.kind == 0 for r in rows)
    # Some of them despair, and nobody read them for that.
    own = CATEGORIES.index("self_harm")
    assert {r.weights[own] for r in rows if r.text.startswith("pairs_close")} == {0.0}
    assert {r.weights[own] for r in rows if r.text.startswith("preferred")} == {0.5}
    assert all(w == 0.5 for r in rows for c, w in enumerate(r.weights) if c != own)


def test_expressions_carry_their_sentiment_and_stay_with_their_text(data):
    rows = [r for r in text_data.load(data, data / "authored") if r.sentiment >= 0]
    ours = [r for r in rows if r.source == "authored/expressions"]
    assert {r.text: r.sentiment for r in ours if r.origin == "en_daily line 7"} == {"glad of en_daily 7": 1, "tired of en_daily 7": 0}
    assert not [r for r in rows if r.text == "false" or r.origin in ("special line 1", "en_daily line 0")]
    assert all(r.side() == text_data.split_of(r.origin or r.text, r.source) for r in rows)
    # Nobody judged them for harm.
    assert all(r.weights == (0.0,) * 5 for r in rows)
    # A review that was turned positive was negative before.
    reviews = {r.text: r.sentiment for r in rows if r.source == "imdb-counterfactual"}
    assert len(reviews) >= 10 and all(v == int(t.startswith("fine")) for t, v in reviews.items())


def test_splits_depend_on_the_text_alone():
    texts = [f"a text of number {i}" for i in range(4000)]
    sides = Counter(text_data.split_of(t, "davidson") for t in texts)
    assert 0.08 < sides["validation"] / 4000 < 0.12
    assert 0.035 < sides["calibration"] / 4000 < 0.065
    assert all(text_data.split_of(t, "davidson") == text_data.split_of(t.upper() + "!", "edos") for t in texts[:200])
    assert text_data.split_of(texts[0], "convabuse") == "held_out"
    # What is made from other texts is no evidence: it has its like in training.
    assert {text_data.split_of(t, "suicide-reddit-sentences") for t in texts} == {"train"}


def test_lines_that_operating_points_are_set_by_are_never_trained_on(data):
    own = [row for row in text_data.load(data, data / "authored") if row.source == "authored/calibration"]
    assert len(own) == 40 and {row.side() for row in own} == {"calibration"}


def test_texts_of_signs_alone_are_spread_over_the_splits():
    assert len({text_data.split_of("?" * n, "authored/special") for n in range(1, 60)}) == 3


def test_draws_repeat_and_hold_no_text_of_another_split(data, monkeypatch):
    rows = text_data.load(data, data / "authored")
    assert text_mixture.Pools(rows).draw(600, 1) == text_mixture.Pools(rows).draw(600, 1)
    pools = text_mixture.Pools(rows)
    assert pools.draw(600, 1) != pools.draw(600, 2)
    assert pools.draw(600, 1) == pools.draw(600, 1), "what was drawn before does not matter"
    monkeypatch.setattr(text_mixture, "disguise", lambda text, rng: text)
    monkeypatch.setattr(text_mixture, "joined", lambda first, second: first)
    drawn = pools.draw(3000, 1)
    assert abs(len(drawn) - 3000) < 60
    known = [r for r in drawn if not r.source.startswith("made/")]
    assert {r.side() for r in known} == {"train"}
    assert not {r.source for r in drawn} & set(text_data.HELD_OUT_SOURCES)


def test_draws_follow_the_mixture(data):
    drawn = text_mixture.Pools(text_data.load(data, data / "authored")).draw(5000, 1)
    counts = Counter(r.source for r in drawn)
    total = sum(share for share, _ in text_mixture.MIXTURE.values())
    for source in ("authored/defamation", "hatexplain", "pheme"):
        share, positive = text_mixture.MIXTURE[source]
        available = positive if source != "pheme" else 1 - positive
        assert counts[source] / len(drawn) >= 0.8 * share / total * available


def supply(data: Path, drawers: int, rows: int = 460, span: int = 90) -> text_supply.Supply:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 7}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    args = argparse.Namespace(
        span=span, rows=rows, batch=8, seed=5, emphasis="even", tokens=12, backbone="minilm", teacher_share=0.6, drawers=drawers
    )
    return text_supply.Supply(text_mixture.Pools(text_data.load(data, data / "authored")), tokenizer, args)


def test_what_a_training_is_supplied_with_does_not_depend_on_who_draws_it(data):
    def seen(span: text_supply.Span) -> tuple:
        return span.ids.tolist(), span.lengths.tolist(), [part.tolist() for part in span.wanted], span.batches

    spans = [seen(span) for span in supply(data, 0).spans(0)]
    assert [len(batches) for *_, batches in spans] == [11, 11, 11, 11, 11, 2], "all rows that fill batches, and no more"
    assert spans[0] != spans[1]
    # One process draws two ahead, so the others are asked for while the first are used.
    assert [seen(span) for span in supply(data, 1).spans(0)] == spans
    assert [seen(span) for span in supply(data, 2).spans(1)] == spans[1:], "a run that goes on draws what was left"
    for ids, lengths, wanted, batches in spans:
        assert {len(batch) for batch in batches} == {8} and sorted(sum(batches, [])) == list(range(len(lengths)))
        assert all(sum(token != 0 for token in row) == length for row, length in zip(ids, lengths))
        assert [len(part) for part in wanted] == [len(lengths)] * 4


def test_a_training_that_ends_early_leaves_nobody_drawing(data):
    spans = supply(data, 2).spans(0)
    next(spans)
    spans.close()
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


def test_sources_that_are_not_there_leave_their_share_to_the_others(data):
    for source in ("hatexplain", "civil-spans", "hatemoji-build", "ailuminate", "pheme", "ud-ewt", "aart"):
        (data / "moderation" / "train" / f"{source}.jsonl.gz").unlink()
    few = supply(data, 0, 3000, 2400)
    assert len(few.pools.draw(2548, 5)) < 2400, "one draw is too few"
    assert [len(span.lengths) for span in few.spans(0)] == [2400, 600]


def test_a_teacher_fills_what_is_open_and_overrules_no_reader_who_was_sure(tmp_path):
    open_, judged = (0.0, 1.0, 0.0, 0.0, 0.0), (1.0,) * 5
    rows = [
        Row("an open text", "pheme", open_, open_),
        Row("one that was read", "pheme", open_, judged, read=True),
        Row("one that was read in doubt", "pheme", open_, (0.5,) * 5, read=True),
        Row("un texte en français", "european", open_, judged, lang="fr"),
        Row("an insult that was read", "civil-spans", open_, (1.0, 1.0, 1.0, 1.0, 0.0), read=True),
    ]
    said = np.full((5, 5), 0.7, np.float32)
    np.savez(tmp_path / "said.npz", probabilities=said, data=text_data.digest(rows))
    taught = text_supply.taught(rows, tmp_path / "said.npz")
    assert [row.soft is not None for row in taught] == [True, False, True, False, False]
    targets, weights, _, _ = text_supply.targets_of(taught, 0.75)
    assert targets[0] == pytest.approx([0.7, 0.75 * 0.7 + 0.25 * 0.98, 0.7, 0.7, 0.7], abs=1e-6)
    assert weights[0].tolist() == [0.5, 1.0, 0.5, 0.5, 0.5]
    assert targets[1] == pytest.approx([0.02, 0.98, 0.02, 0.02, 0.02], abs=1e-6)


def test_a_source_without_a_share_is_an_error(data):
    rows = [*text_data.load(data, data / "authored"), Row("a new source speaks here", "newcomer", (0.0,) * 5, (1.0,) * 5)]
    rows += [Row(f"a new source speaks here {i}", "newcomer", (0.0,) * 5, (1.0,) * 5) for i in range(30)]
    with pytest.raises(SystemExit, match="newcomer"):
        text_mixture.Pools(rows)


def test_harm_joined_to_harmless_text_stays_harm():
    harm = Row("bad", "a", (0, 1, 0, 0, 0), (0, 0.7, 1, 0, 1), kind=0)
    calm = Row("good", "b", (0, 0, 0, 0, 0), (1, 1, 1, 0.3, 0), kind=-1)
    both = text_mixture.joined(harm, calm)
    assert both.text == "bad good" and both.kind == 0
    assert both.targets == (0, 1, 0, 0, 0)
    # Where one part went unjudged, so does the whole.
    assert both.weights == (0, 0.7, 1, 0, 0)


def test_disguises_repeat_and_leave_a_text():
    for i in range(300):
        text = random.Random(i).choice(["kill them all", "ok", "Привет", "你好", "I love this place.", "!!"])
        changed = text_disguise.disguise(text, random.Random(i))
        assert changed and changed == text_disguise.disguise(text, random.Random(i))
    assert len({text_disguise.disguise("an ordinary sentence", random.Random(i)) for i in range(50)}) > 20


def test_made_special_texts_are_nonsense_or_formulas():
    rows = text_made.made_special(500, random.Random(1))
    assert {text_data.EXPRESSIBILITY[r.kind] for r in rows} == {"meaningless", "formula"}
    assert all(r.text.strip() for r in rows)


def test_made_words_are_harmless_scraps_of_one_side():
    zeros, judged = (0.0,) * 5, (1.0,) * 5
    rows = [Row(f"a lantern and a {word} stood there {i}", "ud-ewt", zeros, judged) for i in range(40) for word in ("kettle", "filth")]
    rows += [Row(f"you filth {i}", "edos", (0.0, 1.0, 0.0, 0.0, 0.0), judged) for i in range(40)]
    rows += [Row("lantern", "profanity-list", (1.0, 0.0, 0.0, 0.0, 0.0), judged)]
    rows += [Row(f"an unread spoon {i}", "imdb-counterfactual", zeros, zeros) for i in range(40)]
    words = text_made.Words(rows)
    # Profanity is left out whatever stands around it, and so is what often stands in harm or was never judged.
    assert "kettle" in words.words
    assert not {"lantern", "filth", "spoon"} & set(words.words)
    sides = {side: words.made(200, random.Random(1), side) for side in ("train", "calibration", "validation")}
    for side, made in sides.items():
        assert {row.side() for row in made} == {side} and not any(row.positive() for row in made)
    assert len({row.text for row in sides["train"]}) > 150
    assert words.made(50, random.Random(2)) == words.made(50, random.Random(2))


def test_average_precision_and_roc_on_known_answers():
    labels = np.array([1, 0, 1, 0])
    scores = np.array([0.9, 0.8, 0.7, 0.1])
    assert metrics.auprc(labels, scores) == pytest.approx((1 + 2 / 3) / 2)
    assert metrics.roc_auc(labels, scores) == pytest.approx(0.75)
    # One score for all: no skill, however the rows lie.
    assert metrics.auprc(labels, np.ones(4)) == metrics.auprc(labels[::-1], np.ones(4)) == pytest.approx(0.5)
    assert metrics.roc_auc(labels, np.ones(4)) == pytest.approx(0.5)
    assert np.isnan(metrics.auprc(np.zeros(4), scores)) and np.isnan(metrics.roc_auc(np.ones(4), scores))


def test_threshold_measures_and_calibration_error():
    found = metrics.at_threshold(np.array([1, 1, 0, 0, 0]), np.array([0.5, 0.4, 0.9, 0.2, 0.1]))
    assert found == pytest.approx({"precision": 0.5, "recall": 0.5, "f1": 0.5, "fpr": 1 / 3})
    random_ = np.random.default_rng(0)
    p = random_.uniform(size=20_000)
    labels = random_.uniform(size=20_000) < p
    assert metrics.calibration_error(labels, p) < 0.02
    assert metrics.calibration_error(labels, np.full(20_000, 0.9)) == pytest.approx(0.4, abs=0.02)


def test_each_side_of_the_operating_point_gets_its_true_slope():
    random_ = np.random.default_rng(0)
    logits = random_.normal(size=40_000) * 4
    slope = np.where(logits < 1, 0.5, 1.5)
    labels = (random_.uniform(size=40_000) < text_scores.sigmoid(slope * (logits - 1))).astype(float)
    below, above = text_calibrate.slopes(logits, labels, np.ones(40_000), 1.0)
    assert below == pytest.approx(0.5, abs=0.04) and above == pytest.approx(1.5, abs=0.12)
    p = text_scores.probabilities(logits[:, None], [{"point": 1.0, "below": below, "above": above}])[:, 0]
    assert metrics.calibration_error(labels, p) < 0.02
    assert text_scores.probabilities(np.array([[1.0]]), [{"point": 1.0, "below": 0.2, "above": 3.0}])[0, 0] == 0.5


def test_a_confident_contradiction_doubts_public_labels_but_not_our_own():
    def row(source: str, target: float) -> Row:
        return Row("x", source, (target,) * 5, (1.0,) * 5)

    sure, unsure = np.full(5, 0.99), np.full(5, 0.5)
    rows = [row("hatexplain", 0.0), row("authored/hate", 0.0), row("hatexplain", 0.0), row("civil-spans", 1.0)]
    doubted = text_data.doubted(rows, np.array([sure, sure, unsure, 1 - sure]))
    assert doubted[0].weights == (0.1,) * 5
    assert doubted[1].weights == doubted[2].weights == (1.0,) * 5
    # Rare harm that a model overlooks is harm all the same.
    assert doubted[3].weights == (1.0, 0.1, 1.0, 1.0, 1.0)


def test_several_classifiers_say_the_mean_of_their_log_odds():
    alone = np.array([[0.3, 0.5, 0.9]])
    together = lambda said: text_scores.sigmoid(text_scores.mean_odds(said))  # noqa: E731
    assert together([alone]) == pytest.approx(alone)
    assert together([alone, 1 - alone]) == pytest.approx(np.full((1, 3), 0.5))
    # Not the mean of the probabilities, which would be 0.7; and who is all too sure does not decide alone.
    [said] = together([np.array([0.5]), np.array([0.9])])
    assert said == pytest.approx(0.75)
    assert together([np.array([1.0]), np.array([0.001]), np.array([0.001])])[0] < 0.5


def test_an_ensemble_answers_as_the_server_s_does():
    class Fixed:
        def __init__(self, logit: float, kind: float) -> None:
            self.logit, self.kind = logit, kind

        def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
            return np.full((len(texts), 5), self.logit), np.full((len(texts), 5), self.kind)

    plain = [{"point": 0.0, "below": 1.0, "above": 1.0}] * 5
    strict = [{"point": 1.0, "below": 2.0, "above": 1.0}] * 5
    # Odds of 9 and of e⁻⁴: each by its own calibration.
    harm, special = text_scores.Ensemble([(Fixed(np.log(9), 1.0), plain), (Fixed(-1.0, 2.0), strict)]).scores(["a", "b"])
    assert harm == pytest.approx(np.full((2, 5), (np.log(9) - 4) / 2))
    assert (special == 1.0).all(), "the first says what kind of text it is"
    # As in the test of `together` in src/runtime/classifier.rs: odds of 9, 1 and 1/81.
    said = [np.full((1, 5), p) for p in (0.9, 0.5, 1 / 82)]
    odds = (9 / 81) ** (1 / 3)
    assert text_scores.probabilities(text_scores.mean_odds(said), plain) == pytest.approx(np.full((1, 5), odds / (1 + odds)))
    # As there, too: where the first counts twice they are even.
    assert text_scores.mean_odds(said, [2.0, 1.0, 1.0]) == pytest.approx(np.zeros((1, 5)), abs=1e-9)
    first_twice = text_scores.Ensemble([(Fixed(np.log(9), 1.0), plain), (Fixed(-1.0, 2.0), strict)], [2.0, 1.0])
    assert first_twice.scores(["a"])[0] == pytest.approx(np.full((1, 5), (2 * np.log(9) - 4) / 3))


def test_doubts_alone_are_read_again():
    places = [{"point": -0.5, "below": 2.0, "above": 0.5}] * 5
    found = np.array([[0.001, 0.3, 0.5, 0.8, 0.999]])
    assert text_scores.probabilities(text_scores.logits_of(found, places), places) == pytest.approx(found)

    asked: list[str] = []

    class Said:
        def __init__(self, logits: dict[str, float]) -> None:
            self.logits = logits

        def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
            harm = np.full((len(texts), 5), -9.0)
            harm[:, 1] = [self.logits[text] for text in texts]
            return harm, np.full((len(texts), 5), 1.0)

    class Others(Said):
        def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
            asked.extend(texts)
            return super().scores(texts)

    plain = [{"point": 0.0, "below": 1.0, "above": 1.0}] * 5
    first, other = Said({"calm": -3.0, "doubt": -2.0, "sure": 2.0}), Others({"calm": 5.0, "doubt": 5.0, "sure": 5.0})
    served = text_scores.InTurn(text_scores.Ensemble([(first, plain), (other, plain)]), places, 0.1)
    harm, special = served.scores(["calm", "doubt", "sure"])
    assert asked == ["doubt", "sure"] and special.shape == (3, 5)
    # Its own probability by the calibration of all, and for the rest the mean of the log-odds.
    assert text_scores.probabilities(harm, places)[0, 1] == pytest.approx(1 / (1 + np.exp(3)))
    assert harm[1:, 1] == pytest.approx([1.5, 3.5])


def test_teachers_judge_english_training_texts_that_nobody_read_whole(data: Path):
    rows = text_data.load(data, data / "authored")
    asked = [row for row in rows if text_teach.is_asked(row, 1.0)]
    assert {row.side() for row in asked} == {"train"} and all(row.sentiment < 0 for row in asked)
    ours = {row.source for row in asked if row.source.startswith("authored/")}
    assert ours == {f"authored/{name}" for name in text_data.HARM_FILES if name != "benign_lookalikes"}
    assert {"davidson", "hatexplain"} <= {row.source for row in asked}
    assert 0 < sum(text_teach.is_asked(row, 0.3) for row in asked) < len(asked)
    assert not text_teach.is_asked(Row("今天下雨了", "cold-zh", (0.0,) * 5, (1.0,) * 5), 1.0)


def test_normalised_texts_are_those_that_the_server_makes():
    cases = json.loads((ROOT / "tests" / "fixtures" / "normalise.json").read_text(encoding="utf-8"))
    assert len(cases) > 80
    for raw, expected in cases:
        assert normalise(raw) == expected, raw


def test_a_disguise_is_undone_where_only_signs_changed():
    text = "you will regret this"
    for name in ("look-alike letters", "fancy letters", "hidden signs"):
        for seed in range(20):
            changed = text_disguise.DISGUISES[name](text, random.Random(seed))
            assert normalise(changed) == text, (name, changed)


def test_the_operating_point_is_f1_best_unless_look_alikes_pay_for_it():
    scores = np.concatenate([np.linspace(2, 4, 100), np.linspace(-4, 1.9, 300)])
    labels = np.concatenate([np.ones(100), np.zeros(300)])
    ones = np.ones(400)
    assert 1.8 < text_calibrate.operating_point(scores, labels, ones, np.array([])) < 2.1
    # One look-alike in ten among the harmful costs more than the harm beside it.
    alike = np.concatenate([np.full(90, -3.0), np.full(10, 2.2)])
    assert 2.15 < text_calibrate.operating_point(scores, labels, ones, alike) < 2.3
    # One in a hundred far out is cheaper than the harm below it.
    alike = np.concatenate([np.full(99, -3.0), np.full(1, 3.8)])
    assert 1.8 < text_calibrate.operating_point(scores, labels, ones, alike) < 2.1


def test_the_mean_of_two_deltas_changes_weights_by_the_mean_of_both():
    random_ = np.random.default_rng(4)

    def delta(rank: int) -> dict[str, np.ndarray]:
        shapes = {"w.lora_a": (rank, 6), "w.lora_b": (5, rank), "b.delta": (5,), "activation.0.gelu.range": (2,)}
        return {name: random_.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    one, other = delta(2), delta(3)
    other["sentiment.bias"] = np.ones(1, np.float32)
    mean = text_average.mean(one, other)
    change = [d["w.lora_b"] @ d["w.lora_a"] for d in (one, other, mean)]
    np.testing.assert_allclose(change[2], (change[0] + change[1]) / 2, rtol=1e-5)
    assert mean["b.delta"].dtype == np.float16
    np.testing.assert_allclose(mean["b.delta"], (one["b.delta"] + other["b.delta"]) / 2, rtol=1e-3)
    # A head that one of them lacks is kept whole; ranges are measured anew.
    with pytest.raises(SystemExit, match="other inner channels"):
        text_average.mean(one, other | {"encoder.layer.0.inner.kept": np.arange(3)})
    assert mean["sentiment.bias"] == 1 and "activation.0.gelu.range" not in mean
    nearer = text_average.mean(one, other, share=0.25)
    np.testing.assert_allclose(
        nearer["w.lora_b"] @ nearer["w.lora_a"], 0.75 * change[0] + 0.25 * change[1], rtol=1e-4, atol=1e-6
    )


def test_narrowing_drops_the_channels_that_tell_least_and_keeps_what_follows_from_the_others():
    rng = np.random.default_rng(9)
    down = rng.normal(size=(4, 7)).astype(np.float32)
    activations = rng.normal(size=(500, 7)).astype(np.float32)
    # One channel never changes, hardly anything reads another, and one follows from two others.
    activations[:, 1], down[:, 4] = 2.5, 1e-4
    activations[:, 6], down[:, 6] = 0.2 * activations[:, 0] - 0.1 * activations[:, 3] + 1, 0.5
    kept = text_narrow.chosen(activations, down, 4)
    assert kept.tolist() == [0, 2, 3, 5]
    at = "encoder.layer.0"
    first, second = rng.normal(size=(4, 2)), rng.normal(size=(2, 7))
    delta = {
        f"{at}.intermediate.dense.weight.lora_b": rng.normal(size=(7, 2)), f"{at}.intermediate.dense.bias.delta": np.arange(7.0),
        f"{at}.output.dense.weight.lora_b": first, f"{at}.output.dense.weight.lora_a": second,
        f"{at}.output.dense.bias.delta": np.zeros(4), "harm.bias": np.ones(5),
    }
    narrow = text_narrow.narrowed(delta, 0, kept, activations, down, 2)
    assert narrow[f"{at}.intermediate.dense.bias.delta"].tolist() == [0, 2, 3, 5]
    assert narrow[f"{at}.intermediate.dense.weight.lora_b"].shape == (4, 2)
    assert narrow[f"{at}.inner.kept"].tolist() == kept.tolist() and narrow["harm.bias"] is delta["harm.bias"]
    change = narrow[f"{at}.output.dense.weight.lora_b"] @ narrow[f"{at}.output.dense.weight.lora_a"]
    after = down[:, kept] - first @ second[:, kept] + change
    np.testing.assert_allclose(
        activations[:, kept] @ after.T + narrow[f"{at}.output.dense.bias.delta"], activations @ down.T, atol=2e-2
    )


def test_of_a_rank_too_low_for_a_change_that_part_is_kept_which_does_most_to_the_inputs():
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(400, 6)) * [5, 5, 1e-3, 1e-3, 1e-3, 1e-3]
    change = rng.normal(size=(8, 6)) * [1, 1, 9, 9, 9, 9]
    outer, inner = text_narrow.low_ranked(change, inputs, 2)
    assert outer.shape == (8, 2) and inner.shape == (2, 6)
    left, values, right = np.linalg.svd(change)
    nearest = left[:, :2] * values[:2] @ right[:2]
    done = inputs @ change.T
    by_inputs, by_size = (np.square(inputs @ low.T - done).sum() / np.square(done).sum() for low in (outer @ inner, nearest))
    assert by_inputs < 0.02 and by_size > 0.2, (by_inputs, by_size)


def test_a_delta_is_brought_to_the_nearest_of_a_lower_rank():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(6, 20)), rng.normal(size=(30, 6)) * [9, 7, 5, 0.01, 0.01, 0.01]
    delta = {"x.weight.lora_a": a.astype(np.float32), "x.weight.lora_b": b.astype(np.float32), "x.bias.delta": np.ones(3)}
    low = text_average.of_rank(delta, 3)
    assert low["x.weight.lora_a"].shape == (3, 20) and low["x.weight.lora_b"].shape == (30, 3)
    assert np.abs(low["x.weight.lora_b"] @ low["x.weight.lora_a"] - b @ a).max() < 0.1
    assert low["x.bias.delta"] is delta["x.bias.delta"] and text_average.of_rank(delta, 6).keys() == delta.keys()


def test_logistic_regression_finds_what_made_the_labels():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6000, 5)) * [1, 10, 0.1, 1, 1] + 4
    made = np.array([1.5, -0.1, 8.0, 0.0, 0.0])
    labels = (rng.random(6000) < text_scores.sigmoid((x - 4) @ made + 0.5)).astype(float)
    weight, bias = text_calibrate.logistic(x, labels, np.ones(6000), 1.0)
    assert np.allclose(weight, made, atol=[0.15, 0.02, 1.5, 0.15, 0.15])
    assert bias == pytest.approx(0.5 - 4 * weight.sum(), abs=0.15)
    # Held back without limit, nothing but the share of the labels is left.
    weight, bias = text_calibrate.logistic(x, labels, np.ones(6000), 1e9)
    assert np.abs(weight).max() < 1e-3 and text_scores.sigmoid(x[:1] @ weight + bias)[0] == pytest.approx(labels.mean(), abs=0.01)


def test_fitted_ranges_span_zero_and_clip_little():
    random_ = np.random.default_rng(0)
    low, high = text_calibrate.fitted_range(random_.normal(size=10_000))
    assert -5 < low < -2 and 2 < high < 5
    low, high = text_calibrate.fitted_range(np.abs(random_.normal(size=10_000)))
    assert low == 0 and high > 2


def test_the_special_threshold_separates_special_from_near_misses():
    def rows(source: str, kind: int, count: int) -> list[Row]:
        return [Row("x", source, (0.0,) * 5, (1.0,) * 5, kind) for _ in range(count)]

    texts = rows("authored/special", 3, 40) + rows("authored/near_miss", 0, 40) + rows("authored/en_daily", 0, 40)
    logits = np.zeros((120, 5))
    logits[:40, 3] = 6
    logits[40:80, 0], logits[40:80, 1] = 2, 1.5
    logits[80:, 0] = 8
    threshold = text_calibrate.special_threshold(texts, logits)
    near = 1 - text_scores.softmax(logits)[40, 0]
    assert near < threshold < 0.95
    # Two special texts that look like statements are more than may be missed at any threshold that spares the near misses.
    logits[:2, 3], logits[:2, 0] = 0, 8
    assert text_calibrate.special_threshold(texts, logits) == 0.5


def test_wide_channels_are_brought_half_of_the_way_to_the_others():
    values = np.random.default_rng(2).uniform(-1, 1, (4000, 8)).astype(np.float32)
    values[:, 3] = 16 * values[:, 3] + 40
    values[:, 5] = 7
    spread, middle = text_calibrate.evened(values)
    assert spread[3] == pytest.approx(4, rel=0.02) and middle[3] == pytest.approx(40, abs=0.1) and middle[5] == 7
    assert np.delete(spread, 3) == pytest.approx(1, rel=0.02) and (spread >= 1).all()
    constant, _ = text_calibrate.evened(np.full((10, 4), 3, np.float32))
    assert (constant == 1).all()


class Guesses:
    """Scores the texts that it was told to find for hate highly, and no others."""

    def __init__(self, found: set[str]) -> None:
        self.found = found

    def scores(self, texts: list[str]) -> tuple[np.ndarray, None]:
        logits = np.full((len(texts), 5), -4.0)
        logits[[i for i, text in enumerate(texts) if text in self.found], CATEGORIES.index("hate")] = 4
        return logits, None


def test_what_readers_found_is_told_apart_from_what_the_sources_say(data):
    rows = text_data.load(data, data / "authored")
    aside = [r for r in rows if r.source == "davidson" and r.side() == "validation"]
    assert len(aside) >= 3
    # The reader takes the first for hateful, doubts the second, and finds nothing in the others, whatever their source says.
    items = [{"digest": text_data.name_of(r.text), "found": ["hate"] if n == 0 else [], "doubtful": n == 1} for n, r in enumerate(aside)]
    (data / "authored" / "readings_eval.jsonl").write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    places = [{"point": 0.0, "below": 1.0, "above": 1.0}] * 5
    said = "\n".join(text_card.read_lines(Guesses({aside[0].text, aside[2].text}), places, rows, data / "authored"))
    assert said.startswith(f"{len(aside) - 1} texts, by chance from each of 1 sources; of 1 more")
    harmless = len(aside) - 2
    assert f"| hate | 1 | 0.500 | 1.000 | {1 / harmless:.3f} |" in said
    assert "| violence | 0 | – | – | 0.000 |" in said
