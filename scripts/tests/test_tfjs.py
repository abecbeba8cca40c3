"""The image conversion: nsfwjs's own answers, and tiny models against plain arithmetic.

Owns the proof that `forge.tfjs` keeps what a tf.js model computes. The golden
values were written by nsfwjs itself under Node (scripts/golden_nsfwjs); Node
is not needed here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from forge import tfjs  # noqa: E402

PICTURES = ROOT / "tests" / "golden" / "images"
GOLDEN = json.loads((PICTURES / "golden.json").read_text(encoding="utf-8"))
BUILT = {"alpha-4o-mini": "inception_v3", "beta-3-haiku": "mobilenet_v2", "gamma-1.5-flash": "mobilenet_v2_mid"}


# --- the reference arithmetic ------------------------------------------------


def resize(pixels: np.ndarray, size: int) -> np.ndarray:
    """Bilinear with aligned corners: [h, w, 3] bytes → [size, size, 3] in 0..1."""
    pixels = pixels.astype(np.float32) / np.float32(255)
    if pixels.shape[:2] == (size, size):
        return pixels
    for axis in (0, 1):
        length = pixels.shape[axis]
        at = np.arange(size, dtype=np.float32) * np.float32((length - 1) / (size - 1))
        low = np.floor(at).astype(int)
        high = np.minimum(np.ceil(at).astype(int), length - 1)
        part = (at - low).reshape([-1 if n == axis else 1 for n in range(3)])
        pixels = np.take(pixels, low, axis) * (1 - part) + np.take(pixels, high, axis) * part
    return pixels.astype(np.float32)


def picture(name: str) -> np.ndarray:
    data = (PICTURES / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == GOLDEN["pictures"][name]["sha256"], f"{name} is not the golden picture"
    with Image.open(PICTURES / name) as image:
        return np.asarray(image.convert("RGB"))


def run(model: Any, pixels: np.ndarray, output: str = "probabilities") -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run([output], {"pixels": pixels})[0]


# --- nsfwjs ------------------------------------------------------------------


@pytest.mark.parametrize("size", [224, 299])
def test_the_golden_tensors_are_this_resize(size: int) -> None:
    for name, golden in GOLDEN["pictures"].items():
        tensor = resize(picture(name), size)
        for y, x, *expected in golden["tensors"][str(size)]["samples"]:
            assert np.abs(tensor[y, x] - expected).max() < 1e-4, (name, y, x)
        assert abs(float(tensor.mean()) - golden["tensors"][str(size)]["mean"]) < 1e-4


@pytest.mark.parametrize("identifier", sorted(BUILT))
def test_the_built_model_answers_as_nsfwjs_does(identifier: str) -> None:
    chosen = os.environ.get("MODELS", "").replace(",", " ").split()
    if chosen and identifier not in chosen:
        pytest.skip(f"MODELS leaves {identifier} out")
    folder = ROOT / "models" / identifier / "build" / "image"
    assert (folder / "manifest.json").is_file(), f"{identifier} has no image model: run make setup"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["image_classifier"]
    assert manifest["classes"] == GOLDEN["classes"]
    check_against_golden(str(folder / "model.onnx"), BUILT[identifier], manifest["size"])


def check_against_golden(model: Any, key: str, size: int) -> None:
    names = sorted(GOLDEN["pictures"])
    assert len(names) >= 10
    # One pass over all the pictures: it also proves that rows do not mix.
    answers = run(model, np.stack([resize(picture(name), size) for name in names]))
    for name, answer in zip(names, answers):
        expected = np.array(GOLDEN["pictures"][name]["probabilities"][key])
        assert np.abs(answer - expected).max() < 0.02, f"{name}: {answer} against {expected}"


# --- reading -----------------------------------------------------------------


def test_a_bundled_script_is_read_as_data(tmp_path: Path) -> None:
    script = (
        "!function(d){module.exports=d()}((function(){return function e(h,n,d){Z[V]={exports:{}}}"
        "({1:[function(a,n,i){n.exports={a:[1,-.5,2e-3,!0,!1,null,void 0],'b-c':{d:\"x\\\"y\\\\\"},e:[]}},{}]},{},[1])}));"
    )
    path = tmp_path / "model.min.js"
    path.write_text(script, encoding="utf-8")
    assert tfjs.read_bundle(path) == {
        "a": [1, -0.5, 0.002, True, False, None, None],
        "b-c": {"d": 'x"y\\'},
        "e": [],
    }


@pytest.mark.parametrize("body", ["{a:run()}", "{a:1", '"cut', "{a 1}", "[1 2]"])
def test_a_script_that_is_not_data_is_refused(tmp_path: Path, body: str) -> None:
    path = tmp_path / "model.min.js"
    path.write_text(f"!function(){{n.exports={body}", encoding="utf-8")
    with pytest.raises(ValueError):
        tfjs.read_bundle(path)


# --- tiny models -------------------------------------------------------------


def convolve(x: np.ndarray, kernel: np.ndarray, stride: int, same: bool, depthwise: bool) -> np.ndarray:
    """TensorFlow's convolution of [h, w, c] by [kh, kw, c, n], one window at a time."""
    rows, columns = kernel.shape[:2]
    if same:
        border = [max((-(-n // stride) - 1) * stride + k - n, 0) for n, k in zip(x.shape, (rows, columns))]
        x = np.pad(x, [(border[0] // 2, border[0] - border[0] // 2), (border[1] // 2, border[1] - border[1] // 2), (0, 0)])
    height, width = (x.shape[0] - rows) // stride + 1, (x.shape[1] - columns) // stride + 1
    cells = []
    for i in range(height):
        for j in range(width):
            window = x[i * stride : i * stride + rows, j * stride : j * stride + columns]
            if depthwise:
                cells.append(np.einsum("hwc,hwcm->cm", window, kernel).reshape(-1))
            else:
                cells.append(np.einsum("hwc,hwcn->n", window, kernel))
    return np.array(cells).reshape(height, width, -1)


def average_same(x: np.ndarray, size: int) -> np.ndarray:
    """Average pooling, stride 1, 'same': the border is left out of the mean."""
    half = (size - 1) // 2
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[max(i - half, 0) : i - half + size, max(j - half, 0) : j - half + size].mean((0, 1))
    return out


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


class Store:
    """Weights quantised as tf.js does, with their manifest."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.specs: list[dict[str, Any]] = []
        self.data = b""

    def add(self, name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        values = self.rng.uniform(low, high, shape)
        offset, scale = float(values.min()), float(max(np.ptp(values), 1e-6)) / 255
        codes = np.round((values - offset) / scale).astype(np.uint8)
        self.specs.append(
            {"name": name, "shape": list(shape), "dtype": "float32",
             "quantization": {"min": offset, "scale": scale, "dtype": "uint8"}}
        )
        self.data += codes.tobytes()
        return codes * scale + offset

    def files(self, folder: Path, topology: dict[str, Any]) -> dict[str, Path]:
        """A JSON model, one binary shard and one shard wrapped in a script."""
        cut = len(self.data) // 2
        model = {
            "modelTopology": topology,
            "weightsManifest": [{"paths": ["group1-shard1of2", "group1-shard2of2"], "weights": self.specs}],
        }
        (folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
        (folder / "group1-shard1of2.bin").write_bytes(self.data[:cut])
        wrapped = base64.b64encode(self.data[cut:]).decode()
        (folder / "group1-shard2of2.min.js").write_text(f'!function(){{n.exports="{wrapped}"}}', encoding="utf-8")
        return {path.name: path for path in folder.iterdir()}


def layer(kind: str, name: str, inputs: list[str], **config: Any) -> dict[str, Any]:
    edges = [[[one, 0, 0, {}] for one in inputs]] if inputs else []
    return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": edges}


def conv(kind: str, name: str, source: str, stride: int, padding: str, bias: bool = False) -> dict[str, Any]:
    return layer(
        kind, name, [source], strides=[stride, stride], padding=padding, use_bias=bias,
        activation="linear", dilation_rate=[1, 1], data_format="channels_last",
    )


def norm(store: Store, name: str, channels: int, gamma: bool) -> Any:
    # A negative gamma too: it turns the sign of a folded scale.
    gain = store.add(f"{name}/gamma", channels, low=-1.5, high=1.5) if gamma else np.ones(channels)
    beta = store.add(f"{name}/beta", channels)
    mean = store.add(f"{name}/moving_mean", channels)
    variance = store.add(f"{name}/moving_variance", channels, low=0.2, high=2.0)
    return lambda x: (x - mean) / np.sqrt(variance + 1e-3) * gain + beta


def test_a_layers_model_computes_what_keras_means(tmp_path: Path) -> None:
    store, size = Store(), 12
    k1 = store.add("c1/kernel", 3, 3, 3, 80)
    n1 = norm(store, "b1", 80, gamma=False)
    k2 = store.add("dw/depthwise_kernel", 3, 3, 80, 1)
    n2 = norm(store, "b2", 80, gamma=True)
    k3 = store.add("c3/kernel", 1, 1, 80, 80)
    b3 = store.add("c3/bias", 80)
    n3 = norm(store, "b3", 80, gamma=True)
    d = store.add("d/kernel", 3 * 3 * 160, 5, low=-0.1, high=0.1)
    db = store.add("d/bias", 5)
    layers = [
        layer("InputLayer", "in", [], batch_input_shape=[None, size, size, 3]),
        layer("ZeroPadding2D", "pad", ["in"], padding=[[0, 1], [0, 1]], data_format="channels_last"),
        conv("Conv2D", "c1", "pad", 2, "valid"),
        layer("BatchNormalization", "b1", ["c1"], epsilon=1e-3, center=True, scale=False),
        layer("ReLU", "r1", ["b1"], max_value=6, negative_slope=0, threshold=0),
        conv("DepthwiseConv2D", "dw", "r1", 1, "same"),
        layer("BatchNormalization", "b2", ["dw"], epsilon=1e-3, center=True, scale=True),
        layer("Add", "sum", ["r1", "b2"]),
        layer("AveragePooling2D", "avg", ["sum"], pool_size=[3, 3], strides=[1, 1], padding="same"),
        conv("Conv2D", "c3", "avg", 1, "same", bias=True),
        layer("BatchNormalization", "b3", ["c3"], epsilon=1e-3, center=True, scale=True),
        layer("Concatenate", "cat", ["b3", "sum"], axis=3),
        layer("MaxPooling2D", "max", ["cat"], pool_size=[2, 2], strides=[2, 2], padding="valid"),
        layer("Dropout", "drop", ["max"], rate=0.5),
        layer("Flatten", "flat", ["drop"]),
        layer("Dense", "d", ["flat"], use_bias=True, activation="softmax"),
    ]
    topology = {
        "model_config": {"class_name": "Model", "config": {"layers": layers, "output_layers": [["d", 0, 0]]}}
    }
    model, side = tfjs.convert(store.files(tmp_path, topology))
    assert side == size
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)

    pixels = np.random.default_rng(5).random((2, size, size, 3)).astype(np.float32)
    expected, pooled = [], []
    for x in pixels:
        r1 = np.clip(n1(convolve(np.pad(x, [(0, 1), (0, 1), (0, 0)]), k1, 2, False, False)), 0, 6)
        total = r1 + n2(convolve(r1, k2, 1, True, True))
        cat = np.concatenate([n3(convolve(average_same(total, 3), k3, 1, True, False) + b3), total], axis=-1)
        peak = cat.reshape(3, 2, 3, 2, 160).max((1, 3))
        pooled.append(peak.reshape(-1))
        expected.append(softmax(pooled[-1] @ d + db))
    answer = run(model.SerializeToString(), pixels)
    assert np.abs(answer - np.array(expected)).max() < 1e-4
    assert np.abs(run(model.SerializeToString(), pixels, "features") - np.array(pooled)).max() < 1e-4


def test_a_graph_model_computes_what_tensorflow_means(tmp_path: Path) -> None:
    store, size = Store(), 11
    weights = {
        "k1": store.add("k1", 3, 3, 3, 80), "b1": store.add("b1", 80),
        "k2": store.add("k2", 3, 3, 80, 1), "b2": store.add("b2", 80),
        "k3": store.add("k3", 1, 1, 80, 80, low=-0.2, high=0.2), "b3": store.add("b3", 80),
        "d": store.add("d", 80, 5), "db": store.add("db", 5),
        "two": store.add("two", low=2, high=2.1), "one": store.add("one", low=1, high=1.1),
    }
    text = lambda s: base64.b64encode(s.encode()).decode()  # noqa: E731
    ints = lambda *v: {"list": {"i": [str(n) for n in v]}}  # noqa: E731

    def fused(kind: str, name: str, inputs: list[str], stride: int, steps: list[str]) -> dict[str, Any]:
        return {"name": name, "op": kind, "input": inputs, "attr": {
            "padding": {"s": text("SAME")}, "strides": ints(1, stride, stride, 1), "dilations": ints(1, 1, 1, 1),
            "data_format": {"s": text("NHWC")}, "fused_ops": {"list": {"s": [text(s) for s in steps]}}}}

    dims = {"dim": [{"size": str(n)} for n in (-1, size, size, 3)]}
    nodes = [{"name": name, "op": "Const", "attr": {}} for name in weights]
    # Not in order of use: the walk must not rely on it.
    nodes += [
        {"name": "Identity", "op": "Identity", "input": ["soft"], "attr": {}},
        {"name": "in", "op": "Placeholder", "attr": {"shape": {"shape": dims}}},
        {"name": "mul", "op": "Mul", "input": ["two", "in"], "attr": {}},
        {"name": "sub", "op": "Sub", "input": ["mul", "one"], "attr": {}},
        fused("_FusedConv2D", "c1", ["sub", "k1", "b1"], 2, ["BiasAdd", "Relu6"]),
        fused("FusedDepthwiseConv2dNative", "dw", ["c1", "k2", "b2"], 1, ["BiasAdd", "Relu"]),
        fused("_FusedConv2D", "c3", ["dw", "k3", "b3"], 1, ["BiasAdd"]),
        {"name": "add", "op": "AddV2", "input": ["c1", "c3"], "attr": {}},
        {"name": "pool", "op": "AvgPool", "input": ["add"], "attr": {
            "padding": {"s": text("VALID")}, "ksize": ints(1, 6, 6, 1), "strides": ints(1, 1, 1, 1)}},
        {"name": "squeeze", "op": "Squeeze", "input": ["pool"], "attr": {"squeeze_dims": ints(1, 2)}},
        {"name": "dense", "op": "_FusedMatMul", "input": ["squeeze", "d", "db"], "attr": {
            "fused_ops": {"list": {"s": [text("BiasAdd")]}}}},
        {"name": "soft", "op": "Softmax", "input": ["dense"], "attr": {}},
    ]
    model, side = tfjs.convert(store.files(tmp_path, {"node": nodes}))
    assert side == size
    pixels = np.random.default_rng(9).random((2, size, size, 3)).astype(np.float32)
    expected = []
    for x in pixels:
        w = weights
        c1 = np.clip(convolve(x * w["two"] - w["one"], w["k1"], 2, True, False) + w["b1"], 0, 6)
        dw = np.maximum(convolve(c1, w["k2"], 1, True, True) + w["b2"], 0)
        total = c1 + convolve(dw, w["k3"], 1, True, False) + w["b3"]
        expected.append(softmax(total.mean((0, 1)) @ w["d"] + w["db"]))
    answer = run(model.SerializeToString(), pixels)
    assert np.abs(answer - np.array(expected)).max() < 1e-4


def test_an_unknown_layer_is_named(tmp_path: Path) -> None:
    store = Store()
    store.add("x", 1)
    layers = [
        layer("InputLayer", "in", [], batch_input_shape=[None, 8, 8, 3]),
        layer("LocallyConnected2D", "odd", ["in"]),
    ]
    topology = {"model_config": {"class_name": "Model", "config": {"layers": layers, "output_layers": [["odd", 0, 0]]}}}
    with pytest.raises(ValueError, match="LocallyConnected2D"):
        tfjs.convert(store.files(tmp_path, topology))


def test_short_weights_are_refused(tmp_path: Path) -> None:
    store = Store()
    store.add("x", 100)
    store.data = store.data[:50]
    with pytest.raises(ValueError, match="end before x"):
        tfjs.convert(store.files(tmp_path, {"node": []}))


def test_build_writes_the_model_and_its_part_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration = {"sexual": {"weights": {"Porn": 1.0, "Sexy": 0.25}, "scale": 1.5, "bias": -0.5}, "note": "x"}
    (tmp_path / "image.json").write_text(json.dumps(calibration), encoding="utf-8")
    model = tfjs.Writer()
    value = model.node("Transpose", ["pixels"], (3, 5, 5), perm=[0, 3, 1, 2])
    kernel = tfjs.Weight(np.zeros((3, 5), np.float32))
    made = model.finish(model.dense(model.mean(value), kernel, None), 5, 5)
    monkeypatch.setattr(tfjs, "convert", lambda source: (made, 5))
    out = tmp_path / "out"
    out.mkdir()
    part = tfjs.build({}, {"calibration": "image.json"}, tmp_path, out)
    assert not {"heads", "glance"} & set(part["image_classifier"])
    assert part["image_classifier"]["size"] == 5
    assert part["image_classifier"]["sexual"] == calibration["sexual"]
    assert (out / "model.onnx").stat().st_size > 0
    save_file(
        {"violence.weight": np.ones(3, np.float32), "violence.bias": np.zeros(1, np.float32)},
        tmp_path / "heads.safetensors",
    )
    with_heads = tfjs.build({}, {"calibration": "image.json", "heads": "heads.safetensors"}, tmp_path, out)
    assert with_heads["image_classifier"]["heads"] == ["violence"]
    with_glance = tfjs.build({}, {"calibration": "image.json", "glance": 0.5}, tmp_path, out)
    assert with_glance["image_classifier"]["glance"] == 0.5
    (tmp_path / "image.json").write_text('{"sexual": {"weights": {"Nude": 1}, "scale": 1, "bias": 0}}', encoding="utf-8")
    with pytest.raises(ValueError, match="restore it from git"):
        tfjs.build({}, {"calibration": "image.json"}, tmp_path, out)


def test_heads_score_the_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    writer = tfjs.Writer()
    value = writer.node("Transpose", ["pixels"], (3, 5, 5), perm=[0, 3, 1, 2])
    model = writer.finish(writer.dense(writer.mean(value), tfjs.Weight(np.ones((3, 5), np.float32)), None), 5, 5)
    (tmp_path / "image.json").write_text('{"sexual": {"weights": {"Porn": 1}, "scale": 1, "bias": 0}}', encoding="utf-8")
    weights = {name: rng.normal(size=3).astype(np.float32) for name in ("violence", "hate")}
    save_file(
        {f"{name}.weight": weight for name, weight in weights.items()}
        | {f"{name}.bias": np.full(1, 0.3, np.float32) for name in weights},
        tmp_path / "heads.safetensors",
    )
    heads = tfjs.read_heads(tmp_path / "heads.safetensors")
    assert heads.categories == ["hate", "violence"]
    whole = tfjs.add_heads(model, heads).SerializeToString()
    pixels = rng.random((4, 5, 5, 3)).astype(np.float32)
    features = pixels.mean((1, 2))
    expected = [1 / (1 + np.exp(-(features @ weights[name] + 0.3))) for name in heads.categories]
    assert np.abs(run(whole, pixels, "scores_extra") - np.stack(expected, axis=1)).max() < 1e-5
    assert np.array_equal(run(whole, pixels), run(model.SerializeToString(), pixels))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"sexual.weight": np.ones(3, np.float32), "sexual.bias": np.ones(1, np.float32)},
        {"hate.weight": np.ones(3, np.float32)},
        {"hate.weight": np.full(3, np.nan, np.float32), "hate.bias": np.ones(1, np.float32)},
    ],
)
def test_what_is_no_head_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, tmp_path / "heads.safetensors")
    with pytest.raises(ValueError, match="restore it from git"):
        tfjs.read_heads(tmp_path / "heads.safetensors")
