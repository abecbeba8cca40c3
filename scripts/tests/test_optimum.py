"""Models that Hugging Face's own exporter, Optimum, has written: added with
`dichroic models add`, asked over HTTP, and held to what transformers says of the
same weights in PyTorch. Run by `make test-models`, with the packages of
scripts/exports.

The models are tiny and their weights random, so what they say means nothing; the
numbers behind it do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

# Before transformers is loaded: nothing here may come from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from optimum.exporters.onnx import main_export  # noqa: E402
from optimum.onnxruntime import ORTModelForSequenceClassification, ORTQuantizer  # noqa: E402
from optimum.onnxruntime.configuration import AutoQuantizationConfig  # noqa: E402

import tiny_transformers  # noqa: E402
from running_server import BINARY, ROOT, Running, start  # noqa: E402

OPTIMUM = Path(sys.executable).with_name("optimum-cli")
MODEL = "delta-3.1"
CATEGORIES = ("sexual", "hate", "self_harm", "violence", "defamation")
LABELS = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
MAPPED = {"toxic": "hate", "identity_hate": "hate", "obscene": "sexual", "threat": "violence"}
SEVERAL = "multi_label_classification"
# All of them read the same when they are normalised, so that each is scored once.
TEXTS = [
    "you are nice",
    "my sister won the match, and we sang all the way home!",
    "it rained",
    "today the train to leeds was late, and anna has a job there. what is the weather like where you are today?",
    "ok? 42",
]
# The server rounds scores to four decimals.
ROUNDED = 1e-4
TRIAL = "Our team shipped the release on Friday."
ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "0": "\0"}


def add(source: Path, folder: Path, *more: object) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DICHROIC_")}
    environment = {**clean, "DICHROIC_RUNTIME_LIBRARY": str(ROOT / "runtime/libonnxruntime.so")}
    words = [BINARY, "models", "add", source, "--id", MODEL, "--models-dir", folder / "models", *more]
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def add_classifier(source: Path, folder: Path, mapped: dict[str, str], *more: object) -> None:
    maps = [word for label, category in mapped.items() for word in ("--map", f"{label}={category}")]
    done = add(source, folder, *maps, *more)
    assert done.returncode == 0, done.stderr


@contextmanager
def serving(folder: Path) -> Iterator[Running]:
    # Texts that come together share a batch, where they are padded to one another.
    running = start(folder, DICHROIC_MODELS_DIR=str(folder / "models"), DICHROIC_BATCH_WAIT_US="50000")
    try:
        yield running
    finally:
        running.stop()


# --- classifiers ------------------------------------------------------------------


def wanted(source: Path, mapped: dict[str, str], several: bool) -> list[dict[str, float]]:
    """What the pipeline of transformers says of each text, category by category."""
    classify = transformers.pipeline("text-classification", model=str(source), top_k=None, device="cpu")
    expected = []
    for labels in classify(TEXTS):
        found = dict.fromkeys(CATEGORIES, 0.0)
        for said in labels:
            if category := mapped.get(said["label"]):
                score = said["score"]
                found[category] = max(found[category], score) if several else found[category] + score
        expected.append(found)
    # The texts are much further apart than what is allowed for.
    for category in set(mapped.values()):
        assert np.ptp([scores[category] for scores in expected]) > 20 * ROUNDED, category
    return expected


def score(running: Running, text: str) -> dict[str, float]:
    answer = running.post("/v1/guardians/text", {"text": text, "model": MODEL})
    assert answer.status_code == 200, answer.text
    return answer.json()["category_scores"]


def scores(folder: Path) -> list[dict[str, float]]:
    with serving(folder) as running, ThreadPoolExecutor(len(TEXTS)) as pool:
        return list(pool.map(lambda text: score(running, text), TEXTS))


def held_to(expected: list[dict[str, float]], found: list[dict[str, float]]) -> None:
    for text, one, other in zip(TEXTS, found, expected, strict=True):
        assert one == pytest.approx(other, abs=ROUNDED), text


@pytest.mark.parametrize("problem", [None, SEVERAL])
@pytest.mark.parametrize("architecture", tiny_transformers.CLASSIFIERS)
def test_a_classifier_scores_what_pytorch_says(tmp_path: Path, architecture: str, problem: str | None) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", architecture, LABELS, problem)
    main_export(str(source), output=tmp_path / "exported", task="text-classification")
    add_classifier(tmp_path / "exported", tmp_path, MAPPED)
    held_to(wanted(source, MAPPED, problem is not None), scores(tmp_path))


def test_a_single_label_is_a_probability_of_its_own(tmp_path: Path) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", "Bert", ["harm"])
    main_export(str(source), output=tmp_path / "exported", task="text-classification")
    add_classifier(tmp_path / "exported", tmp_path, {"harm": "violence"})
    held_to(wanted(source, {"harm": "violence"}, several=True), scores(tmp_path))


@pytest.mark.parametrize("more", [(), ("--optimize", "O2")])
def test_the_command_line_writes_what_can_be_added(tmp_path: Path, more: tuple[str, ...]) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", "Bert", LABELS, SEVERAL)
    command = [OPTIMUM, "export", "onnx", "--model", source, "--task", "text-classification", *more]
    done = subprocess.run([*command, tmp_path / "exported"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    add_classifier(tmp_path / "exported", tmp_path, MAPPED)
    held_to(wanted(source, MAPPED, several=True), scores(tmp_path))


def test_weights_beside_the_graph_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the exporter does by itself from 2 GB on.
    monkeypatch.setenv("FORCE_ONNX_EXTERNAL_DATA", "1")
    source = tiny_transformers.classifier(tmp_path / "saved", "Bert", LABELS, SEVERAL)
    main_export(str(source), output=tmp_path / "exported", task="text-classification")
    assert (tmp_path / "exported/model.onnx_data").stat().st_size > 100_000
    add_classifier(tmp_path / "exported", tmp_path, MAPPED)
    held_to(wanted(source, MAPPED, several=True), scores(tmp_path))
    # The exporter keeps them to their owner; the server may be another user.
    build = tmp_path / "models" / MODEL / "build/text"
    assert (build / "model.onnx_data").stat().st_mode == (build / "model.onnx").stat().st_mode


def test_a_model_of_the_runtime_class_lacks_only_its_tokenizer(tmp_path: Path) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", "Roberta", LABELS)
    ORTModelForSequenceClassification.from_pretrained(source, export=True).save_pretrained(tmp_path / "exported")
    refused = add(tmp_path / "exported", tmp_path, "--map", "toxic=hate")
    assert refused.returncode == 1 and "tokenizer.json (No such file" in refused.stderr, refused.stderr
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "exported")
    add_classifier(tmp_path / "exported", tmp_path, MAPPED)
    held_to(wanted(source, MAPPED, several=False), scores(tmp_path))


def quantise(exported: Path, folder: Path) -> Path:
    """Int8 weights, activations rounded by the pass."""
    recipe = AutoQuantizationConfig.avx2(is_static=False, per_channel=False)
    ORTQuantizer.from_pretrained(exported).quantize(save_dir=folder, quantization_config=recipe)
    return folder


@pytest.mark.parametrize("architecture", ["Bert", "Roberta"])
def test_a_quantised_classifier_scores_what_optimum_says(tmp_path: Path, architecture: str) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", architecture, LABELS, SEVERAL)
    main_export(str(source), output=tmp_path / "exported", task="text-classification")
    quantised = quantise(tmp_path / "exported", tmp_path / "quantised")
    refused = add(quantised, tmp_path, "--map", "toxic=hate")
    assert refused.returncode == 1 and "--graph" in refused.stderr, refused.stderr
    add_classifier(quantised, tmp_path, MAPPED, "--graph", "model_quantized.onnx")

    model = ORTModelForSequenceClassification.from_pretrained(quantised, file_name="model_quantized.onnx")
    tokenizer = transformers.AutoTokenizer.from_pretrained(quantised)
    with serving(tmp_path) as running:
        for text in TEXTS:
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            found = dict.fromkeys(CATEGORIES, 0.0)
            for label, probability in zip(LABELS, torch.sigmoid(logits).tolist(), strict=True):
                if category := MAPPED.get(label):
                    found[category] = max(found[category], probability)
            # One by one: what the pass rounds depends on all that is in it.
            assert score(running, text) == pytest.approx(found, abs=ROUNDED), text


# --- generators -------------------------------------------------------------------


def begun(said: str) -> str:
    """The reply that `add` shows."""
    quoted = re.search(r'begins its reply with "(.*)"\.$', said, re.MULTILINE)
    assert quoted, said

    def meant(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else ESCAPES.get(escape[2], escape[2])

    return re.sub(r"\\(?:u\{([0-9a-f]+)\}|(.))", meant, quoted[1])


def reply(source: Path, folder: Path) -> str:
    """The likeliest reply to the same prompt, by transformers."""
    spec = json.loads((folder / "models" / MODEL / "build/generator/manifest.json").read_text())["generator"]
    asked = spec["tasks"]["reply"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    prompt = tokenizer(asked["prefix"] + TRIAL + asked["suffix"], return_tensors="pt", add_special_tokens=False)
    ends = {"eos_token_id": spec["stop_ids"], "pad_token_id": 0}
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=24, **ends)
    return tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("architecture", tiny_transformers.GENERATORS)
def test_a_generator_begins_as_pytorch_does(tmp_path: Path, architecture: str) -> None:
    source = tiny_transformers.generator(tmp_path / "saved", architecture)
    main_export(str(source), output=tmp_path / "exported", task="text-generation-with-past")
    done = add(tmp_path / "exported", tmp_path)
    assert done.returncode == 0, done.stderr
    expected = reply(source, tmp_path)
    assert len(expected) > 10
    assert begun(done.stderr).strip() == expected.strip()


def external(exported: Path, folder: Path) -> tuple[Path, list[str]]:
    assert (exported / "model.onnx_data").is_file()
    return exported, []


def quantised(exported: Path, folder: Path) -> tuple[Path, list[str]]:
    return quantise(exported, folder / "quantised"), ["--graph", "model_quantized.onnx"]


@pytest.mark.parametrize("form", [external, quantised])
def test_a_generator_answers_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Callable[[Path, Path], tuple[Path, list[str]]]
) -> None:
    if form is external:
        monkeypatch.setenv("FORCE_ONNX_EXTERNAL_DATA", "1")
    source = tiny_transformers.generator(tmp_path / "saved", "Llama")
    main_export(str(source), output=tmp_path / "exported", task="text-generation-with-past")
    made, more = form(tmp_path / "exported", tmp_path)
    done = add(made, tmp_path, *more)
    assert done.returncode == 0, done.stderr
    judge = tiny_transformers.classifier(tmp_path / "judge", "DistilBert", LABELS)
    main_export(str(judge), output=tmp_path / "judge-exported", task="text-classification")
    add_classifier(tmp_path / "judge-exported", tmp_path, {"threat": "violence"})
    with serving(tmp_path) as running:
        for path in ("/v1/prisms/text", "/v1/sunshines/text"):
            answer = running.post(path, {"text": "It rained all day.", "model": MODEL})
            assert answer.status_code == 200, answer.text
            assert all(any(map(str.isalnum, said)) for said in answer.json().values()), answer.text


def test_a_generator_without_a_past_is_refused(tmp_path: Path) -> None:
    source = tiny_transformers.generator(tmp_path / "saved", "Llama")
    main_export(str(source), output=tmp_path / "exported", task="text-generation")
    done = add(tmp_path / "exported", tmp_path)
    assert done.returncode == 1 and "--task text-generation-with-past" in done.stderr, done.stderr


@pytest.mark.parametrize("architecture", ["Bert", "Llama"])
def test_half_precision_is_refused_with_the_remedy(tmp_path: Path, architecture: str) -> None:
    if architecture in tiny_transformers.GENERATORS:
        source = tiny_transformers.generator(tmp_path / "saved", architecture)
        task, labels = "text-generation-with-past", []
    else:
        source = tiny_transformers.classifier(tmp_path / "saved", architecture, LABELS)
        task, labels = "text-classification", ["--map", "toxic=hate"]
    main_export(str(source), output=tmp_path / "exported", task=task, dtype="fp16")
    done = add(tmp_path / "exported", tmp_path, *labels)
    assert done.returncode == 1 and "not a float32 tensor; export the model" in done.stderr, done.stderr


def test_a_task_that_nothing_here_could_feed_is_refused(tmp_path: Path) -> None:
    source = tiny_transformers.classifier(tmp_path / "saved", "Bert", LABELS)
    main_export(str(source), output=tmp_path / "exported", task="feature-extraction")
    # The configuration still says what it was saved from.
    done = add(tmp_path / "exported", tmp_path, "--map", "toxic=hate")
    assert done.returncode == 1 and "no output named logits" in done.stderr, done.stderr
