"""Models of anybody's: GGUF files through scripts/import, and generators and
classifiers in the layout of Hugging Face's Optimum, added to a folder of models
and asked over HTTP.

All are tiny, with seeded random weights, and built here: what they say means
nothing, so the tests look at whether they say it, and at the numbers behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

import tiny_bert  # noqa: E402
import tiny_causal  # noqa: E402
import tiny_checkpoint  # noqa: E402
from forge import imported  # noqa: E402
from forge.reference import Reference  # noqa: E402
from running_server import BINARY, Running, start  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

# Long enough for the prompts, letter by letter.
TINY = tiny_checkpoint.Tiny(context=4096)
TOKENS = np.random.default_rng(3).integers(0, 320, 40).tolist()
TEXTS = ["It rained all day.", "We won the match.", "My sister Anna has a job in Leeds."]
IMPORTED = {"alpha-4o-mini": "llama", "beta-3-haiku": "qwen2", "gamma-1.5-flash": "gemma3"}
EXPORTED = "delta-3.1"
LABELS = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
MAPPED = {"toxic": "hate", "identity_hate": "hate", "obscene": "sexual", "threat": "violence"}
# Labels of which several may be true, and labels that exclude one another.
PROBLEMS = {"alpha-4o-mini": "multi_label_classification", "beta-3-haiku": None}


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DICHROIC_")}
    environment = {**clean, "DICHROIC_RUNTIME_LIBRARY": str(ROOT / "runtime/libonnxruntime.so")}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def import_gguf(gguf: Path, out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, ROOT / "scripts/import", gguf, "--out", out, *more, folder=out.parent)


def add(source: Path, identifier: str, folder: Path, *more: object) -> subprocess.CompletedProcess[str]:
    place = ("--id", identifier, "--models-dir", folder / "models")
    return run(BINARY, "models", "add", source, *place, *more, folder=folder)


def checkpoint(folder: Path, architecture: str = "llama", seed: int = 3) -> Path:
    return tiny_checkpoint.write(folder / f"{architecture}.gguf", architecture, seed, TINY)


# --- through the interface ------------------------------------------------------


def own_prompts(architecture: str, folder: Path) -> list[object]:
    """Prompts that end in a letter, for the architecture whose random weights say their last token again and again."""
    if architecture != "gemma3":
        return []
    ends = {"positive": "\nGladly", "negative": "\nSadly", "reply": "\nKindly"}
    tasks = {task: {"prefix": "Text: ", "suffix": end} for task, end in ends.items()}
    prompts = {"tasks": tasks, "stop": ["<|im_end|>"]}
    file = folder / "prompts.json"
    file.write_text(json.dumps(prompts), encoding="utf-8")
    return ["--prompts", file]


def serving(folder: Path) -> Iterator[Running]:
    """A server of the models in a folder, stopped when the caller is done with it."""
    running = start(folder, DICHROIC_MODELS_DIR=str(folder / "models"))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A generator of each architecture, and one that was exported; with a classifier that was exported for each."""
    folder = tmp_path_factory.mktemp("models")
    for identifier, architecture in IMPORTED.items():
        out = folder / f"my-{architecture}"
        done = import_gguf(checkpoint(folder, architecture), out)
        assert done.returncode == 0, done.stderr
        assert f"dichroic models add {out}" in done.stdout
        done = add(out, identifier, folder, "--licence", "MIT", *own_prompts(architecture, folder))
        assert done.returncode == 0, done.stderr
    exported = tiny_causal.write(folder / "exported", checkpoint(folder, seed=4))
    done = add(exported, EXPORTED, folder)
    assert done.returncode == 0, done.stderr
    for identifier in (*IMPORTED, EXPORTED):
        labels = ("--map", "toxic=hate", "--map", "threat=violence")
        done = add(ROOT / "tests/fixtures/tiny-sigmoid", identifier, folder, *labels)
        assert done.returncode == 0, done.stderr
    yield from serving(folder)


@pytest.mark.parametrize("identifier", [*IMPORTED, EXPORTED])
def test_both_operations_answer_with_it_alone_and_in_company(server: Running, identifier: str) -> None:
    jobs = [(path, text) for path in ("/v1/prisms/text", "/v1/sunshines/text") for text in TEXTS]

    def ask(job: tuple[str, str]) -> dict[str, str]:
        answer = server.post(job[0], {"text": job[1], "model": identifier})
        assert answer.status_code == 200, (job, answer.text)
        return answer.json()

    alone = [ask(job) for job in jobs]
    for answer in alone:
        assert all(said != "false" and any(map(str.isalnum, said)) for said in answer.values()), answer
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(ask, jobs))
    if identifier == EXPORTED:
        # Its rows share no pass, so company changes not even a rounding.
        assert together == alone


def test_the_classifier_that_was_added_answers_too(server: Running) -> None:
    answer = server.post("/v1/guardians/text", {"text": "i hate you", "model": EXPORTED}).json()
    assert answer["flagged"] and answer["categories"]["hate"] and not answer["categories"]["violence"]


def test_manifests_say_who_keeps_the_cache(server: Running) -> None:
    for identifier in (*IMPORTED, EXPORTED):
        manifest = json.loads((server.folder / "models" / identifier / "build/generator/manifest.json").read_text())
        expected = "growing" if identifier == EXPORTED else "shared"
        assert manifest["generator"]["cache"] == expected
    listed = run(BINARY, "models", "list", "--json", "--models-dir", server.folder / "models", folder=server.folder)
    assert [(row["id"], row["model"]) for row in json.loads(listed.stdout) if row["component"] == "generator"] == [
        ("alpha-4o-mini", "my-llama"),
        ("beta-3-haiku", "my-qwen2"),
        ("gamma-1.5-flash", "my-gemma3"),
        ("delta-3.1", "exported"),
    ]


# --- a classifier of its own architecture ---------------------------------------


def bert(identifier: str) -> tiny_bert.Bert:
    return tiny_bert.Bert(seed=29 + list(PROBLEMS).index(identifier), labels=LABELS)


def expected_scores(identifier: str, logits: np.ndarray) -> dict[str, float]:
    """Category by category, as Hugging Face's pipeline reads the labels."""
    found = dict.fromkeys(("sexual", "hate", "self_harm", "violence", "defamation"), 0.0)
    raised = np.exp(logits)
    for label, logit, share in zip(LABELS, logits, raised / raised.sum()):
        category = MAPPED.get(label)
        if category is not None and PROBLEMS[identifier]:
            found[category] = max(found[category], 1 / (1 + float(np.exp(-logit))))
        elif category is not None:
            found[category] += float(share)
    return found


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("classifiers")
    for identifier, problem in PROBLEMS.items():
        exported = tiny_bert.write(folder / f"bert-{identifier}", bert(identifier), problem)
        labels = [word for label, category in MAPPED.items() for word in ("--map", f"{label}={category}")]
        done = add(exported, identifier, folder, *labels)
        assert done.returncode == 0, done.stderr
    yield from serving(folder)


@pytest.mark.parametrize("identifier", PROBLEMS)
def test_a_bert_scores_over_http_what_its_weights_say(classifiers: Running, identifier: str) -> None:
    texts = ["you are nice", "i hate rain", "my sister won the match, and we sang all the way home!", "a", "ok? 42"]
    tokenizer = Tokenizer.from_file(str(classifiers.folder / f"bert-{identifier}" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    weights, expected = bert(identifier), []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        expected.append(expected_scores(identifier, weights.logits(ids, np.ones_like(ids), np.zeros_like(ids))[0]))

    def ask(text: str) -> dict[str, float]:
        answer = classifiers.post("/v1/guardians/text", {"text": text, "model": identifier})
        assert answer.status_code == 200, answer.text
        return answer.json()["category_scores"]

    # At once, so that the server pads them to one another.
    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(ask, texts))
    for text, scores, wanted in zip(texts, found, expected):
        assert scores == pytest.approx(wanted, abs=1e-4), text
    # The texts are further apart than what is allowed for.
    for category in set(MAPPED.values()):
        assert np.ptp([wanted[category] for wanted in expected]) > 0.01, category


def test_the_exported_bert_is_the_architecture(tmp_path: Path) -> None:
    weights = bert("alpha-4o-mini")
    session = ort.InferenceSession(str(tiny_bert.write(tmp_path / "bert", weights, None) / "model.onnx"))
    random = np.random.default_rng(5)
    shape = (3, 40)
    # Short rows are filled up with anything at all, which must not count.
    mask = (np.arange(40) < np.array([[40], [7], [1]])).astype(np.int64)
    ids, types = random.integers(0, len(tiny_bert.VOCABULARY), shape), random.integers(0, 2, shape)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    expected = weights.logits(ids, mask, types)
    np.testing.assert_allclose(session.run(["logits"], feeds)[0], expected, atol=1e-4)
    without = weights.logits(ids, np.ones_like(mask), types)
    assert np.abs(without - expected)[1:].max() > 0.1, "the mask makes no difference"


def test_a_graph_by_another_name_comes_with_its_weights(tmp_path: Path) -> None:
    exported = tiny_bert.write(tmp_path / "bert", bert("alpha-4o-mini"), None)
    weights = exported / "model_quantized.onnx_data"
    model = onnx.load(exported / "model.onnx")
    onnx.save(model, exported / "model_quantized.onnx", save_as_external_data=True, location=weights.name)
    (exported / "model.onnx").unlink()
    weights.chmod(0o600)
    mapped = ("--map", "toxic=hate")
    said = refused(add(exported, "alpha-4o-mini", tmp_path, *mapped))
    assert said.count("No such file") == 1 and "with --graph" in said
    done = add(exported, "alpha-4o-mini", tmp_path, *mapped, "--graph", "model_quantized.onnx")
    assert done.returncode == 0, done.stderr
    # Whoever runs the server may read them, though the exporter kept them to their owner.
    build = tmp_path / "models/alpha-4o-mini/build/text"
    assert (build / weights.name).stat().st_mode == (build / "model.onnx").stat().st_mode


# --- the exported graph of a generator -------------------------------------------


@pytest.mark.parametrize("positions", [True, False])
def test_the_exported_graph_is_the_architecture(tmp_path: Path, positions: bool) -> None:
    gguf = checkpoint(tmp_path)
    reference = Reference(gguf)
    expected = reference.forward([TOKENS], [reference.new_cache()])[0]
    session = ort.InferenceSession(str(tiny_causal.write(tmp_path / "out", gguf, positions=positions) / "model.onnx"))
    past = {
        entry.name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32)
        for entry in session.get_inputs()
        if entry.name.startswith("past_key_values.")
    }
    start = 0
    for end in (12, 39, 40):
        feeds = {"input_ids": np.array([TOKENS[start:end]]), "attention_mask": np.ones((1, end), np.int64), **past}
        if positions:
            feeds["position_ids"] = np.arange(start, end)[None]
        found = dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds)))
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
        start = end
    np.testing.assert_allclose(found["logits"][0, -1], expected, atol=2e-4 * float(np.abs(expected).max()))


def test_a_graph_that_counts_its_positions_itself_is_added(tmp_path: Path) -> None:
    exported = tiny_causal.write(tmp_path / "own", checkpoint(tmp_path), positions=False)
    done = add(exported, "beta-3-haiku", tmp_path)
    assert done.returncode == 0, done.stderr


# --- refusals -------------------------------------------------------------------


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1 and not done.stdout, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_graph_without_a_past_is_refused(tmp_path: Path) -> None:
    exported = tiny_causal.write(tmp_path / "bare", checkpoint(tmp_path), past=False)
    said = refused(add(exported, "beta-3-haiku", tmp_path))
    assert "without past_key_values" in said and "--task text-generation-with-past" in said


def test_a_graph_that_mistakes_its_past_is_refused(tmp_path: Path) -> None:
    exported = tiny_causal.write(tmp_path / "wrong", checkpoint(tmp_path), positions=False, miscounts=True)
    said = refused(add(exported, "beta-3-haiku", tmp_path))
    assert "is not added" in said and "correlation" in said
    assert list((tmp_path / "models/beta-3-haiku/build").iterdir()) == []


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    exported = tiny_causal.write(tmp_path / "mixed", checkpoint(tmp_path))
    tokenizer = json.loads((exported / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["A"] = 32_000
    (exported / "tokenizer.json").write_text(json.dumps(tokenizer))
    said = refused(add(exported, "beta-3-haiku", tmp_path))
    assert "32001 tokens and the model 320" in said and "tokenizer.json that belongs to it" in said


def test_logits_in_half_precision_are_refused(tmp_path: Path) -> None:
    exported = tiny_bert.write(tmp_path / "half", bert("alpha-4o-mini"), None)
    model = onnx.load(exported / "model.onnx")
    [last] = [node for node in model.graph.node if "logits" in node.output]
    last.output[0] = "wide"
    model.graph.node.append(onnx.helper.make_node("Cast", ["wide"], ["logits"], to=onnx.TensorProto.FLOAT16))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, exported / "model.onnx")
    said = refused(add(exported, "alpha-4o-mini", tmp_path, "--map", "toxic=hate"))
    assert "not a float32 tensor; export the model in float32" in said


def test_what_cannot_be_imported_leaves_nothing(tmp_path: Path) -> None:
    good = checkpoint(tmp_path)
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(good.read_bytes()[:3000])
    text.write_text("hello")
    out = tmp_path / "out"
    for gguf, reason in [
        (checkpoint(tmp_path, "phi2"), "'phi2' model; only llama, qwen2 and gemma3"),
        (cut, "it ends before its header does"),
        (text, "it is no GGUF file"),
        (tmp_path / "absent.gguf", "absent.gguf cannot be used (No such file or directory)"),
    ]:
        assert reason in refused(import_gguf(gguf, out))
        assert not out.exists() and not (tmp_path / ".out.partial").exists()
    out.mkdir()
    assert "is there already" in refused(import_gguf(good, out))


# --- what the metadata becomes --------------------------------------------------


def test_the_ends_and_the_chat_template_are_taken_along() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<|im_end|>", "<end_of_turn>"],
        "tokenizer.ggml.token_type": [3, 3, 4, 1],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    # The last is an ordinary token here, whatever it reads like.
    assert imported._config(metadata, "llama", 2048)["eos_token_id"] == [1, 2]
    assert imported._tokenizer_config(metadata) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": "{{ messages }}",
    }
    told = metadata | {"tokenizer.ggml.add_bos_token": False}
    assert imported._tokenizer_config(told)["add_bos_token"] is False
    with pytest.raises(ValueError, match="no token that ends a text"):
        imported._config({"tokenizer.ggml.tokens": ["a"]}, "llama", 2048)


def test_a_model_that_is_given_out_in_parts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gguf = checkpoint(tmp_path)
    read = imported.decoder.Checkpoint

    def in_parts(path: Path) -> object:
        found = read(path)
        found.metadata["split.count"] = 2
        return found

    monkeypatch.setattr(imported.decoder, "Checkpoint", in_parts)
    with pytest.raises(ValueError, match="join them first"):
        imported.convert(gguf, tmp_path / "out")
