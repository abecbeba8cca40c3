"""The conversion of PP-OCR: pixels in, the same numbers out as the networks
gave for their own input, the character list beside them, and refusals.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from forge import ocr  # noqa: E402

CHARACTERS = ["a", "b", "\u3000", "\u2028"]
CLASSES = len(CHARACTERS) + 2


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def tiny(path: Path, channels: int, last: list[Any], shape: list[Any], characters: list[str] | None = None) -> Path:
    """A network of one convolution with the interface of PP-OCR's: planes `x`, one output."""
    weight = np.random.default_rng(channels).standard_normal((channels, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weight"], ["hidden"]), *last],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("fetch_name_0", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    if characters is not None:
        entry = model.metadata_props.add()
        entry.key, entry.value = "character", "\n".join(characters)
    path.write_bytes(model.SerializeToString())
    return path


def sources(folder: Path, characters: list[str] | None = None) -> dict[str, Path]:
    characters = CHARACTERS if characters is None else characters
    pooled = [
        helper.make_node("ReduceMean", ["hidden"], ["pooled"], axes=[2, 3], keepdims=0),
        helper.make_node("Softmax", ["pooled"], ["fetch_name_0"], axis=1),
    ]
    steps = [
        helper.make_node("ReduceMean", ["hidden"], ["columns"], axes=[2], keepdims=0),
        helper.make_node("Transpose", ["columns"], ["steps"], perm=[0, 2, 1]),
        helper.make_node("Softmax", ["steps"], ["fetch_name_0"], axis=2),
    ]
    return {
        "detector": tiny(
            folder / "det.onnx", 1, [helper.make_node("Sigmoid", ["hidden"], ["fetch_name_0"])], ["n", 1, "h", "w"]
        ),
        "orientation": tiny(folder / "cls.onnx", 2, pooled, ["n", 2]),
        "recogniser": tiny(folder / "rec.onnx", CLASSES, steps, ["n", "w", CLASSES], characters),
    }


def planes(pixels: np.ndarray) -> np.ndarray:
    """What PaddleOCR feeds: BGR planes in -1..1."""
    return ((pixels[..., ::-1].astype(np.float32) / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2)


@pytest.fixture
def built(tmp_path: Path) -> tuple[dict[str, Path], Path, dict[str, Any]]:
    out = tmp_path / "out"
    out.mkdir()
    source = sources(tmp_path)
    return source, out, ocr.build(source, {}, tmp_path, out)


def test_the_graphs_take_pixels_and_answer_as_before(built: tuple[dict[str, Path], Path, Any]) -> None:
    source, out, _ = built
    pixels = np.random.default_rng(5).integers(0, 256, (2, 8, 12, 3), dtype=np.uint8)
    for role in ("detector", "orientation", "recogniser"):
        before = session(source[role]).run(None, {"x": planes(pixels)})[0]
        after = session(out / f"{role}.onnx")
        if role != "recogniser":
            answer = after.run(["probabilities"], {"pixels": pixels})[0]
            assert np.abs(answer - before).max() < 1e-5, role
            continue
        classes, confidences = after.run(["classes", "confidences"], {"pixels": pixels})
        assert classes.dtype == np.int64 and (classes == before.argmax(2)).all()
        assert np.abs(confidences - before.max(2)).max() < 1e-5
        assert confidences.shape == (2, 12)


def test_the_manifest_part_and_the_characters(built: tuple[dict[str, Path], Path, dict[str, Any]]) -> None:
    _, out, returned = built
    assert returned == {"kind": "text_reader", "text_reader": ocr.SETTINGS}
    assert set(ocr.SETTINGS) == {"detector", "orientation", "recogniser"}
    assert json.loads((out / "characters.json").read_text(encoding="utf-8")) == [*CHARACTERS, " "]
    assert sorted(path.name for path in out.iterdir()) == [
        "characters.json", "detector.onnx", "orientation.onnx", "recogniser.onnx",
    ]
    assert not onnx.load(out / "recogniser.onnx").metadata_props


@pytest.mark.parametrize("characters", [["a", "b"], ["a", "b", "", "c"], ["a", "b", "c", "d", "e"]])
def test_a_list_that_does_not_fit_the_classes_is_refused(tmp_path: Path, characters: list[str]) -> None:
    with pytest.raises(ValueError, match="characters for 6 classes"):
        ocr.build(sources(tmp_path, characters), {}, tmp_path, tmp_path)


def test_a_model_with_two_inputs_is_refused(tmp_path: Path) -> None:
    source = sources(tmp_path)
    model = onnx.load(source["detector"])
    model.graph.input.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]))
    source["detector"].write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="2 inputs and 1 outputs"):
        ocr.build(source, {}, tmp_path, tmp_path)


def test_the_built_model_finds_and_reads_a_line() -> None:
    chosen = os.environ.get("MODELS", "").replace(",", " ").split()
    if chosen and "alpha-4o-mini" not in chosen:
        pytest.skip("MODELS leaves alpha-4o-mini out")
    folder = ROOT / "models" / "alpha-4o-mini" / "build" / "ocr"
    assert (folder / "manifest.json").is_file(), "alpha-4o-mini has no text reader: run make setup"
    words = "Meet me at noon"
    page = Image.new("RGB", (320, 96), "white")
    ImageDraw.Draw(page).text((20, 24), words, "black", font=ImageFont.load_default(28))

    found = session(folder / "detector.onnx").run(None, {"pixels": np.asarray(page)[None]})[0]
    rows, columns = np.nonzero(found[0, 0] > 0.3)
    assert 15 <= columns.min() <= 35 and rows.min() >= 20 and rows.max() <= 64

    strip = np.full((2, 48, 320, 3), 128, np.uint8)
    upright = np.asarray(page.crop((15, 20, 255, 60)).resize((288, 48)))
    strip[0, :, :288], strip[1, :, :288] = upright, upright[::-1, ::-1]
    classes = session(folder / "recogniser.onnx").run(["classes"], {"pixels": strip[:1]})[0][0]
    characters = json.loads((folder / "characters.json").read_text(encoding="utf-8"))
    kept = [one for at, one in enumerate(classes) if one and (at == 0 or classes[at - 1] != one)]
    assert "".join(characters[one - 1] for one in kept).strip() == words

    small = np.stack([np.asarray(Image.fromarray(line[:, :288]).resize((192, 48))) for line in strip])
    turned = session(folder / "orientation.onnx").run(None, {"pixels": small})[0]
    assert turned[0, 0] > 0.5 and turned[1, 1] > 0.5
