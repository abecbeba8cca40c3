"""What both sides are given: graphs of the same weights, token ids, texts and
pictures, made once into target/peers and made again when their sources change.

Runs in the environment of set-up (.venv), which must have been at work before.
"""

from __future__ import annotations

import base64
import bz2
import dataclasses
import hashlib
import json
import math
import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from demo_support import photograph
from forge import built_graph, encoder
from forge.components import Catalogue, Component, install
from forge.fetch import Sources
from forge.manifest import MANIFEST, read_json, write_json
from forge.places import Places, remove
from forge.progress import Progress

from . import PeersError, drawn, mixed
from .rows import PHOTOGRAPHED, STREAMS

CLASSIFIER = "alpha-4o-mini"
# Both generators that are compared were made for this form of chat.
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
TOKENS = 16
BODIES = 20_000
PICTURES = 256
# Of one photograph: a lone client cannot ask for more in the time of a round than makes sense to send again.
PHOTOGRAPHS = 4
MIXED = 10_000
FIRSTS, WHOLES = 3, 2
ADJECTIVES = "old new small big warm cold quiet loud green red dark bright happy sad clean dirty".split()
NOUNS = "house car dog cat bird tree river road school office garden table window door book train".split()
VERBS = "found left moved painted watched sold carried cleaned passed kept".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
TIMES = "morning evening night afternoon".split()


@dataclasses.dataclass(frozen=True)
class Generator:
    """One identifier's generator without its adapter, for all sides."""

    gguf: Path
    bundle: Path
    genai: Path
    prefix: list[int]
    # Texts with what follows them in the prompt.
    first: list[list[int]]
    whole: list[list[int]]
    together: list[list[int]]
    stop: list[int]

    def prompts(self, texts: list[list[int]]) -> list[list[int]]:
        return [[*self.prefix, *text] for text in texts]


@dataclasses.dataclass(frozen=True)
class Text:
    """The text classifier, its stock export and what is asked."""

    bundle: Path
    # The export that is measured alone, which STOCK_MINILM may name, and ours, whose heads a server needs.
    stock: Path
    served: Path
    products: Path
    layers: int
    windows: list[list[int]]
    bodies: Path
    # Texts of the golden file, for comparing scores.
    known: list[str]
    manifest: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pictures:
    bundle: Path
    one: Path
    bodies: Path


@dataclasses.dataclass(frozen=True)
class Photograph:
    """A photograph without text, the bodies that ask for it by identifier, and what plain ONNX Runtime needs."""

    one: Path
    bodies: dict[str, Path]
    vision: Path
    # Of the classifier's square input.
    side: int
    detector: Path
    # Columns and rows of the detector's input.
    page: tuple[int, int]


class Material:
    """Makes each part when it is first asked for."""

    def __init__(self, places: Places, say: Callable[[str], None]) -> None:
        self._places, self._say = places, say
        self._sources = Sources(places)
        self._catalogue = Catalogue(places, self._sources)
        self.folder = places.root / "target" / "peers"

    def component(self, model: str, name: str) -> Component:
        found = [item for item in self._catalogue.components([model]) if item.name == name]
        if not found or not found[0].is_current():
            raise PeersError(f"the {name} of {model} is not installed: run make setup without MODELS")
        return found[0]

    def generator(self, model: str) -> Generator:
        tuned = self.component(model, "generator")
        # With the whole head: the others multiply all of it.
        plain = {key: value for key, value in tuned.recipe.items() if key not in ("adapter", "vocabulary", "mood")}
        base = dataclasses.replace(tuned, recipe=plain, target=self.folder / model / "generator")
        with self._places.locked(self._say):
            install(base, Progress(quiet=True))
        manifest = json.loads((base.target / "manifest.json").read_text(encoding="utf-8"))["generator"]
        source = self._sources.locate(base.source.name, base.any_source)["gguf"]
        genai = self.folder / model / "genai"
        self._once(genai, base.fingerprint, lambda: _write_genai(base.target, manifest, genai))
        tokenizer = Tokenizer.from_file(str(base.target / "tokenizer.json"))

        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        prompt = manifest["tasks"]["positive"]
        # An untuned model may answer a tuned one's task with nothing: it is asked as a chat model is.
        suffix = ids(ASSISTANT)
        bodies = equally_long([ids(text) + suffix for text in sentences(400)], FIRSTS + WHOLES + STREAMS)
        return Generator(
            source,
            base.target,
            genai,
            ids(prompt["prefix"]),
            bodies[:FIRSTS],
            bodies[FIRSTS : FIRSTS + WHOLES],
            bodies[FIRSTS + WHOLES :],
            manifest["stop_ids"],
        )

    def text(self) -> Text:
        component = self.component(CLASSIFIER, "text")
        kind = encoder.backbone(component.recipe)
        tensors = encoder.merge(
            encoder.load_base(
                self._sources.locate(component.source.name, component.any_source)[kind.weights],
                component.recipe.get("layers"),
            ),
            load_file(component.folder / component.recipe["delta"]),
        )
        folder = self.folder / "text"
        tokenizer = Tokenizer.from_file(str(component.target / "tokenizer.json"))

        def write() -> None:
            onnx.save(stock(tensors, kind.heads, kind.epsilon), folder / "stock.onnx")
            _quantise(folder / "stock.onnx", folder / "stock.int8.onnx")
            width, hidden = tensors["encoder.layer.0.output.dense.weight"].shape
            onnx.save(products(width, hidden), folder / "products.onnx")
            texts = short_texts(tokenizer, BODIES)
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (folder / "bodies.jsonl").write_text(lines, encoding="utf-8")

        self._once(folder, component.fingerprint, write)
        texts = [
            json.loads(line)["text"] for line in (folder / "bodies.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        windows = [
            [kind.cls_id, *encoding.ids, kind.sep_id]
            for encoding in tokenizer.encode_batch(texts[:2048], add_special_tokens=False)
        ]
        golden = self._places.scripts / "tests" / "golden" / "text_scores.json.bz2"
        known = [entry["text"] for entry in json.loads(bz2.decompress(golden.read_bytes()))["texts"]][:60]
        manifest = json.loads((component.target / "manifest.json").read_text(encoding="utf-8"))["text_classifier"]
        own = os.environ.get("STOCK_MINILM")
        return Text(
            component.target,
            Path(own) if own else folder / "stock.int8.onnx",
            folder / "stock.int8.onnx",
            folder / "products.onnx",
            encoder.layer_count(tensors),
            windows,
            folder / "bodies.jsonl",
            known,
            manifest,
        )

    def spoken(self) -> Path:
        """Bodies of requests, each with a text of fifteen words."""
        folder = self.folder / "spoken"

        def write() -> None:
            lines = (json.dumps({"text": text}) + "\n" for text in sentences(400))
            (folder / "bodies.jsonl").write_text("".join(lines), encoding="utf-8")

        self._once(folder, "sentences", write)
        return folder / "bodies.jsonl"

    def pictures(self) -> Pictures:
        component = self.component(CLASSIFIER, "image")
        folder = self.folder / "image"

        def write() -> None:
            jpeg = photograph()
            (folder / "one.jpg").write_bytes(jpeg)
            bodies = (json.dumps({"image": base64.b64encode(marked(jpeg, n)).decode()}) for n in range(PICTURES))
            (folder / "bodies.jsonl").write_text("\n".join(bodies) + "\n", encoding="utf-8")

        self._once(folder, component.fingerprint, write)
        return Pictures(component.target, folder / "one.jpg", folder / "bodies.jsonl")

    def photograph(self) -> Photograph:
        vision, reader = (self.component(CLASSIFIER, part) for part in ("image", "ocr"))
        folder = self.folder / "photograph"
        bodies = {model: folder / f"{model}.jsonl" for model in PHOTOGRAPHED}

        def write() -> None:
            jpeg = drawn.large_photograph()
            (folder / "one.jpg").write_bytes(jpeg)
            images = [base64.b64encode(marked(jpeg, number)).decode() for number in range(PHOTOGRAPHS)]
            for model, path in bodies.items():
                lines = (json.dumps({"image": image, "model": model}) + "\n" for image in images)
                path.write_text("".join(lines), encoding="utf-8")

        drawing = hashlib.sha256(Path(drawn.__file__).read_bytes()).hexdigest()
        self._once(folder, drawing, write)
        side = read_json(vision.target / MANIFEST)["image_classifier"]["size"]
        rules = read_json(reader.target / MANIFEST)["text_reader"]["detector"]
        page = drawn.page_size(*drawn.MEGAPIXEL, rules)
        graphs_ = (vision.target / "model.onnx", side, reader.target / "detector.onnx", page)
        return Photograph(folder / "one.jpg", bodies, *graphs_)

    def mixture(self) -> mixed.Mixture:
        """What the mixed requests ask; short enough to be made anew."""
        words = sentences(MIXED)
        pictures = drawn.small_pictures([" ".join(sentence.split()[:5]) for sentence in words])
        return mixed.Mixture(mixed.texts(words), [base64.b64encode(picture).decode() for picture in pictures])

    def installed(self) -> dict[str, list[Path]]:
        """The folders of all built components by identifier: what a server of this checkout serves."""
        found: dict[str, list[Path]] = {}
        for item in self._catalogue.components(self._catalogue.models):
            if (item.target / MANIFEST).is_file():
                found.setdefault(item.model, []).append(item.target)
        if not found:
            raise PeersError("no model is installed: run make setup")
        return found

    def served(self, name: str, parts: list[str], models: Sequence[str] = (CLASSIFIER,)) -> Path:
        """A models folder with these components of these identifiers and no others."""
        folder = self.folder / "served" / name
        remove(folder)
        for model in models:
            build = folder / model / "build"
            build.mkdir(parents=True)
            for part in parts:
                (build / part).symlink_to(self.component(model, part).target)
        return folder

    def _once(self, folder: Path, source: str, write: Callable[[], None]) -> None:
        """Runs `write` unless the folder was finished from this very source and code."""
        code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        if read_json(folder / "made-from.json") == [source, code]:
            return
        self._say(f"making {folder.relative_to(self._places.root)}")
        remove(folder)
        folder.mkdir(parents=True)
        write()
        write_json(folder / "made-from.json", [source, code])


def graphs(folders: Iterable[Path], ours: bool) -> list[Path]:
    """The ONNX files of built components that a server opens, each once, as identifiers share some.

    Where it has products of its own it opens no graph for prompts, and one that is for these instead of the first.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        manifest = read_json(folder / MANIFEST)
        generator = manifest.get("generator", {})
        left = {generator.get("prefill") if ours else generator.get("products")}
        left |= {"model.onnx"} if ours and "products" in generator else set()
        for file in manifest["files"]:
            if file["path"].endswith(".onnx") and file["path"] not in left:
                found.setdefault(file["sha256"], folder / file["path"])
    return list(found.values())


# --- texts and pictures ------------------------------------------------------


def sentences(count: int) -> list[str]:
    """Different sentences of fifteen words."""
    draw, found = random.Random(1), {}
    while len(found) < count:
        one, two, three = (draw.choice(NOUNS) for _ in range(3))
        first, second, verb = draw.choice(ADJECTIVES), draw.choice(ADJECTIVES), draw.choice(VERBS)
        found[f"After the {one} we {verb} the {first} {two} and everyone in the {three} was {second}."] = None
    return list(found)


def equally_long(rows: list[list[int]], count: int) -> list[list[int]]:
    """The first so many rows of the length that most have: a batch without padding."""
    lengths = [len(row) for row in rows]
    commonest = max(dict.fromkeys(lengths), key=lengths.count)
    found = [row for row in rows if len(row) == commonest][:count]
    if len(found) < count:
        raise PeersError(f"only {len(found)} of {count} prompts have {commonest} tokens: add words to material.py")
    return found


def short_texts(tokenizer: Tokenizer, count: int) -> list[str]:
    """Different texts of TOKENS tokens, with the opening and the closing one."""
    draw, found = random.Random(2), {}
    for _ in range(count * 4):
        first, second = draw.choice(ADJECTIVES), draw.choice(ADJECTIVES)
        one, two, three = (draw.choice(NOUNS) for _ in range(3))
        verb, when = draw.choice(VERBS), f"{draw.choice(DAYS)} {draw.choice(TIMES)}"
        text = f"The {first} {one} {verb} the {second} {two} near the {three} on {when}."
        found[text] = None
    texts = list(found)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    fitting = [text for text, encoding in zip(texts, encodings) if len(encoding.ids) == TOKENS - 2][:count]
    if len(fitting) < count:
        raise PeersError(f"only {len(fitting)} of {count} texts have {TOKENS} tokens: add words to material.py")
    return fitting


def marked(jpeg: bytes, number: int) -> bytes:
    """The same picture with a comment of its own: as much work, but other bytes."""
    comment = f"{number:06d}".encode()
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


# --- graphs ------------------------------------------------------------------


def _write_genai(bundle: Path, manifest: dict[str, Any], folder: Path) -> None:
    model = built_graph.load(bundle / "model.onnx")
    heads = for_genai(model, manifest["vocab"])
    onnx.save(model, folder / "model.onnx")
    write_json(folder / "genai_config.json", genai_config(manifest, heads))


def for_genai(model: onnx.ModelProto, vocabulary: int) -> int:
    """Turns our decoder graph into one that onnxruntime-genai drives; returns its attention heads.

    genai gives an attention mask, out of which its own exporter too computes the
    two lengths, and wants logits with an axis for the sequence; of length one, it
    takes them for those of the last token.
    """
    graph = model.graph
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "mask.axis"], ["mask.lengths"], keepdims=0),
        helper.make_node("Sub", ["mask.lengths", "mask.one"], ["mask.last"]),
        helper.make_node("Cast", ["mask.last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["mask.total"], start=1, end=2),
        helper.make_node("Cast", ["mask.total"], ["mask.total32"], to=TensorProto.INT32),
        helper.make_node("Squeeze", ["mask.total32"], ["total_sequence_length"]),
    ]
    flatten = next(node for node in graph.node if list(node.output) == ["logits"])
    if flatten.op_type != "Reshape":
        raise PeersError("the decoder graph no longer ends with a Reshape: mend for_genai in scripts/peers/material.py")
    head = next(node for node in graph.node if flatten.input[0] in node.output)
    head.output[list(head.output).index(flatten.input[0])] = "logits"
    graph.node.remove(flatten)
    kept = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *kept])
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "mask.axis"))
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "mask.one"))
    for name in ("seqlens_k", "total_sequence_length"):
        graph.input.remove(next(given for given in graph.input if given.name == name))
    graph.input.insert(1, helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]))
    logits = next(output for output in graph.output if output.name == "logits")
    logits.CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, vocabulary]))
    attention = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    return next(attribute.i for attribute in attention.attribute if attribute.name == "num_heads")


def genai_config(manifest: dict[str, Any], heads: int) -> dict[str, Any]:
    # A token that neither prompts nor answers hold: nothing ends before its time.
    never = manifest["vocab"] - 1
    return {
        "model": {
            "type": "llama",
            "bos_token_id": never,
            "eos_token_id": never,
            "pad_token_id": never,
            "context_length": manifest["window"],
            "vocab_size": manifest["vocab"],
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"provider_options": []},
                "head_size": manifest["head_dim"],
                "hidden_size": manifest["head_dim"] * heads,
                "num_attention_heads": heads,
                "num_hidden_layers": manifest["layers"],
                "num_key_value_heads": manifest["kv_heads"],
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past.%d.key",
                    "past_value_names": "past.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"do_sample": False, "max_length": manifest["window"], "past_present_share_buffer": True},
    }


def stock(tensors: dict[str, np.ndarray], heads: int, epsilon: float) -> onnx.ModelProto:
    """A BERT encoder with its harm head in plain nodes, as an exporter lays it out of the published model's code."""
    nodes: list[onnx.NodeProto] = []
    constants: list[TensorProto] = []
    width = tensors["embeddings.LayerNorm.bias"].size

    def constant(name: str, value: Any) -> str:
        if all(held.name != name for held in constants):
            constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def linear(x: str, name: str) -> str:
        product = node("MatMul", [x, constant(f"{name}.weight.t", tensors[f"{name}.weight"].T)], f"{name}.product")
        return node("Add", [constant(f"{name}.bias", tensors[f"{name}.bias"]), product], f"{name}.out")

    def norm(x: str, name: str) -> str:
        gains = [constant(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias")]
        return node("LayerNormalization", [x, *gains], f"{name}.out", axis=-1, epsilon=epsilon)

    def look_up(table: str, ids: str) -> str:
        weights = constant(f"{table}.weight", tensors[f"{table}.weight"])
        return node("Gather", [weights, ids], f"{table}.out")

    places = tensors["embeddings.position_embeddings.weight"].shape[0]
    zero, one = constant("zero", np.array([0])), constant("one", np.array([1]))
    count = node("Shape", ["input_ids"], "count", start=1, end=2)
    numbers = node("Slice", [constant("numbers", np.arange(places)[None]), zero, count, one], "position_ids")
    words = look_up("embeddings.word_embeddings", "input_ids")
    summed = node("Add", [words, look_up("embeddings.token_type_embeddings", "token_type_ids")], "embeddings.typed")
    summed = node("Add", [summed, look_up("embeddings.position_embeddings", numbers)], "embeddings.sum")
    x = norm(summed, "embeddings.LayerNorm")
    valid = node("Cast", ["attention_mask"], "valid", to=TensorProto.FLOAT)
    row = node("Unsqueeze", [valid, constant("axes.12", np.array([1, 2]))], "valid.row")
    outside = node("Sub", [constant("float.one", np.float32(1)), row], "outside")
    bias = node("Mul", [outside, constant("lowest", np.float32(-1e4))], "mask")
    split = constant("split", np.array([0, 0, heads, width // heads]))
    join = constant("join", np.array([0, 0, width]))
    for layer in range(encoder.layer_count(tensors)):
        at = f"encoder.layer.{layer}"
        turned = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            apart = node("Reshape", [linear(x, f"{at}.attention.self.{part}"), split], f"{at}.{part}.apart")
            turned[part] = node("Transpose", [apart], f"{at}.{part}.turned", perm=order)
        scores = node("MatMul", [turned["query"], turned["key"]], f"{at}.scores")
        scale = constant("scale", np.float32(math.sqrt(width // heads)))
        scores = node("Div", [scores, scale], f"{at}.scaled")
        scores = node("Softmax", [node("Add", [scores, bias], f"{at}.masked")], f"{at}.shares", axis=-1)
        mixed = node("MatMul", [scores, turned["value"]], f"{at}.mixed")
        mixed = node("Transpose", [mixed], f"{at}.back", perm=[0, 2, 1, 3])
        attended = linear(node("Reshape", [mixed, join], f"{at}.joined"), f"{at}.attention.output.dense")
        middle = norm(node("Add", [attended, x], f"{at}.middle"), f"{at}.attention.output.LayerNorm")
        inner = linear(middle, f"{at}.intermediate.dense")
        error = node("Div", [inner, constant("root", np.float32(math.sqrt(2)))], f"{at}.rooted")
        error = node("Add", [node("Erf", [error], f"{at}.erf"), "float.one"], f"{at}.shifted")
        gelu = node(
            "Mul", [node("Mul", [inner, error], f"{at}.gated"), constant("half", np.float32(0.5))], f"{at}.gelu"
        )
        x = norm(node("Add", [linear(gelu, f"{at}.output.dense"), middle], f"{at}.sum"), f"{at}.output.LayerNorm")
    column = node("Unsqueeze", [valid, constant("axes.2", np.array([2]))], "valid.column")
    kept = node("Mul", [x, column], "kept")
    mean = node(
        "Div", [node("ReduceSum", [kept, one], "total", keepdims=0), node("ReduceSum", [valid, one], "lengths")], "mean"
    )
    # States lie within ±1e4, so what is outside never is the highest.
    low = node("Mul", [node("Sub", [column, "float.one"], "below"), constant("far", np.float32(1e4))], "low")
    highest = node("ReduceMax", [node("Add", [kept, low], "lowered")], "highest", axes=[1], keepdims=0)
    both = node("Concat", [mean, highest], "both", axis=1)
    head = [constant(f"harm.{part}", tensors[f"harm.{part}"]) for part in ("weight", "bias")]
    node("Gemm", [both, *head], "harm", transB=1)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info("harm", TensorProto.FLOAT, ["batch", 5])]
    made = helper.make_graph(nodes, "stock", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _quantise(full: Path, small: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(full, small, weight_type=QuantType.QInt8)


def products(width: int, hidden: int) -> onnx.ModelProto:
    """The int8 matrix products of one encoder layer, each an output, and nothing else."""
    random_ = np.random.default_rng(3)
    nodes, constants, outputs = [], [], []
    constants.append(numpy_helper.from_array(np.array(128, np.uint8), "point"))
    shapes = {"qkv": (width, 3 * width), "attended": (width, width), "up": (width, hidden), "down": (hidden, width)}
    for name, shape in shapes.items():
        weight = random_.integers(-64, 65, shape, dtype=np.int8)
        constants.append(numpy_helper.from_array(weight, f"{name}.weight"))
        given = "narrow" if shape[0] == width else "wide"
        nodes.append(helper.make_node("MatMulInteger", [given, f"{name}.weight", "point"], [name], name=name))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", shape[1]]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, ["rows", columns])
        for name, columns in (("narrow", width), ("wide", hidden))
    ]
    made = helper.make_graph(nodes, "products", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
