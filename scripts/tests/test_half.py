"""The graphs in half precision against full precision, on the CPU's provider.

Their real place is a GPU. The CPU computes the same nodes, most of them by way
of float32, so that what is wrong with a graph shows here; what is wrong with a
CUDA kernel does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import onnx
import onnxruntime as ort
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

import test_encoder  # noqa: E402
import tiny_checkpoint  # noqa: E402
from forge import decoder, decoder_half, encoder, encoder_half  # noqa: E402
from forge.reference import Reference  # noqa: E402
from test_decoder import TOKENS, WINDOW, Session, cosines  # noqa: E402
from test_encoder import delta, noise  # noqa: E402, F401


class HalfSession(Session):
    """A graph whose cache is float16."""

    def new_cache(self, rows: int) -> dict[str, ort.OrtValue]:
        full = {name: value.numpy() for name, value in super().new_cache(rows).items()}
        # What lies behind a row's length must not matter: the largest number that there is.
        return {
            name: ort.OrtValue.ortvalue_from_numpy(np.full(value.shape, 65504, np.float16))
            for name, value in full.items()
        }


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    size = tiny_checkpoint.Tiny(layers=7 if request.param == "gemma3" else 2)
    path = folder / "tiny.gguf"
    tiny_checkpoint.write(path, request.param, seed=1, tiny=size, kind=gguf.GGMLQuantizationType.Q8_0)
    decoder_half.write_graph(decoder.Checkpoint(path), WINDOW, False, folder / "model.onnx")
    return HalfSession(folder / "model.onnx", WINDOW), Reference(path)


def assert_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Within the rounding of some hundred products in half precision."""
    np.testing.assert_allclose(ours, theirs, atol=2e-2 * float(np.abs(theirs).max()))
    assert cosines(ours, theirs).min() > 0.9998


def test_prompts_in_one_pass_and_in_chunks_match_the_reference(half) -> None:
    session, reference = half
    for length in (1, 20, WINDOW - 10):
        ours = session.run([TOKENS[:length]], [length], session.new_cache(1))
        assert_near(ours, reference.forward([TOKENS[:length]], [reference.new_cache()]))
    cache = session.new_cache(1)
    for start, stop in ((0, 12), (12, 13), (13, 30)):
        ours = session.run([TOKENS[start:stop]], [stop], cache)
    assert_near(ours, reference.forward([TOKENS[:30]], [reference.new_cache()]))


def test_rows_of_different_lengths_decode_together(half) -> None:
    session, reference = half
    lengths = [3, 11, 20]
    caches = [session.new_cache(1) for _ in lengths]
    for length, cache in zip(lengths, caches):
        session.run([TOKENS[:length]], [length], cache)
    ours = session.run([[TOKENS[length]] for length in lengths], [n + 1 for n in lengths], session.join(caches))
    for row, length in enumerate(lengths):
        assert_near(ours[row : row + 1], reference.forward([TOKENS[: length + 1]], [reference.new_cache()]))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_the_answers_tokens_alone_are_those_of_the_whole_head(tmp_path: Path, tied: bool) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_checkpoint.write(path, "qwen2", seed=1, tiny=tiny_checkpoint.Tiny(), kind=gguf.GGMLQuantizationType.Q8_0)
    checkpoint = decoder.Checkpoint(path)
    kept = np.array([0, 3, 4, checkpoint.shape.vocab - 1])
    logits = []
    for name, rows in (("whole", None), ("kept", kept)):
        decoder_half.write_graph(checkpoint, WINDOW, tied, tmp_path / f"{name}.onnx", rows)
        session = HalfSession(tmp_path / f"{name}.onnx", WINDOW)
        logits.append(session.run([TOKENS[:12]], [12], session.new_cache(1)))
    assert logits[1].shape == (1, len(kept))
    np.testing.assert_array_equal(logits[0][:, kept], logits[1])


def test_gemmas_sums_stay_small(tmp_path: Path) -> None:
    """The sums of the layers, which pass the largest half where the embeddings have Gemma's scale."""
    path = tmp_path / "tiny.gguf"
    tiny_checkpoint.write(path, "gemma3", seed=1, tiny=tiny_checkpoint.Tiny(width=256))
    checkpoint = decoder.Checkpoint(path)
    sums = {}
    for name, write in (
        ("half", lambda out: decoder_half.write_graph(checkpoint, WINDOW, False, out)),
        ("full", lambda out: decoder.write_graph(checkpoint, WINDOW, {"linear": 8, "head": 8, "embedding": 8}, out)),
    ):
        model = onnx.load(write(tmp_path / f"{name}.onnx") or tmp_path / f"{name}.onnx")
        last = [node for node in model.graph.node if node.op_type == "SkipSimplifiedLayerNormalization"][-1].output[3]
        kind = onnx.TensorProto.FLOAT16 if name == "half" else onnx.TensorProto.FLOAT
        model.graph.output.append(onnx.helper.make_tensor_value_info(last, kind, None))
        session = ort.InferenceSession(model.SerializeToString())
        empty = {
            entry.name: np.zeros(
                (1, entry.shape[1], WINDOW, entry.shape[3]), np.float16 if name == "half" else np.float32
            )
            for entry in session.get_inputs()
            if entry.name.startswith("past.")
        }
        given = {
            "input_ids": np.array([TOKENS[:9]]),
            "seqlens_k": np.array([8], np.int32),
            "total_sequence_length": np.array(9, np.int32),
        }
        sums[name] = session.run([last], {**given, **empty})[0].astype(np.float32)
    np.testing.assert_allclose(sums["half"] * 16, sums["full"], atol=2e-2 * np.abs(sums["full"]).max())


def test_weights_that_half_precision_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="blk.0.*half precision cannot hold"):
        decoder_half.half("blk.0", np.array([1.0, -7e4], np.float32))


def test_a_half_text_classifier_scores_as_the_full_one(noise, delta) -> None:  # noqa: F811
    merged = encoder.merge(noise, delta)
    full = test_encoder.session(encoder.graph(merged, test_encoder.MINILM, "float32"))
    model = encoder_half.halved(encoder.graph(merged, test_encoder.MINILM, "float32"))
    onnx.checker.check_model(model)
    assert not [tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    ran = test_encoder.session(model)
    assert [(entry.name, entry.type) for entry in ran.get_outputs()] == [
        (entry.name, entry.type) for entry in full.get_outputs()
    ]
    texts = test_encoder.feed(test_encoder.ROWS)
    for ours, theirs in zip(ran.run(None, texts), full.run(None, texts)):
        np.testing.assert_allclose(ours, theirs, atol=1e-2 * float(np.abs(theirs).max()))
