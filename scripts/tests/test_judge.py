"""The judge of answers: its conversion against plain arithmetic, what it learns from, and the built one."""

from __future__ import annotations

import json
import lzma
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train"), str(ROOT / "scripts" / "tests")]

import generator_data  # noqa: E402
import judge_data  # noqa: E402
from forge import built_graph, encoder, judge, judge_half  # noqa: E402
from judge_data import Item  # noqa: E402
from test_encoder import feed, forward, random_base, session  # noqa: E402


@pytest.fixture(scope="module")
def base() -> dict[str, np.ndarray]:
    return random_base(384, 768, 2, 5)


@pytest.fixture(scope="module")
def delta() -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    out = {"verdict.weight": random.standard_normal((6, 768)), "verdict.bias": random.standard_normal(6)}
    for i in range(2):
        for site, low, high in (("attention", -5, 5), ("context", -3, 3), ("inner", -5, 5), ("gelu", -0.17, 6)):
            out[f"activation.{i}.{site}.range"] = np.array([low, high])
    return {name: value.astype(np.float32) for name, value in out.items()}


def test_its_graph_gives_verdicts_over_the_mean_and_the_highest_state(base, delta):
    merged = encoder.merge(base, delta, judge.HEADS)
    rows = [[101, 5, 9, 102, 7, 102], [101, 7, 102]]
    found = session(encoder.graph(merged, encoder.BACKBONES["minilm"], "float32", heads=judge.HEADS)).run(["verdict"], feed(rows))[0]
    # The encoder's own arithmetic is compared in test_encoder.py, with heads of another kind.
    heads = {"harm.weight": merged["verdict.weight"], "harm.bias": merged["verdict.bias"]}
    heads |= {"expressibility.weight": merged["verdict.weight"][:5, :384], "expressibility.bias": merged["verdict.bias"][:5]}
    # Words are kept in half precision.
    words = "embeddings.word_embeddings.weight"
    halved = merged | heads | {words: merged[words].astype(np.float16).astype(np.float32)}
    wanted = [forward(halved, row)["harm"] for row in rows]
    assert np.abs(found - wanted).max() < 1e-3


def test_it_tells_what_has_nothing_to_express_where_it_was_taught(base, delta):
    random = np.random.default_rng(7)
    head = {"expressibility.weight": random.standard_normal((5, 384)), "expressibility.bias": random.standard_normal(5)}
    head = {name: value.astype(np.float32) for name, value in head.items()}
    rows = [[101, 5, 9, 102], [101, 7, 102]]
    kind = encoder.BACKBONES["minilm"]
    graph = encoder.graph(encoder.merge(base, delta | head, judge.HEADS), kind, "float32", heads=judge.HEADS, embedding=True)
    verdict, found, states = session(graph).run(["verdict", "expressibility", "embedding"], feed(rows))
    np.testing.assert_allclose(found, states @ head["expressibility.weight"].T + head["expressibility.bias"], atol=1e-3)
    alone = session(encoder.graph(encoder.merge(base, delta, judge.HEADS), kind, "float32", heads=judge.HEADS))
    np.testing.assert_array_equal(alone.run(["verdict"], feed(rows))[0], verdict)


@pytest.mark.parametrize("change", [{"verdict.weight": np.zeros((5, 768), np.float32)}, {"harm.weight": np.zeros((5, 768), np.float32)}])
def test_a_delta_of_something_else_is_refused(base, delta, change):
    with pytest.raises(ValueError, match="export it again"):
        encoder.merge(base, delta | change, judge.HEADS)


def test_the_build_tells_the_server_how_to_ask(base, delta, tmp_path):
    save_file(base, str(tmp_path / "model.safetensors"))
    save_file(delta, str(tmp_path / "judge.safetensors"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None}), encoding="utf-8")
    (tmp_path / "out").mkdir()
    source = {name: tmp_path / name for name in ("model.safetensors", "tokenizer.json")}
    told = judge.build(source, {"delta": "judge.safetensors"}, tmp_path, tmp_path / "out")
    assert told == {
        "cls_id": 101, "sep_id": 102, "pad_id": 0, "text_tokens": 120, "answer_tokens": 133, "languages": "any",
        "verdicts": ["positive", "negative", "reply", "good", "bad", "plain"],
    }
    assert told["text_tokens"] + told["answer_tokens"] + 3 == encoder.PLACES
    model = built_graph.load(tmp_path / "out" / "model.onnx")
    assert [output.name for output in model.graph.output] == ["verdict"]


@pytest.mark.parametrize("verdicts", [True, False])
def test_a_judge_of_situations_has_what_people_wrote_beside_it(base, delta, tmp_path, verdicts):
    random = np.random.default_rng(8)
    head = {"situation.weight": random.standard_normal((3, 384)), "situation.bias": random.standard_normal(3)}
    # A wide head is kept as factors.
    head |= {"attitude.weight.lora_a": random.standard_normal((2, 384)), "attitude.weight.lora_b": random.standard_normal((4, 2))}
    head |= {"attitude.bias": random.standard_normal(4)}
    tuned = {name: value for name, value in delta.items() if verdicts or not name.startswith("verdict")}
    tuned |= {name: value.astype(np.float32) for name, value in head.items()}
    save_file(base, str(tmp_path / "model.safetensors"))
    save_file(tuned, str(tmp_path / "judge.safetensors"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None}), encoding="utf-8")
    source = {name: tmp_path / name for name in ("model.safetensors", "tokenizer.json")}
    recipe = {"delta": "judge.safetensors", "situations": "situations.json.xz", "languages": "english"}

    def built(written: dict, recipe: dict) -> dict:
        (tmp_path / "situations.json.xz").write_bytes(lzma.compress(json.dumps(written).encode()))
        (tmp_path / "out").mkdir(exist_ok=True)
        return judge.build(source, recipe, tmp_path, tmp_path / "out")

    written = {"least": 0.5, "names": ["won", "lost", "late"], "attitudes": {"en": [["Good.", "Fine."], ["Bad."], ["Oh!"]]}}
    told = built(written, recipe)
    assert ("verdicts" in told) == verdicts and told["situations"] == "situations.json" and told["languages"] == "english"
    assert json.loads((tmp_path / "out" / "situations.json").read_text(encoding="utf-8")) == written
    situations, attitudes = session(tmp_path / "out" / "model.onnx").run(["situation", "attitude"], feed([[101, 5, 9, 102]]))
    assert (situations.shape, attitudes.shape) == ((1, 3), (1, 4))
    with pytest.raises(ValueError, match="as many situations"):
        built({**written, "names": ["won"]}, recipe)
    with pytest.raises(ValueError, match="as many attitudes"):
        built({**written, "attitudes": {"en": [["Good."], ["Bad."], []]}}, recipe)
    with pytest.raises(ValueError, match="name that file"):
        built(written, {"delta": "judge.safetensors"})
    # One that tells no situations has no names of any.
    save_file({name: value for name, value in tuned.items() if not name.startswith("situation")}, str(tmp_path / "judge.safetensors"))
    with pytest.raises(ValueError, match="as many situations"):
        built(written, recipe)
    assert built({"attitudes": written["attitudes"]}, recipe)["situations"] == "situations.json"


def test_a_judge_of_nothing_is_refused(base, delta, tmp_path):
    save_file(base, str(tmp_path / "model.safetensors"))
    save_file({name: value for name, value in delta.items() if not name.startswith("verdict")}, str(tmp_path / "judge.safetensors"))
    with pytest.raises(ValueError, match="neither verdicts nor what was written beforehand"):
        judge.merged({"model.safetensors": tmp_path / "model.safetensors"}, {"delta": "judge.safetensors"}, tmp_path)


def test_for_gpus_it_is_built_in_half_precision_of_the_same_recipe(base, delta, tmp_path):
    save_file(base, str(tmp_path / "model.safetensors"))
    save_file(delta, str(tmp_path / "judge.safetensors"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None}), encoding="utf-8")
    source = {name: tmp_path / name for name in ("model.safetensors", "tokenizer.json")}
    told, found = [], []
    for name, module in (("full", judge), ("half", judge_half)):
        (tmp_path / name).mkdir()
        told.append(module.build(source, {"delta": "judge.safetensors"}, tmp_path, tmp_path / name))
        found.append(session(tmp_path / name / "model.onnx").run(["verdict"], feed([[101, 5, 9, 102, 7, 102], [101, 7, 102]]))[0])
    assert told[0] == told[1]
    # One rounds activations to 8 bits, the other everything to 16.
    np.testing.assert_allclose(found[1], found[0], atol=0.05 * float(np.abs(found[0]).max()))
    weights = built_graph.load(tmp_path / "half" / "model.onnx").graph.initializer
    assert not [tensor.name for tensor in weights if tensor.data_type == TensorProto.FLOAT]


def test_a_text_and_its_answer_are_one_sequence():
    words = {word: number for number, word in enumerate(["[UNK]", "it", "rained", "how", "sad"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    kind = encoder.Backbone(1, 1e-5, 7, 8, 9)
    items = [Item("it rained", "how sad", 2, (1.0,)), Item("it rained", "", None, (0.0, 1.0, 0.0)), Item("it " * 500, "how " * 500, 0, (0.0,))]
    found = judge_data.windows(tokenizer, kind, items)
    assert found[:2] == [[7, 1, 2, 8, 3, 4, 8], [7, 1, 2, 8]]
    assert len(found[2]) == encoder.PLACES and found[2][121] == 8


def test_no_text_is_on_both_sides():
    items = judge_data.judged()
    assert len({item.text for item in items}) > 2_500
    aside = {item.text for item in items if generator_data.judged_aside(item.text)}
    assert 0.05 < len(aside) / len({item.text for item in items}) < 0.15
    # Each task has right and wrong answers, and no answer is both to the readers of one file.
    for task in range(3):
        worth = {target: {(item.file, item.text, item.answer) for item in items if item.task == task and item.target == (target,)} for target in (0.0, 1.0)}
        assert all(len(found) > 1_000 for found in worth.values()) and not worth[0.0] & worth[1.0]
    learned, moods_aside = judge_data.moods()
    assert not {item.text for item in learned} & {item.text for item in moods_aside}
    assert all(abs(sum(item.target) - 1) < 1e-9 for item in learned)


def test_what_a_judge_is_worth_is_told_by_right_answers_before_wrong_ones():
    items = [Item("a", "x", 0, (1.0,)), Item("a", "y", 0, (0.0,)), Item("b", "x", 0, (0.0,)), Item("b", "y", 0, (1.0,))]
    good = judge_data.told(np.array([[2.0] * 6, [1.0] * 6, [0.0] * 6, [3.0] * 6]), items)
    poor = judge_data.told(np.array([[1.0] * 6, [2.0] * 6, [3.0] * 6, [0.0] * 6]), items)
    assert "positive area 1.000, chosen right 1.000 of 2 (0.500 by chance)" in good
    assert "positive area 0.000, chosen right 0.000 of 2" in poor


def test_the_built_judge_tells_right_answers_from_wrong_ones():
    chosen = os.environ.get("MODELS", "").replace(",", " ").split()
    if chosen and "alpha-4o-mini" not in chosen:
        pytest.skip("MODELS leaves alpha-4o-mini out")
    folder = ROOT / "models" / "alpha-4o-mini" / "build" / "judge"
    assert (folder / "manifest.json").is_file(), "alpha-4o-mini has no judge: run make setup"
    told = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["answer_judge"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kind = encoder.Backbone(12, 1e-5, told["cls_id"], told["sep_id"], told["pad_id"])
    text = "My grandad passed away on Sunday."
    items = [
        Item(text, "I'm so sorry about your grandad.", 2, (1.0,)), Item(text, "How lovely that your grandad passed away on Sunday!", 2, (0.0,)),
        Item(text, "My grandad passed away on Sunday, but he had a long and good life.", 0, (1.0,)),
        Item(text, "My grandad passed away on Sunday, and I'm so glad of it.", 0, (0.0,)),
        Item(text, "", None, (0.0, 1.0, 0.0)), Item("My sister got the job.", "", None, (1.0, 0.0, 0.0)),
    ]
    rows = judge_data.windows(tokenizer, kind, items)
    model = session(folder / "model.onnx")
    ids = feed(rows)
    for row, length in zip(ids["input_ids"], ids["lengths"]):
        row[length:] = told["pad_id"]
    verdicts = model.run(["verdict"], ids)[0]
    right = 1 / (1 + np.exp(-verdicts))
    assert right[0, 2] > 0.5 > right[1, 2] and right[2, 0] > 0.5 > right[3, 0]
    assert verdicts[4, 3:].argmax() == 1 and verdicts[5, 3:].argmax() == 0
