"""Measuring expressions and replies: facts and copies by the server's own rules,
inputs, judges, the talk with a server, figures counted by hand, the sheet of
samples. The server is a stand-in, the judges are graphs of a few words.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from stand_in import load_script, running
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train")]

import generator_data  # noqa: E402
import generator_trees  # noqa: E402
import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from measure import MeasureError, card, expressing, expression, expression_report, inputs, judges, likeness, replies  # noqa: E402
from measure import samples  # noqa: E402
from measure.asking import EXPRESSION, MODERATION, REPLY, Course, NotInstalled, Server, digest  # noqa: E402
from measure.inputs import Input  # noqa: E402
from measure.texts import CATEGORIES  # noqa: E402
from test_encoder import forward, random_base  # noqa: E402


evaluate = load_script("evaluate")

MODEL, KEY, SHA = "alpha-4o-mini", "dk_00000000_secret-of-the-test", "cd" * 32
SECRET = "griselda"


# --- likeness: the cases of src/domain/likeness.rs -----------------------------

JOURNEY = "The 7:42 from Reading gets Anna to Paddington for £1,200, she says."


@pytest.mark.parametrize(
    ("text", "answer", "share"),
    [
        (JOURNEY, "Anna's trip, Reading to Paddington at 7:42, costs 1200", 1.0),
        (JOURNEY, "Anna goes from Reading to London at 7:42 for 1200", 0.8),
        ("Rain all day. Nobody came.", "It was quiet", 1.0),
        ("We waited 50 minutes", "Fifty long minutes", 1.0),
        ("Pocket money, paid on Saturdays", "Paid each Saturday", 1.0),
        ("I think I'm done and I'd go", "Done", 1.0),
        ("WHY IS IT 30 DEGREES", "It is 30 degrees", 1.0),
        ("7時42分の電車", "42分に乗る", 0.5),
        # Python holds words for numbers to be numeric, Rust does not.
        ("三人で行く", "誰もいない", 1.0),
        ('My boss said "You are late again"', "My boss told me off for being late", 1.0),
        ("He asked (He always asks) about it", "That question again", 1.0),
        ("Oh my God, I'm OK", "All is well", 1.0),
        ("Parcel left at number 14, signed for by Mrs. Adeyemi.", "Mrs. Adams has the parcel from number 14", 0.5),
        ("I saw Dr. Lee today", "Doctor Lee saw me", 1.0),
        ("I saw Dr. Lee today", "The doctor saw me", 0.0),
        ("A letter from J. Okafor came", "A letter came", 0.0),
        ("So did I. Then we left", "We left as well", 1.0),
        ("I turned 25 today", "I turned twenty-five today", 1.0),
        ("I turned 25 today", "I turned twenty five today", 1.0),
        ("I turned 25 today", "Of all twenty, five came", 0.0),
        ("It cost 2,350 in all", "It cost two thousand three hundred and fifty", 1.0),
        ("I came 1st", "I came first", 1.0),
        ("I came 3rd", "I came second", 0.0),
        ("On the fifth of May", "On 5 May", 1.0),
        ("Hier j'ai vu Anna au parc", "La visite d'Anna m'a plu", 1.0),
        ("La visite d’Anna m’a plu", "Elle m’a plu", 0.0),
        ("L'Espagne me manque", "Le pays me manque", 0.0),
        ("I rolled 4,5,6", "I rolled 4, 5 and 6", 1.0),
        ("I won 1,200,000", "I won 1200000", 1.0),
        ("Fourteen girls and twelve boys", "ten girls and twelve boys", 0.5),
        ("Fourteen girls and twelve boys", "14 girls and 12 boys", 1.0),
        ("My two sons sing", "Both sons sing", 1.0),
        ("One never knows, and at first I was on cloud nine for a day or two", "It was nice", 1.0),
    ],
)
def test_numbers_and_names_are_counted_as_facts(text: str, answer: str, share: float) -> None:
    assert likeness.facts_kept(text, answer) == share


@pytest.mark.parametrize(
    ("text", "answer", "count"),
    [
        ("I saw Dr. Lee on the 3rd", "Doctor Lee saw me on day three", 0),
        ("my sister anna turned twenty-five", "A toast to Anna at 25", 0),
        ("Paid on Saturdays", "Paid each Saturday", 0),
        ("Hier j'ai vu Anna", "La joie d'Anna m'a plu", 0),
        ("The bus was late", "One could say the bus, thank God, is OK, and I'm at peace for a second", 0),
        ("The bus was late", 'It said: "Wait for me" (No thanks)', 0),
        ("The bus was late", "The bus to Leeds was late on Monday in May", 3),
        ("The bus was late", "All 14 of us waited twenty minutes", 2),
        ("Mrs. Adeyemi signed", "The signature is from Mrs. Adams", 1),
    ],
)
def test_what_the_text_does_not_say_is_invented(text: str, answer: str, count: int) -> None:
    assert likeness.facts_invented(text, answer) == count


@pytest.mark.parametrize(
    ("text", "answer", "looped"),
    [
        ("I am tired", "I want to rest because I want to rest", True),
        ("I want to rest, I want to sleep", "I want to go and I want to stay", False),
        ("I am tired", "I want a rest and I want to sleep", False),
        ("I am tired", "So tired! Home was far. So tired.", True),
        ("I am tired", "Ask J. J. Lee, or Mr. Kim and Mr. Lee.", False),
        ("今日は雨です", "雨の日も悪くないと思うし雨の日も悪くない", True),
        ("今日は雨です", "雨です。本当に雨です。", False),
        ("今日は雨です", "雨です。雨です。", True),
    ],
)
def test_a_loop_is_told_from_a_refrain(text: str, answer: str, looped: bool) -> None:
    assert likeness.loops(text, answer) is looped


@pytest.mark.parametrize(
    ("text", "answer", "copy"),
    [
        ("The bus was late again.", "the bus was late AGAIN!", True),
        (
            "My sister Anna got the job in Leeds after a long search",
            "My sister Anna got the job in Leeds after the long search",
            True,
        ),
        ("The bus was late again.", "Once more the bus let me down.", False),
        ("It broke again", "It broke again, and I am so very tired of it", False),
        # What leaves much out says something shorter.
        ("It broke again on the way home from work today", "It broke again", False),
        ("今日は雨です。", "今日は雨です", True),
        ("今日は雨です。", "雨の一日も悪くないです。", False),
    ],
)
def test_a_copy_is_told_from_a_rewording(text: str, answer: str, copy: bool) -> None:
    assert likeness.repeats(text, answer) is copy


def test_facts_are_counted_one_by_one() -> None:
    assert likeness.facts(JOURNEY) == {"7:42", "1200", "reading", "anna", "paddington"}
    assert likeness.kept(JOURNEY, "Anna, at 7:42") == 2
    assert likeness.facts("Um 7:42 fährt der Zug nach Köln", "de") == {"7:42"}
    assert likeness.facts_invented("Der Bus kam", "Um 7 kam der Bus nach Köln", "de") == 1
    assert likeness.facts("Ten paciencia", "es") == set()
    # A control sign is white space in Python's eyes alone.
    assert likeness.names("said x\x1cBob to") == []


# --- replies -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "one"),
    [
        ("Well done, that took courage.", True),
        ("Ask Dr. Lee or J. Smith at 5 p.m. tomorrow!", True),
        ("Version 3.5 is a fine one 🎉.", True),
        ("That is lovely! 🎉", True),
        ("And so... you went on.", True),
        ("よく頑張りましたね、本当にすごいです。", True),
        ("Well done! That took courage.", False),
        ("It rains. It pours.", False),
        ("よく頑張りましたね。すごいです。", False),
        ("no end in sight", False),
        ("This reply was cut at a hundred…", False),
        ("A sentence. And a rest", False),
        ("", False),
    ],
)
def test_a_reply_is_one_finished_sentence_or_not(reply: str, one: bool) -> None:
    assert replies.one_sentence(reply) is one


def test_every_reply_that_people_wrote_is_one_sentence_and_two_of_them_are_not() -> None:
    written = [example.answers["reply"] for example in generator_data.written() if "reply" in example.answers]
    assert len(written) > 3000 and all(map(replies.one_sentence, written))
    assert not any(replies.one_sentence(f"{a} {b}") for a, b in zip(written[:500], written[500:1000], strict=True))


def test_a_reply_takes_up_a_word_of_its_text() -> None:
    assert replies.shares_words("My sister left", "A Sister stays one.")
    assert not replies.shares_words("She and you are off", "You are fine, and she too.")
    assert replies.shares_words("今日は雨です", "雨です、いいね") and not replies.shares_words("今日は雨です", "晴れて嬉しい")


def test_alike_are_the_same_opening_and_the_same_content() -> None:
    said = ["One two three four five six seven", "one, two three four five six eight", "Other words here", "Else", "Else so"]
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.8, 0.6, 0], [0.79, 0.61, 0]], float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert replies.alike([replies.opening(reply) for reply in said], vectors).tolist() == [1, 1, 0, 1, 1]
    assert len(replies.opening("今日は雨ですが本当に良い一日でした")) == 12


def test_alike_is_the_same_in_one_go_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((50, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    openings = [(str(i % 20),) for i in range(50)]
    whole = replies.alike(openings, vectors)
    monkeypatch.setattr(replies, "_ROWS", 7)
    assert replies.alike(openings, vectors).tolist() == whole.tolist() and whole.min() >= 1


# --- inputs --------------------------------------------------------------------


def data(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_file_has_texts_with_language_and_kind(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": "b", "lang": "de"}, {"text": " "}, {"text": "ok", "kind": "agreement"}, {"text": "x" * 501}]
    read = inputs.from_files([data(tmp_path / "mine.jsonl", *rows)])
    assert [(i.text, i.lang, i.kind) for i in read.items] == [("a", "en", "statement"), ("b", "de", "statement"), ("ok", "en", "agreement")]
    assert (read.blank, read.long, read.foreign, read.beyond_limit) == (1, 1, 0, 0)
    assert read.items[1].place == f"{tmp_path / 'mine.jsonl'}:2" and read.items[1].source == "mine"
    assert (read.files[0].name, read.files[0].texts) == ("mine.jsonl", 5)

    german = inputs.from_files([tmp_path / "mine.jsonl"], langs=["de"])
    assert [i.text for i in german.items] == ["b"] and german.foreign == 4
    first = inputs.from_files([tmp_path / "mine.jsonl"], limit=1)
    assert [i.text for i in first.items] == ["a"] and first.beyond_limit == 2
    assert first.sha256 != read.sha256


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{{"text": "{SECRET}', "is not JSON"),
        ([SECRET], "is not of the form"),
        ({"text": None}, "is not of the form"),
        ({"text": "x", "lang": f"{SECRET} 1"}, "a lang that is no language code"),
        ({"text": "x", "lang": 7}, "a lang that is no language code"),
        ({"text": "x", "kind": SECRET}, "a kind other than statement"),
        ({"text": "x", "kind": ["formula"]}, "a kind other than statement"),
    ],
)
def test_a_bad_line_is_named_by_its_place_and_not_shown(tmp_path: Path, line: Any, said: str) -> None:
    path = data(tmp_path / "x.jsonl", {"text": "fine"}, line)
    with pytest.raises(MeasureError, match=re.escape(said)) as raised:
        inputs.from_files([path])
    assert str(raised.value).startswith(f"{path}:2 ") and SECRET not in str(raised.value)


def test_no_text_at_all_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = data(tmp_path / "x.jsonl", {"text": "fine"})
    with pytest.raises(MeasureError, match="no text of 1 to 500 characters in xx: give other --data or --langs"):
        inputs.from_files([path], langs=["xx"])
    with pytest.raises(MeasureError, match="cannot be read"):
        inputs.from_files([tmp_path / "none"])


def test_our_own_lines_are_those_that_nothing_is_trained_on() -> None:
    read = inputs.kept_aside()
    train, aside = generator_data.split(generator_data.written())
    assert [i.text for i in read.items] == [example.text for example in aside if len(example.text) <= 500]
    assert not {i.text for i in read.items} & {example.text for example in train}
    assert read.files == [] and {i.kind for i in read.items} == set(inputs.KINDS)
    statement = next(i for i in read.items if i.statement)
    assert set(statement.written) == {"positive", "negative", "reply"}
    special = next(i for i in read.items if not i.statement)
    assert "positive" not in special.written


def test_a_missing_line_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_data, "WRITTEN", ("none",))
    with pytest.raises(MeasureError, match=r"none\.jsonl cannot be read .*--data"):
        inputs.kept_aside()


def test_no_line_that_is_learned_whole_is_measured_on() -> None:
    learned = {line.text for line in generator_data.written(names=generator_data.LEARNED + generator_data.PREFERRED)}
    assert len(learned) > 1000 and not learned & {item.text for item in inputs.kept_aside().items}


def test_lines_that_a_reader_put_right_have_another_answer_beside_each_refused_one() -> None:
    lines = generator_data.written(names=generator_data.PREFERRED)
    assert sum(len(line.refused) for line in lines) > 1000
    kept = {line.text for line in generator_data.split(lines)[1]}
    assert kept and not any(line.refused or line.text in kept for line in generator_data.learned())
    item = {"text": "Rain again.", "positive": "Rain, good.", "refused": {"positive": "Rain, bad."}}
    assert generator_data.example_of(item, "ours").refused == {"positive": ("Rain, bad.",)}
    for refused in ({"reply": "Sun will come."}, {"positive": "Rain, good. "}, {"positive": ""}):
        with pytest.raises(SystemExit, match=r"ours: the refused \w+ of 'Rain again\.' has no other answer"):
            generator_data.example_of(item | {"refused": refused}, "ours")


class Letters:
    """Prompts whose tokens are letters."""

    prefix, suffix, end = [1], dict.fromkeys(generator_data.TASKS, [2]), 3

    def plain(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_a_refused_answer_is_paired_with_the_one_to_the_same_task() -> None:
    answers = {"positive": "abc", "negative": "de", "reply": "f"}
    both = generator_data.Example("t", answers, "ours", refused={"reply": ("gh",), "positive": ("i",)})
    plain = generator_data.Example("t", {"reply": "f"}, "ours")
    trees = [generator_trees.Tree(example, Letters()) for example in (plain, both)]
    spoken: dict[int, list[int]] = {}
    for _, token, answer in trees[1].wanted:
        spoken.setdefault(answer, []).append(token)
    assert [bytes(said[:-1]).decode() for said in spoken.values()] == ["abc", "de", "f", "gh", "i"]
    pairs = generator_trees.Pairs(trees)
    # The only answer of the first tree is number 0, those of the second are 1 to 5.
    assert pairs.given == [0, 1, 2, 3]
    assert dict(zip(pairs.better, pairs.worse)) == {3: 4, 1: 5} and pairs.counts == [1, 1]
    losses = np.array([9.0, 5.0, 9.0, 2.0, 4.0, 4.0])
    assert dict(zip(pairs.better, pairs.lead(losses))) == {3: 2.0, 1: -1.0}


def test_every_right_answer_is_preferred_to_every_refused_one_and_they_count_once_together() -> None:
    example = generator_data.Example(
        "t", {"positive": "a", "reply": "b"}, "ours",
        # Beside the positive answer none was refused, so there is nothing to learn from the other one.
        others={"positive": ("z",), "reply": ("c",)}, refused={"reply": ("d", "e", "f")},
    )
    tree = generator_trees.Tree(example, Letters())
    said = [chr(token) for _, token, _ in tree.wanted if token > 3]
    assert said == ["a", "b", "c", "d", "e", "f"] and tree.given == 2
    assert {(said[better], said[worse]) for better, worse, _ in tree.pairs} == {(b, w) for b in "bc" for w in "def"}
    assert sum(counts for _, _, counts in tree.pairs) == pytest.approx(1)


def test_samples_are_a_hundred_held_out_english_statements_in_a_fixed_order() -> None:
    found = inputs.samples()
    aside = {i.text for i in inputs.kept_aside().items if i.lang == "en" and i.statement}
    shares = [text_data.share_of(i.text) for i in found]
    assert len({i.text for i in found} & aside) == 100 and shares == sorted(shares)
    assert max(shares) < min(text_data.share_of(text) for text in aside - {i.text for i in found})


# --- judges --------------------------------------------------------------------

# Each word has a place of its own; a text's content is how often it has each.
WORDS = ["[pad]", "[cls]", "[sep]", "[unk]", "good", "bad", "rain", "sun", "bus", "tea"]
IDS = {"cls_id": 1, "sep_id": 2, "pad_id": 0}


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[unk]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def graph_of(table: np.ndarray, output: str) -> bytes:
    """The sum of a table's rows over a text's tokens."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "one"], [output], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(table.astype(np.float32), "table"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    made = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", table.shape[1]])],
        constants,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def light_table() -> np.ndarray:
    table = np.zeros((len(WORDS), 1))
    table[WORDS.index("good")], table[WORDS.index("bad")] = 1, -1
    return table


def content_table() -> np.ndarray:
    table = np.eye(len(WORDS))
    # Neither the ends nor what tells the light is content.
    table[:6] = 0
    return table


def tiny_content(base: str = "minilm") -> judges.Graph:
    return judges.Graph(graph_of(content_table(), "embedding"), tokenizer(), IDS, 256)


def tiny_judges() -> judges.Judges:
    light = judges.Graph(graph_of(light_table(), "sentiment"), tokenizer(), IDS, 256)
    return judges.Judges(light, "tiny head", "all-minilm-l6-v2", "ef" * 32, tiny_content(), "all-minilm-l6-v2")


def built_judge(folder: Path, output: str = "sentiment") -> Path:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(graph_of(light_table(), output))
    tokenizer().save(str(folder / "tokenizer.json"))
    part = {**IDS, "window": 256}
    (folder / "manifest.json").write_text(json.dumps({"name": "tiny head", "source": "all-minilm-l6-v2", "text_classifier": part}))
    return folder


def test_a_graph_answers_in_the_order_of_the_texts_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "BATCH", 2)
    found = tiny_judges().light.run(["good good good", "bad", "good [sep] bad bad", "rain rain rain rain", "good"], "sentiment")
    assert found[:, 0].tolist() == [3, -1, -1, 0, 1]
    assert tiny_judges().positive(["good", "bad", "rain"]).tolist() == [True, False, False]


def test_a_text_is_cut_at_the_window_and_has_both_ends() -> None:
    table = np.zeros((len(WORDS), 1))
    table[1], table[2], table[WORDS.index("tea")] = 100, 1000, 1
    graph = judges.Graph(graph_of(table, "sentiment"), tokenizer(), IDS, 5)
    assert graph.run(["tea tea tea tea tea", "tea"], "sentiment")[:, 0].tolist() == [1103, 1101]


def test_cosines_are_of_contents() -> None:
    rain, both, none = tiny_judges().vectors(["rain rain", "good rain sun", "good"])
    assert rain @ both == pytest.approx(0.5**0.5) and rain @ rain == pytest.approx(1) and rain @ none == 0


def test_a_built_judge_is_loaded_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "content", tiny_content)
    found = judges.load(built_judge(tmp_path / "text"), "minilm")
    assert (found.light_name, found.light_base, found.content_base) == ("tiny head", "all-minilm-l6-v2", "all-minilm-l6-v2")
    assert len(found.light_digest) == 64 and found.positive(["good", "bad"]).tolist() == [True, False]
    assert found.reads("en") and not found.reads("de")
    assert not judges.load(tmp_path / "text", "multilingual-e5").reads("de")


def test_a_judge_that_cannot_judge_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "content", tiny_content)
    with pytest.raises(MeasureError, match="no text classifier is built in .*make models.*--judge"):
        judges.load(tmp_path / "none", "minilm")
    with pytest.raises(MeasureError, match="has no sentiment head.*--judge"):
        judges.load(built_judge(tmp_path / "headless", "harm"), "minilm")
    broken = built_judge(tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(MeasureError, match="cannot be loaded.*make models"):
        judges.load(broken, "minilm")
    for other in ("[]", "{}", '{"name": "x", "source": "y", "generator": {}}', "no json"):
        (broken / "manifest.json").write_text(other)
        with pytest.raises(MeasureError, match="not of a text classifier.*--judge"):
            judges.load(broken, "minilm")


def test_a_missing_base_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICHROIC_CACHE", str(tmp_path))
    monkeypatch.delenv("DICHROIC_SOURCE_ALL_MINILM_L6_V2", raising=False)
    with pytest.raises(MeasureError, match="not in the cache: run scripts/setup --source all-minilm-l6-v2"):
        judges.content("minilm")


def test_contents_are_the_pooled_states_of_the_published_base(tmp_path: Path) -> None:
    base = random_base(96, 192, 1, 8)
    save_file(base, str(tmp_path / "model.safetensors"))
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    kind = encoder.Backbone(12, 1e-12, 1, 2, 0)
    graph = judges.of_base(kind, {name: tmp_path / name for name in ("model.safetensors", "tokenizer.json")})
    found = graph.run(["rain sun", "bus"], "embedding")
    heads = {f"{h}.weight": np.zeros((5, n), np.float32) for h, n in (("harm", 192), ("expressibility", 96))}
    whole = {**base, **heads, **{f"{h}.bias": np.zeros(5, np.float32) for h in ("harm", "expressibility")}}
    for got, ids in zip(found, ([1, 6, 7, 2], [1, 8, 2]), strict=True):
        np.testing.assert_allclose(got, forward(whole, ids)["embedding"], atol=2e-3)


# --- the server ----------------------------------------------------------------


class Fake(ThreadingHTTPServer):
    """Answers from `known`, by text: positive, negative, reply. `broken` goes by path and first word."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.installed = [MODEL]
        self.known: dict[str, tuple[str, str, str]] = {}
        self.broken: dict[tuple[str, str], tuple[int, Any]] = {}
        self.moderated: list[str] = []
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go out one by one: without this each answer waits 40 ms.
    disable_nagle_algorithm = True
    server: Fake

    def do_GET(self) -> None:
        series = f'dichroic_model_info{{component="generator",device="cpu",model="{MODEL}",sha256="{SHA}"}} 1\n'
        self.answer(200, series.encode() if self.path == "/metrics" else b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text, model = body["text"], body["model"]
        first = (text.split() or [""])[0]
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, error("invalid_api_key"))
        elif len(body) != 2 or len(text) > 500 or not text.strip():
            self.answer(400, error("text_too_long"))
        elif model not in self.server.installed:
            self.answer(501, error("model_not_installed"))
        elif (self.path, first) in self.server.broken:
            status, answer = self.server.broken[self.path, first]
            self.answer(status, json.dumps(answer).encode())
        elif self.path == MODERATION:
            with self.server.lock:
                self.server.moderated.append(text)
            scores = dict.fromkeys(CATEGORIES, 0.1) | ({"hate": 0.5} if "awful" in text else {})
            self.answer(200, json.dumps({"category_scores": scores}).encode())
        else:
            positive, negative, reply = self.server.known.get(text, (f"good {text}", f"bad {text}", f"{model} says fine."))
            said = {"positive": positive, "negative": negative} if self.path == EXPRESSION else {"text": reply}
            self.answer(200, json.dumps(said).encode())

    def answer(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": f"{SECRET} said so"}}).encode()


def rejected(code: str = "generation_rejected") -> tuple[int, Any]:
    return 500, json.loads(error(code))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with running(Fake()) as server:
        yield server


def given(*found: str, kind: str = "statement", lang: str = "en") -> list[Input]:
    return [Input(text, lang, kind, "made", f"made:{i}") for i, text in enumerate(found, 1)]


def ask(fake: Fake, *found: str, connections: int = 1, **more: Any) -> list[expressing.Said]:
    return expressing.ask_all(Server(fake.url, KEY, MODEL), given(*found), connections, **more)[0]


def test_answers_come_back_in_the_order_of_the_texts(fake: Fake) -> None:
    said = ask(fake, *(f"rain {i}" for i in range(40)), connections=4)
    assert [s.expressions for s in said] == [(f"good rain {i}", f"bad rain {i}") for i in range(40)]
    assert all(s.reply == f"{MODEL} says fine." and not s.errors and not s.inexpressible for s in said)
    assert all(s.seconds.keys() == s.flagged.keys() == {EXPRESSION, REPLY} for s in said)
    assert digest(Server(fake.url, KEY, MODEL), "generator") == SHA


def test_false_counts_only_in_both_fields(fake: Fake) -> None:
    fake.known = {"ok": ("false", "false", "Fine."), "it is": ("false", "true", "Fine.")}
    ok, half = ask(fake, "ok", "it is")
    assert ok.inexpressible and ok.expressions is None and ok.reply == "Fine." and EXPRESSION in ok.seconds
    assert not half.inexpressible and half.expressions == ("false", "true")


def test_what_fails_one_text_is_counted_by_its_code(fake: Fake) -> None:
    fake.broken = {
        (EXPRESSION, "hard"): rejected(),
        (REPLY, "late"): rejected("deadline_exceeded"),
        (REPLY, "odd"): (400, {"error": {"code": SECRET + " 1"}}),
        (EXPRESSION, "empty"): (200, {"positive": "good", "negative": " "}),
    }
    hard, late, odd, empty = ask(fake, "hard", "late", "odd", "empty")
    assert hard.errors == {EXPRESSION: "generation_rejected"} and hard.expressions is None and hard.reply
    assert EXPRESSION not in hard.seconds and not hard.inexpressible
    assert late.errors == {REPLY: "deadline_exceeded"} and late.reply is None and late.expressions
    assert odd.errors == {REPLY: "no code"}
    assert empty.errors == {EXPRESSION: "blank_answer"} and empty.expressions is None


def test_every_answer_is_moderated_in_pieces_where_it_is_long(fake: Fake) -> None:
    fake.known = {"rain": ("good awful", "x " * 260 + "awful", "Fine."), "sun": ("good", "bad", "An awful word.")}
    rain, sun = ask(fake, "rain", "sun")
    assert (rain.flagged, sun.flagged) == ({EXPRESSION: 2, REPLY: 0}, {EXPRESSION: 0, REPLY: 1})
    fake.moderated.clear()
    assert ask(fake, "rain", moderate=False)[0].flagged == {} and fake.moderated == []


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        (EXPRESSION, (501, {"error": {"code": "model_not_installed"}}), "no generator of alpha-4o-mini installed"),
        (REPLY, (501, {"error": {"code": "model_not_installed"}}), "no generator of alpha-4o-mini installed"),
        (MODERATION, (501, {"error": {"code": "model_not_installed"}}), "no text moderation of alpha-4o-mini installed"),
        (EXPRESSION, (400, {"error": {"code": "unknown_model"}}), "knows no model alpha-4o-mini"),
        (EXPRESSION, (401, {"error": {"code": "insufficient_scope"}}), "does not accept the key (insufficient_scope)"),
        (REPLY, (404, {}), "there is no /v1/sunshines/text at http://127.0.0.1"),
        (EXPRESSION, (200, {"positive": SECRET}), "for made:1 has no positive and negative: ask a Dichroic server"),
        (EXPRESSION, (200, {"positive": SECRET, "negative": None}), "for made:1 has no positive and negative"),
        (REPLY, (200, [SECRET]), "for made:1 has no text: ask a Dichroic server"),
        (MODERATION, (500, {"error": {"code": "internal_error"}}), "500 (internal_error) for an answer to made:1"),
    ],
)
def test_what_would_fail_every_text_ends_the_run_without_the_text(fake: Fake, path: str, answer: tuple, said: str) -> None:
    fake.known[f"{SECRET} speaks"] = (f"{SECRET} gladly", "bad", "Fine.")
    fake.broken[path, SECRET] = answer
    with pytest.raises(MeasureError, match=re.escape(said)) as raised:
        ask(fake, f"{SECRET} speaks", *(["rain"] * 20), connections=2)
    assert SECRET not in str(raised.value)
    assert isinstance(raised.value, NotInstalled) is (answer[0] == 501)


def test_a_text_does_not_show_in_any_repr(fake: Fake) -> None:
    item = Input(SECRET, "en", "statement", "made", "made:1", {"reply": SECRET})
    said = ask(fake, SECRET)[0]
    answer = expression.expressed([item], [said])[0]
    assert SECRET not in f"{item!r} {said!r} {answer!r}"


# --- figures -------------------------------------------------------------------


def pair(text: str, positive: str, negative: str, lang: str = "en", flagged: int | None = 0) -> expression.Answer:
    return expression.Answer(text, lang, (positive, negative), flagged)


def cells_of(header: tuple[str, ...], cells: list[str]) -> dict[str, str]:
    return dict(zip(header, cells, strict=True))


def test_a_row_of_expressions_counted_by_hand() -> None:
    answers = [
        # Both right; Anna is lost by the second.
        pair("rain for Anna at 5", "good rain Anna five", "bad sun 5"),
        # The first is a copy, and neither positive nor negative; the second positive.
        pair("rain sun", "rain, sun!", "good tea", flagged=1),
    ]
    row = cells_of(expression.PAIR_HEADER, expression.pair_cells(expression.pairs(answers, tiny_judges())))
    # Contents (the unknown words are none): rain|rain, rain|sun; rain sun|rain sun, rain sun|tea.
    lengths = sorted([19 / 18, 9 / 18, 10 / 8, 8 / 8])
    assert row == {
        "texts": "2",
        "positive right": "50.0 %",
        "negative right": "50.0 %",
        "both right": "50.0 %",
        "facts kept": "75.0 %",
        "all kept": "50.0 %",
        "copies": "1",
        "content": "0.50",
        "distinct": "1.00",
        "length": f"{(lengths[1] + lengths[2]) / 2:.2f}",
        "flagged": "1",
    }


def test_an_expression_that_the_judge_sees_in_neither_light_is_negative() -> None:
    (found,) = expression.pairs([pair("sun", "tea", "tea")], tiny_judges())
    assert found.right == (False, True)


def test_a_row_of_replies_counted_by_hand() -> None:
    said = ["One sun for you.", "one sun for you?", "Two. Teas.", "Rain"]
    answers = [expression.Answer("sun here", "en", (reply,), i % 2) for i, reply in enumerate(said)]
    row = cells_of(expression.REPLY_HEADER, expression.reply_cells(expression.reply_figures(answers, tiny_judges())))
    # The first two alone speak of the sun, in the same words; "here" is in none.
    assert row == {
        "texts": "4",
        "one sentence": "50.0 %",
        "words shared": "0.0 %",
        "content": "0.50",
        "alike": "50.0",
        "largest set": "50.0",
        "flagged": "2",
    }


def test_figures_of_nothing_are_dashes() -> None:
    assert set(expression.pair_cells([])) == {"0", "–"} and set(expression.reply_cells([])) == {"0", "–"}
    assert expression.pairs([], tiny_judges()) == expression.reply_figures([], tiny_judges()) == []


def test_operations_count_errors_and_time_what_was_generated() -> None:
    def said(expressions: tuple[str, str] | None, seconds: float | None, **more: Any) -> expressing.Said:
        timed = {} if seconds is None else {EXPRESSION: seconds}
        return expressing.Said(expressions, more.get("inexpressible", False), None, more.get("errors", {}), timed, {})

    found = [
        said(("good", "bad"), 0.3),
        said(("good", "tea"), 0.1),
        # Both without a generator's work: neither makes the model look fast.
        said(None, 0.001, inexpressible=True),
        said(None, None, errors={EXPRESSION: "deadline_exceeded"}),
    ]
    items = inputs.Inputs(given("a", "b", "c", "d"), [])
    run = expression_report.Run(MODEL, None, items, found, Course(9, 3), 2, tiny_judges())
    made = expression_report.report(run, expression_report.judged(run))
    assert cells(made, f"`{EXPRESSION}`") == ["4", "3", "200", "290", "deadline_exceeded 1"]
    assert cells(made, f"`{REPLY}`") == ["4", "0", "–", "–", "none"]
    assert "9 s over 2 connections, told to come back later (429) 3 times" in made
    assert "2 expressions were given word for word more than once" in made and "Generator: manifest" not in made


def test_languages_come_after_all_and_the_commonest_first() -> None:
    found = [Input("x", lang, "statement", "", "") for lang in ("de", "en", "en", "fr")]
    assert [(name, len(part)) for name, part in expression.by_language(found)] == [("all", 4), ("en", 2), ("de", 1), ("fr", 1)]


# --- the script ----------------------------------------------------------------

ROWS = [
    {"text": f"rain {SECRET} Anna 5"},
    {"text": f"sun {SECRET}", "lang": "de"},
    {"text": f"hard {SECRET}"},
    {"text": "lost"},
    {"text": "ok", "kind": "acknowledgement"},
    {"text": "yes", "kind": "agreement"},
]


def cells(report: str, name: str, table: int = 0) -> list[str]:
    found = [line.strip("| ").split(" | ")[1:] for line in report.splitlines() if line.startswith(f"| {name} |")]
    return found[table]


@pytest.fixture
def script(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `evaluate expression` against the stand-in, with judges of a few words."""
    monkeypatch.setattr(judges, "content", tiny_content)
    fake.known = {
        f"rain {SECRET} Anna 5": ("good rain Anna 5", "good sun", "Rain passes."),
        f"sun {SECRET}": (f"good sun {SECRET}", "bad tea awful", "Sun. Sun."),
        "lost": ("false", "false", "Found."),
        "ok": ("false", "false", "Fine."),
    }
    fake.broken = {(EXPRESSION, "hard"): rejected(), (REPLY, "hard"): rejected("internal_error")}
    judge = built_judge(tmp_path / "judge")
    (tmp_path / "key").write_text(KEY + "\n")

    def run(*more: str, rows: list[Any] | None = ROWS) -> None:
        arguments = ["expression", "--model", MODEL, "--judge", str(judge), "--url", fake.url, "--key-file", str(tmp_path / "key")]
        if rows is not None:
            arguments += ["--data", str(data(tmp_path / "set.jsonl", *rows))]
        evaluate.main([*arguments, *more], tmp_path)

    return run


def test_the_report_holds_every_count_and_no_text(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("--concurrency", "3")
    out, err = capsys.readouterr()

    assert cells(out, "all")[:6] == ["2", "100.0 %", "50.0 %", "50.0 %", "50.0 %", "50.0 %"]
    assert cells(out, "en")[:4] == ["1", "100.0 %", "0.0 %", "0.0 %"]
    assert cells(out, "de")[:6] == ["1", "100.0 %", "100.0 %", "100.0 %", "–", "–"]
    assert (cells(out, "all")[6], cells(out, "all")[10], cells(out, "de")[10]) == ("0", "1", "1")
    # Replies: three of four statements were answered; the special texts have a row of their own.
    assert cells(out, "all", 1)[:2] == ["3", "66.7 %"] and cells(out, "to special texts")[0] == "2"
    # "false": one of two special texts, and one of three statements without an error.
    assert cells(out, "all", 2) == ["2", "50.0 %", "3", "33.3 %"]
    assert cells(out, "de", 2) == ["0", "–", "1", "0.0 %"]
    assert cells(out, "agreement") == ["1", "0.0 %", "0", "–"]
    asked = cells(out, f"`{EXPRESSION}`")
    assert asked[:2] == ["6", "5"] and asked[4] == "generation_rejected 1"
    assert cells(out, f"`{REPLY}`")[4] == "internal_error 1"
    assert "6 texts, 4 of them statements" in out and f"manifest SHA-256 `{SHA}`" in out
    assert "tiny head" in out and "reads mainly English" in out and "What people wrote" not in out
    for secret in (SECRET, KEY, str(tmp_path), "Anna", "Rain passes"):
        assert secret not in out and secret not in err


def test_languages_and_limit_are_told(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script("--langs", "en", "--limit", "2")
    out = capsys.readouterr().out
    assert "1 in languages that were not asked for, 3 beyond the limit" in out and "reads mainly English" not in out


def test_our_own_lines_are_set_beside_what_people_wrote(script: Any, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    script("--limit", "60", rows=None)
    out = capsys.readouterr().out
    assert "the tenth of our own lines that training keeps aside" in out and "| near misses |" in out
    assert "What people wrote for the same texts" in out
    model, people = cells(out, "all"), cells(out, "all", 3)
    assert int(people[0]) == int(model[0]) > 20 and people[10] == "–"
    # The stand-in repeats the text behind one word, and one sentence is all it says; people do neither.
    assert (model[1:4], model[4]) == (["100.0 %"] * 3, "100.0 %") and people[6] == "0"
    assert float(cells(out, "all", 1)[4]) == 100 > float(cells(out, "all", 4)[4])
    statement = next(item.text for item in inputs.kept_aside(limit=60).items if item.statement)
    assert statement not in out


def test_card_and_out_take_the_report(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="so no card can be written: give an identifier of models/"):
        script("--card")
    folder = tmp_path / "models" / MODEL
    folder.mkdir(parents=True)
    (folder / "expression-card.md").write_text("# Card\n\nWritten by hand.\n")
    for _ in range(2):
        script("--card", "--out", str(tmp_path / "out"))
    made = (folder / "expression-card.md").read_text()
    assert made.startswith(f"# Card\n\nWritten by hand.\n\n{card.BEGIN}\n## Expressions and replies of {MODEL}")
    assert made.count(card.BEGIN) == made.count(card.END) == 1 and "\n### Replies\n" in made and SECRET not in made
    assert (tmp_path / "out" / "expression.md").read_text().startswith(f"# Expressions and replies of {MODEL}")
    assert capsys.readouterr().out == ""


def test_data_and_judge_are_read_before_anything_is_asked(script: Any, fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"set\.jsonl:1 is not of the form"):
        script(rows=[{"label": SECRET}])
    with pytest.raises(SystemExit, match="has no sentiment head"):
        script("--judge", str(built_judge(tmp_path / "headless", "harm")))
    assert fake.moderated == []


def test_the_judge_is_that_of_alpha_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "content", tiny_content)
    path = data(tmp_path / "x.jsonl", *ROWS)
    arguments = ["expression", "--model", "delta-3.1", "--data", str(path)]
    with pytest.raises(SystemExit, match="no text classifier is built in .*/models/alpha-4o-mini/build/text: run make models"):
        evaluate.main(arguments, tmp_path)
    built_judge(tmp_path / "models" / "alpha-4o-mini" / "build" / "text")
    with pytest.raises(SystemExit, match="no generator of delta-3.1 is built here: run make models, or give --url"):
        evaluate.main(arguments, tmp_path)
    (tmp_path / "models" / "delta-3.1" / "build" / "generator").mkdir(parents=True)
    (tmp_path / "models" / "delta-3.1" / "build" / "generator" / "manifest.json").write_text("{}")
    with pytest.raises(SystemExit, match="no text classifier of delta-3.1 is built here"):
        evaluate.main(arguments, tmp_path)
    built_judge(tmp_path / "models" / "delta-3.1" / "build" / "text")
    with pytest.raises(SystemExit, match="cannot be started .* run make build first"):
        evaluate.main(arguments, tmp_path)


def test_a_wrong_key_or_an_absent_server_ends_the_run(script: Any, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("wrong")
    with pytest.raises(SystemExit, match="does not accept the key"):
        script("--key-file", str(tmp_path / "other"))
    with pytest.raises(SystemExit, match="gives no answer"):
        script("--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "wrong",
    [
        ["expression"],
        ["expression", "--model", "../x"],
        ["expression", "--model", MODEL, "--limit", "0"],
        ["expression", "--model", MODEL, "--encoder", "none"],
        ["expression", "--model", MODEL, "--key-file", "k"],
        ["samples", "--url", "http://127.0.0.1:1", "--binary", "b"],
        ["samples", "--model", MODEL],
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        evaluate.main(wrong)
    assert raised.value.code == 2


# --- the sheet -----------------------------------------------------------------


def sheet_of(fake: Fake, tmp_path: Path, *more: str, catalog: Any = None) -> Path:
    (tmp_path / "models").mkdir(exist_ok=True)
    names = [MODEL, "beta-3-haiku", "delta-3.1"]
    (tmp_path / "models" / "catalog.json").write_text(json.dumps({"models": names} if catalog is None else catalog))
    (tmp_path / "key").write_text(KEY)
    evaluate.main(["samples", "--url", fake.url, "--key-file", str(tmp_path / "key"), *more], tmp_path)
    return tmp_path / "models" / "SAMPLES.md"


def test_the_sheet_has_a_hundred_texts_with_all_answers_side_by_side(fake: Fake, tmp_path: Path) -> None:
    fake.installed = [MODEL, "delta-3.1"]
    texts = [item.text for item in inputs.samples()]
    fake.known[texts[0]] = ("good <b> | *x*\nnew & $5", "bad", "Fine.")
    fake.known[texts[1]] = ("false", "false", "Fine.")
    fake.broken[EXPRESSION, texts[2].split()[0]] = rejected()
    made = sheet_of(fake, tmp_path).read_text()

    assert len(re.findall(r"^## \d+$", made, re.MULTILINE)) == 100 and made.count(f"| {MODEL} | delta-3.1 |") == 100
    assert f"- {MODEL}: generator manifest SHA-256 `{SHA}`" in made and "- beta-3-haiku: not installed" in made
    assert "- delta-3.1: generator of unknown digest" in made
    first, second, third, fourth = (re.search(rf"^## {n}\n.*?(?=\n## )", made, re.MULTILINE | re.DOTALL)[0] for n in (1, 2, 3, 4))
    assert "| positive | good &lt;b> \\| \\*x\\*<br>new &amp; \\$5 | good &lt;b>" in first
    assert "| positive | `false` | `false` |" in second and "| reply | Fine. | Fine. |" in second
    assert "| negative | *no answer (generation rejected)* | *no answer (generation rejected)* |" in third
    assert f"| reply | {MODEL} says fine. | delta-3.1 says fine. |" in third
    assert samples.shown(texts[3]) in fourth and fake.moderated == []


def test_a_sheet_needs_a_catalog_and_a_model(fake: Fake, tmp_path: Path) -> None:
    fake.installed = []
    with pytest.raises(SystemExit, match="no generator installed: run make models where it runs"):
        sheet_of(fake, tmp_path)
    for broken in ([], {"models": ["../x"]}):
        with pytest.raises(SystemExit, match="is no catalog of models: restore it"):
            sheet_of(fake, tmp_path, catalog=broken)
    assert not (tmp_path / "models" / "SAMPLES.md").exists()


def test_a_sheet_of_its_own_server_needs_something_built(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "catalog.json").write_text(json.dumps({"models": [MODEL]}))
    with pytest.raises(SystemExit, match="no model with a generator is built here: run make models, or give --url"):
        evaluate.main(["samples"], tmp_path)


def test_a_server_is_started_with_all_that_is_built(tmp_path: Path) -> None:
    names = [MODEL, "beta-3-haiku", "delta-3.1"]
    for name, parts in zip(names, (("generator", "text"), ("text",), ("generator", "text")), strict=True):
        for part in parts:
            folder = tmp_path / "models" / name / "build" / part
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
    (tmp_path / "models" / "catalog.json").write_text(json.dumps({"models": names}))
    binary = tmp_path / "server"
    binary.write_text(f'#!/bin/sh\necho "$DICHROIC_MODELS" > {tmp_path}/asked\nexit 3\n')
    binary.chmod(0o755)
    with pytest.raises(SystemExit, match="the server exited with 3 before it was ready"):
        evaluate.main(["samples", "--binary", str(binary)], tmp_path)
    assert (tmp_path / "asked").read_text() == f"{MODEL},delta-3.1\n"


def test_the_sheet_goes_to_another_folder_where_asked(fake: Fake, tmp_path: Path) -> None:
    assert not sheet_of(fake, tmp_path, "--out", str(tmp_path / "new")).exists()
    assert (tmp_path / "new" / "SAMPLES.md").read_text().startswith("# Samples\n")
