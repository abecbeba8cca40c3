"""The decoder graphs against the full-precision reference.

Owns the proof of `forge.decoder`: tiny checkpoints of every architecture through
every way of calling the graph, and the built generators of this checkout on
fixed prompts. A built generator that is wrong or incomplete fails; only an
identifier that is not built at all is skipped.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

import tiny_checkpoint  # noqa: E402
from forge import decoder, graph_file, low_rank  # noqa: E402
from forge.fetch import Sources  # noqa: E402
from forge.places import Places  # noqa: E402
from forge.reference import Reference  # noqa: E402

KIND = gguf.GGMLQuantizationType
EXACT = {"linear": 8, "head": 8, "embedding": 8, "activations": "float"}
WINDOW = 48
TOKENS = np.random.default_rng(3).integers(0, 320, 40).tolist()


class Session:
    """A built graph, called as the server calls it: past and present share memory."""

    def __init__(self, path: Path, window: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = ort.InferenceSession(str(path), options)
        self.window = window
        self.caches = [i for i in self.session.get_inputs() if i.name.startswith("past.")]

    def new_cache(self, rows: int) -> dict[str, ort.OrtValue]:
        """Buffers full of numbers that would show in the answer if they were read."""
        cache = {}
        for entry in self.caches:
            shape = (rows, entry.shape[1], self.window, entry.shape[3])
            cache[entry.name[5:]] = ort.OrtValue.ortvalue_from_numpy(
                np.full(shape, 1e6, dtype=np.float32)
            )
        return cache

    def join(self, caches: list[dict[str, ort.OrtValue]]) -> dict[str, ort.OrtValue]:
        """The rows of several caches in one batch buffer."""
        return {
            name: ort.OrtValue.ortvalue_from_numpy(
                np.concatenate([cache[name].numpy() for cache in caches])
            )
            for name in caches[0]
        }

    def run(
        self,
        rows: list[list[int]],
        lengths: list[int],
        cache: dict[str, ort.OrtValue],
        places: list[int] | None = None,
    ) -> np.ndarray:
        """One pass; `lengths` are the valid positions of each row after it, `places` those whose logits are told."""
        inputs = {
            "input_ids": np.array(rows, dtype=np.int64),
            "seqlens_k": np.array(lengths, dtype=np.int32) - 1,
            "total_sequence_length": np.array(max(lengths), dtype=np.int32),
        }
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        if places is not None:
            # The other call looks for inputs without a default only.
            at = ort.OrtValue.ortvalue_from_numpy(np.array(places, dtype=np.int64))
            binding.bind_ortvalue_input("logits_at", at)
        binding.bind_output("logits")
        for name, value in cache.items():
            binding.bind_ortvalue_input(f"past.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        self.session.run_with_iobinding(binding)
        return np.array(binding.get_outputs()[0].numpy())


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    return (ours * theirs).sum(axis=-1) / norms


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * float(np.abs(theirs).max()))


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint whose weights 8 bits hold exactly, its graph, and its reference."""
    folder = tmp_path_factory.mktemp(request.param)
    # Seven layers give Gemma both kinds of attention.
    size = tiny_checkpoint.Tiny(layers=7 if request.param == "gemma3" else 2)
    path = folder / "tiny.gguf"
    tiny_checkpoint.write(path, request.param, seed=1, tiny=size, kind=KIND.Q8_0)
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, EXACT, folder / "model.onnx")
    return path, Session(folder / "model.onnx", WINDOW), Reference(path)


def test_a_prompt_in_one_pass_matches_the_reference(tiny) -> None:
    _, session, reference = tiny
    for length in (1, 2, 20, WINDOW - 10):
        prompt = TOKENS[:length]
        ours = session.run([prompt], [length], session.new_cache(1))
        assert_close(ours, reference.forward([prompt], [reference.new_cache()]))


def test_chunks_after_a_cached_prefix_match_the_reference(tiny) -> None:
    _, session, reference = tiny
    theirs = reference.forward([TOKENS[:30]], [reference.new_cache()])
    for cuts in ([7, 16, 30], [1, 30], [29, 30], [12, 13, 30]):
        cache, start = session.new_cache(1), 0
        for end in cuts:
            ours = session.run([TOKENS[start:end]], [end], cache)
            start = end
        assert_close(ours, theirs)


def test_a_batch_of_rows_of_unequal_length_matches_the_reference(tiny) -> None:
    _, session, reference = tiny
    lengths, ours_caches, their_caches = [3, 20, 1, 11], [], []
    for length in lengths:
        cache = session.new_cache(1)
        session.run([TOKENS[:length]], [length], cache)
        ours_caches.append(cache)
        their_caches.append(reference.new_cache())
        reference.forward([TOKENS[:length]], [their_caches[-1]])
    cache = session.join(ours_caches)
    for step in range(8):
        rows = [[TOKENS[(5 * row + step) % 40]] for row in range(4)]
        lengths = [length + 1 for length in lengths]
        ours = session.run(rows, lengths, cache)
        assert_close(ours, reference.forward(rows, their_caches))


def test_logits_at_several_places_are_those_of_passes_that_end_there(tiny) -> None:
    _, session, reference = tiny
    cache, theirs = session.new_cache(1), reference.new_cache()
    session.run([TOKENS[:12]], [12], cache)
    reference.forward([TOKENS[:12]], [theirs])
    # The last three were guessed wrongly: the next pass writes over them.
    guessed = [*TOKENS[12:14], 7, 8, 9]
    ours = session.run([guessed], [17], cache, places=[0, 1, 2, 3, 4])
    assert ours.shape[0] == 5
    for row in ours[:2]:
        assert_close(row[None], reference.forward([[guessed.pop(0)]], [theirs]))
    last = session.run([TOKENS[14:20]], [20], cache)
    assert_close(last, reference.forward([TOKENS[14:20]], [theirs]))


def test_a_prompt_gives_the_same_bits_however_it_is_cut(tiny, tmp_path: Path) -> None:
    path, _, _ = tiny
    precision = {"linear": 8, "head": 8, "embedding": 8}
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, precision, tmp_path / "model.onnx")
    session = Session(tmp_path / "model.onnx", WINDOW)
    whole = session.run([TOKENS], [40], session.new_cache(1))
    # Two tokens and more a pass; the cut of one token is another path of the attention.
    for cuts in ([16, 32, 40], [3, 38, 40], [2, 4, 20, 40]):
        cache, start = session.new_cache(1), 0
        for end in cuts:
            ours = session.run([TOKENS[start:end]], [end], cache)
            start = end
        np.testing.assert_array_equal(ours, whole)


@pytest.fixture
def with_prefill(tiny, tmp_path: Path) -> Path:
    """The folder of a generator with a second graph for prompts."""
    precision = {"linear": 8, "head": 8, "embedding": 8, "prefill": ["attention", "gate_up", "down"]}
    decoder.write_graph(decoder.Checkpoint(tiny[0]), WINDOW, precision, tmp_path / "model.onnx")
    return tmp_path


def test_the_graph_for_prompts_says_what_the_first_says(with_prefill: Path) -> None:
    step, prefill = (Session(with_prefill / name, WINDOW) for name in ("model.onnx", decoder.PREFILL))
    cache, other = step.new_cache(1), step.new_cache(1)
    near, exact = prefill.run([TOKENS[:20]], [20], cache), step.run([TOKENS[:20]], [20], other)
    assert cosines(near, exact).min() > 0.99
    # What it left in the cache is what the first goes on with.
    for at in range(20, 24):
        assert cosines(*(step.run([[TOKENS[at]]], [at + 1], kept) for kept in (cache, other))).min() > 0.99


def test_no_token_of_a_prompt_depends_on_the_size_of_another(with_prefill: Path) -> None:
    """One scale for a whole pass would: then a prompt's bits would follow from how it is cut."""
    prefill = Session(with_prefill / decoder.PREFILL, WINDOW)
    whole = prefill.run([TOKENS], [40], prefill.new_cache(1))
    for cuts in ([16, 32, 40], [3, 38, 40], [2, 4, 20, 40]):
        cache, start = prefill.new_cache(1), 0
        for end in cuts:
            ours = prefill.run([TOKENS[start:end]], [end], cache)
            start = end
        np.testing.assert_array_equal(ours, whole)


def test_the_graph_for_prompts_takes_the_tables_of_the_first(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "INLINE_LIMIT", 1000)
    monkeypatch.setattr(graph_file, "SMALL", 512)
    precision = {"linear": 8, "head": 8, "embedding": 8, "prefill": ["attention", "gate_up", "down"]}
    decoder.write_graph(decoder.Checkpoint(tiny[0]), WINDOW, precision, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / decoder.PREFILL, load_external_data=False).graph
    at = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}.get("location")
        for tensor in graph.initializer
    }
    assert at["head.codes"] == at["rotary.global.cos"] == "model.onnx.data"
    assert at["blk.0.qkv.int8"] == f"{decoder.PREFILL}.data"
    assert not any(name.endswith(".codes") for name in at if name.startswith("blk."))
    # A kind that is not named stays as it is, and is read from the first graph's file.
    precision["prefill"] = ["attention", "gate_up"]
    decoder.write_graph(decoder.Checkpoint(tiny[0]), WINDOW, precision, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / decoder.PREFILL, load_external_data=False).graph
    at = {tensor.name: [entry.value for entry in tensor.external_data] for tensor in graph.initializer}
    assert at["blk.0.down.codes"][0] == "model.onnx.data" and "blk.0.down.int8" not in at
    prefill = Session(tmp_path / decoder.PREFILL, WINDOW)
    step = Session(tmp_path / "model.onnx", WINDOW)
    ours, theirs = (session.run([TOKENS[:20]], [20], session.new_cache(1)) for session in (prefill, step))
    assert cosines(ours, theirs).min() > 0.99


def test_products_for_prompts_do_not_overflow_16_bits(with_prefill: Path) -> None:
    """Processors without VNNI add two products of an activation of up to 255 in 16 bits, and cut off what is more."""
    for tensor in onnx.load(with_prefill / decoder.PREFILL).graph.initializer:
        if tensor.name.endswith(".int8"):
            codes = onnx.numpy_helper.to_array(tensor)
            assert codes.dtype == np.int8 and 2 * 255 * int(np.abs(codes.astype(int)).max()) < 2**15


def test_a_product_for_prompts_that_nobody_knows_is_refused(tiny, tmp_path: Path) -> None:
    precision = {"linear": 8, "head": 8, "embedding": 8, "prefill": ["attention", "norm"]}
    with pytest.raises(ValueError, match="'prefill' names \\['norm'\\] in the recipe"):
        decoder.write_graph(decoder.Checkpoint(tiny[0]), WINDOW, precision, tmp_path / "model.onnx")


# Layers of 4 bits as their source has them, on rows that nothing rounds.
AS_KEPT = EXACT | {"linear": 4, "products": list(decoder.KINDS)}


def with_whole_offsets(path: Path) -> Path:
    """Moves the blocks of a file of Q4_1, so that whole zero points hold their offsets."""
    for tensor in gguf.GGUFReader(str(path), "r+").tensors:
        if tensor.tensor_type == KIND.Q4_1:
            steps, offsets = tensor.data.reshape(-1, 20)[:, :4].view(np.float16).T
            # Of seven bits: half precision then holds fifteen times as much too.
            parts, exponents = np.frexp(steps.astype(np.float32))
            rounded = np.ldexp(np.rint(parts * 128) / 128, exponents)
            offsets[:] = -rounded * np.clip(np.rint(-offsets / rounded), 0, 15)
            steps[:] = rounded
    return path


def factors_for(reference: Reference, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """An adapter with a random change of rank 8 for each of these weights."""
    random, factors = np.random.default_rng(5), {}
    for name in names:
        out, into = reference.weights[name].shape
        factors[f"{name}.lora_a"] = random.standard_normal((8, into)).astype(np.float32) * 0.3
        factors[f"{name}.lora_b"] = random.standard_normal((out, 8)).astype(np.float32) * 0.3
    return factors


def constants_of(path: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(path).graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


# Offsets of Q4_1 are any number of steps, those of Q4_0 whole ones.
@pytest.mark.parametrize(("kind", "most"), [(KIND.Q4_1, 1 / 32), (KIND.Q4_0, 0)])
def test_layers_as_kept_are_those_of_the_file_but_for_a_part_of_a_step(tmp_path: Path, kind: KIND, most: float) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=kind)
    plain = decoder.Checkpoint(path)
    # What an adapter changes lies beside them.
    changed = decoder.Checkpoint(path, factors_for(Reference(path), ("blk.0.attn_q.weight",)))
    for name in ("blk.0.attn_q.weight", "blk.0.ffn_gate.weight", "blk.1.ffn_down.weight"):
        codes, scales, fine = plain.as_kept(name)
        weights = plain.tensor(name)
        assert codes.shape == (*scales.shape, 32) and fine.shape == scales.shape and codes.size == weights.size
        assert codes.dtype == fine.dtype == np.uint8 and scales.dtype == np.float32 and codes.max() == 15
        off = (codes - fine[..., None].astype(np.float32) / 16) * scales[..., None] - weights.reshape(codes.shape)
        # Single precision rounds too.
        assert (np.abs(off) <= (most + 1e-5) * scales[..., None]).all()
        for ours, theirs in zip(changed.as_kept(name), (codes, scales, fine)):
            np.testing.assert_array_equal(ours, theirs)


def test_a_block_of_zeros_is_kept_as_zeros(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=KIND.Q4_1)
    name = "blk.0.attn_q.weight"
    next(tensor for tensor in gguf.GGUFReader(str(path), "r+").tensors if tensor.name == name).data[3] = 0
    codes, scales, fine = decoder.Checkpoint(path).as_kept(name)
    assert not codes[3].any() and not fine[3].any() and (scales[3] > 0).all()


@pytest.mark.parametrize("kind", [KIND.F32, KIND.Q8_0, KIND.Q5_1])
def test_layers_that_the_file_has_in_other_bits_are_of_8(tmp_path: Path, kind: KIND) -> None:
    checkpoint = decoder.Checkpoint(tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=kind))
    assert checkpoint.as_kept("blk.1.ffn_up.weight") is None
    for linear in (4, 8):
        decoder.write_graph(checkpoint, WINDOW, {**AS_KEPT, "linear": linear}, tmp_path / "model.onnx")
        graph = onnx.load(tmp_path / decoder.PRODUCTS).graph
        bits = {attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "bits"}
        assert bits == {8} and not any(tensor.name.endswith(decoder.FINE) for tensor in graph.initializer)


def test_a_block_whose_offset_is_out_of_reach_is_rounded_anew(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=KIND.Q4_1)
    name = "blk.0.attn_q.weight"
    raw = next(tensor for tensor in gguf.GGUFReader(str(path), "r+").tensors if tensor.name == name).data
    raw[3] = 0
    # One value without a step, and values that are all above zero.
    raw[3, 2:4] = np.frombuffer(np.float16(-0.5).tobytes(), np.uint8)
    raw[4, 2:4] = np.frombuffer(np.float16(3.0).tobytes(), np.uint8)
    checkpoint = decoder.Checkpoint(path)
    codes, scales, fine = checkpoint.as_kept(name)
    values = checkpoint.tensor(name).reshape(codes.shape)
    off = np.abs((codes - fine[..., None] / decoder.SIXTEENTHS) * scales[..., None] - values)
    np.testing.assert_allclose(off[3], 0, atol=1e-6)
    assert off[4, 0].max() <= values[4, 0].max() / 15


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_the_graph_of_products_says_what_the_first_says_where_offsets_are_whole(tmp_path: Path, architecture: str) -> None:
    """To the library the zero points in sixteenths are nothing: without them the same layers are of the same numbers."""
    path = with_whole_offsets(tiny_checkpoint.write(tmp_path / "t.gguf", architecture, 1, kind=KIND.Q4_1))
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, AS_KEPT, tmp_path / "model.onnx")
    first, products = (Session(tmp_path / name, WINDOW) for name in ("model.onnx", decoder.PRODUCTS))
    cache, other = products.new_cache(1), first.new_cache(1)
    ours, theirs = products.run([TOKENS[:20]], [20], cache), first.run([TOKENS[:20]], [20], other)
    assert_close(ours, theirs)
    assert_close(ours, Reference(path).forward([TOKENS[:20]], [Reference(path).new_cache()]))
    assert_close(products.run([[7]], [21], cache), first.run([[7]], [21], other))
    constants = constants_of(tmp_path / decoder.PRODUCTS)
    fine = {name: value for name, value in constants.items() if name.endswith(decoder.FINE)}
    assert len(fine) == 2 * 4 and all((value % 16 == 0).all() for value in fine.values())


def test_the_graph_of_products_has_zero_points_in_sixteenths_beside_whole_ones(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=KIND.Q4_1)
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, AS_KEPT, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / decoder.PRODUCTS).graph
    constants = constants_of(tmp_path / decoder.PRODUCTS)
    read = {name for node in graph.node for name in node.input}
    layers = [f"blk.{layer}.{part}.kept.zeros" for layer in (0, 1) for part in ("qkv", "output", "gate_up", "down")]
    assert {name for name in constants if name.endswith(decoder.FINE)} == {name + decoder.FINE for name in layers}
    for name in layers:
        zeros, fine = constants[name], constants[name + decoder.FINE]
        whole = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(len(zeros), -1)[:, : fine.shape[1]]
        assert fine.dtype == np.uint8 and np.abs(16 * whole.astype(int) - fine).max() <= 8 and (fine % 16).any()
        assert name in read and name + decoder.FINE not in read
    # Where no adapter is, nothing is beside a product.
    assert not any(node.op_type == "Concat" for node in graph.node)
    assert not any(".beside." in name for name in constants)


def test_the_graph_of_products_takes_the_tables_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "INLINE_LIMIT", 1000)
    monkeypatch.setattr(graph_file, "SMALL", 512)
    path = with_whole_offsets(tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 4, kind=KIND.Q4_1))
    precision = AS_KEPT | {"products": ["attention", "gate_up"]}
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, precision, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / decoder.PRODUCTS, load_external_data=False).graph
    at = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}.get("location")
        for tensor in graph.initializer
    }
    assert at["head.codes"] == at["embedding.codes"] == at["rotary.global.cos"] == "model.onnx.data"
    assert at["blk.0.qkv.kept.codes"] == at["blk.1.gate_up.kept.codes"] == f"{decoder.PRODUCTS}.data"
    # A kind that is not named is that of the first graph.
    assert at["blk.0.down.codes"] == "model.onnx.data" and "blk.0.down.kept.codes" not in at
    assert "blk.0.qkv.codes" not in at
    products, first = (Session(tmp_path / name, WINDOW) for name in (decoder.PRODUCTS, "model.onnx"))
    assert_close(*(session.run([TOKENS[:20]], [20], session.new_cache(1)) for session in (products, first)))


def test_products_of_a_kind_that_nobody_knows_are_refused(tiny, tmp_path: Path) -> None:
    precision = EXACT | {"products": ["down", "head"]}
    with pytest.raises(ValueError, match="'products' names \\['head'\\] in the recipe"):
        decoder.write_graph(decoder.Checkpoint(tiny[0]), WINDOW, precision, tmp_path / "model.onnx")


def test_an_adapter_lies_beside_the_layers_that_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "INLINE_LIMIT", 1000)
    monkeypatch.setattr(graph_file, "SMALL", 512)
    path = with_whole_offsets(tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 5, kind=KIND.Q4_1))
    reference = Reference(path)
    names = ("blk.0.attn_k.weight", "blk.1.ffn_down.weight", "blk.1.attn_output.weight")
    kept = low_rank.packed(factors_for(reference, names))
    adapter = low_rank.unpacked(kept)
    plain = reference.forward([TOKENS[:20]], [reference.new_cache()])
    for name in names:
        reference.weights[name] = reference.weights[name] + low_rank.change(adapter, name)
    theirs = reference.forward([TOKENS[:20]], [reference.new_cache()])
    prompts(tmp_path)
    save_file(kept, str(tmp_path / "adapter.safetensors"))
    precision = AS_KEPT | {"prefill": ["attention", "gate_up"]}
    recipe = {"window": WINDOW, "prompts": "prompts.json", "precision": precision, "adapter": "adapter.safetensors"}
    out = tmp_path / "out"
    out.mkdir()
    part = decoder.build({"gguf": path}, recipe, tmp_path, out)
    assert part["products"] == decoder.PRODUCTS and part["prefill"] == decoder.PREFILL
    graphs = ("model.onnx", decoder.PREFILL, decoder.PRODUCTS)
    assert {file.name for file in out.iterdir()} == {"tokenizer.json", *graphs, *(f"{graph}.data" for graph in graphs)}

    session = Session(out / decoder.PRODUCTS, WINDOW)
    ours = session.run([TOKENS[:20]], [20], session.new_cache(1))
    assert cosines(ours, theirs).min() > 0.999 > cosines(plain, theirs).max()

    graph, constants = onnx.load(out / decoder.PRODUCTS).graph, constants_of(out / decoder.PRODUCTS)
    makers = {name: node for node in graph.node for name in node.output}
    beside = {}
    for node in graph.node:
        if (joined := makers.get(node.input[0])) is not None and joined.op_type == "Concat":
            inner = makers[joined.input[1]]
            assert inner.op_type == node.op_type == "MatMulNBits" and inner.input[0] == joined.input[0]
            sizes = [{each.name: each.i for each in product.attribute} for product in (node, inner)]
            assert sizes[0]["bits"] == 4 and sizes[1]["bits"] == 8 and sizes[1]["N"] == 32
            assert sizes[0]["K"] == sizes[1]["K"] + 32
            beside[node.input[1]] = inner.input[1]
    changed = ("blk.0.qkv", "blk.1.output", "blk.1.down")
    assert beside == {f"{name}.kept.codes": f"{name}.beside.codes" for name in changed}
    assert sum(node.op_type == "Concat" for node in graph.node) == len(changed)
    # Of queries and values, which nothing changes, the block beside is nothing.
    codes, fine = constants["blk.0.qkv.kept.codes"][:, -1], constants["blk.0.qkv.kept.zeros.fine"][:, -1]
    untouched = np.r_[:64, 96:128]
    assert not codes[untouched].any() and not fine[untouched].any() and (codes[64:96] != 0).any(axis=1).all()


@pytest.mark.parametrize("embedding", ["fp16", 8])
def test_4_bit_layers_match_where_4_bits_are_exact(tmp_path: Path, embedding: str | int) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 1, kind=KIND.Q4_0)
    precision = EXACT | {"linear": 4, "embedding": embedding}
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, precision, tmp_path / "model.onnx")
    session, reference = Session(tmp_path / "model.onnx", WINDOW), Reference(path)
    ours = session.run([TOKENS[:20]], [20], session.new_cache(1))
    theirs = reference.forward([TOKENS[:20]], [reference.new_cache()])
    # Half floats round the embedding.
    assert cosines(ours, theirs).min() > (0.99999 if embedding == 8 else 0.9999)


def test_int8_activations_stay_near(tiny, tmp_path: Path) -> None:
    path, _, reference = tiny
    precision = {"linear": 8, "head": 8, "embedding": 8}
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, precision, tmp_path / "model.onnx")
    session = Session(tmp_path / "model.onnx", WINDOW)
    ours = session.run([TOKENS[:20]], [20], session.new_cache(1))
    theirs = reference.forward([TOKENS[:20]], [reference.new_cache()])
    assert cosines(ours, theirs).min() > 0.995


def test_factors_are_kept_in_eight_bits_and_in_fewer() -> None:
    random = np.random.default_rng(6)
    factors = {
        "x.lora_a": random.standard_normal((3, 24)).astype(np.float32),
        "x.lora_b": np.array([[1, -1, 0.5, 0] * 2, [0] * 8], np.float32),
    }
    for bits, step in ((8, 1 / 127), (6, 1 / 31), (5, 1 / 15)):
        kept = low_rank.packed(factors, bits)
        back = low_rank.unpacked(kept)
        for name, value in factors.items():
            assert np.all(np.abs(back[name] - value) <= np.abs(value).max(axis=1, keepdims=True) * step * 0.51)
        assert low_rank.packed(kept, bits).keys() == kept.keys()
        assert kept["x.lora_a"].nbytes == 3 * 24 * bits // 8
    with pytest.raises(ValueError, match="3 columns"):
        low_rank.packed({"x.lora_a": np.ones((2, 3), np.float32)}, 6)


@pytest.mark.parametrize("bits", [8, 6, 5])
def test_an_adapter_is_added_to_the_weights_it_names(tmp_path: Path, bits: int) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 5, kind=KIND.Q8_0)
    reference = Reference(path)
    factors = factors_for(reference, ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "blk.1.attn_output.weight"))
    kept = low_rank.packed(factors, bits)
    plain = reference.forward([TOKENS[:20]], [reference.new_cache()])
    for name in list(factors)[::2]:
        stem = name.removesuffix(".lora_a")
        back = low_rank.unpacked(kept)
        reference.weights[stem] = reference.weights[stem] + back[f"{stem}.lora_b"] @ back[f"{stem}.lora_a"]
    theirs = reference.forward([TOKENS[:20]], [reference.new_cache()])
    prompts(tmp_path)
    save_file(kept, str(tmp_path / "adapter.safetensors"))
    recipe = {"window": WINDOW, "prompts": "prompts.json", "precision": EXACT, "adapter": "adapter.safetensors"}
    out = tmp_path / "out"
    out.mkdir()
    decoder.build({"gguf": path}, recipe, tmp_path, out)
    session = Session(out / "model.onnx", WINDOW)
    ours = session.run([TOKENS[:20]], [20], session.new_cache(1))
    # The moved weights lie on no grid: 8 bits round them a little.
    assert cosines(ours, theirs).min() > 0.999 > cosines(plain, theirs).max()

    with pytest.raises(ValueError, match="blk.9.attn_q.*no such tensor"):
        decoder.Checkpoint(path, {"blk.9.attn_q.weight.lora_a": factors["blk.0.attn_q.weight.lora_a"]})
    wrong = decoder.Checkpoint(path, {"blk.0.ffn_up.weight.lora_a": np.ones((2, 3)), "blk.0.ffn_up.weight.lora_b": np.ones((4, 2))})
    with pytest.raises(ValueError, match="ffn_up.*does not fit"):
        wrong.tensor("blk.0.ffn_up.weight")


def test_the_same_checkpoint_gives_the_same_bytes(tiny, tmp_path: Path) -> None:
    path = tiny[0]
    graphs = []
    for name in ("first.onnx", "second.onnx"):
        decoder.write_graph(decoder.Checkpoint(path), WINDOW, EXACT, tmp_path / name)
        graphs.append((tmp_path / name).read_bytes())
    assert graphs[0] == graphs[1]


def test_large_weights_go_to_a_second_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = replace(tiny_checkpoint.Tiny(), width=256, heads=16, hidden=512)
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 2, size, kind=KIND.Q8_0)
    checkpoint = decoder.Checkpoint(path)
    decoder.write_graph(checkpoint, WINDOW, EXACT, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx.data").exists()
    whole = Session(tmp_path / "model.onnx", WINDOW)
    (tmp_path / "split").mkdir()
    monkeypatch.setattr(graph_file, "INLINE_LIMIT", 1000)
    decoder.write_graph(checkpoint, WINDOW, EXACT, tmp_path / "split" / "model.onnx")
    assert (tmp_path / "split" / "model.onnx.data").stat().st_size > 200_000
    split = Session(tmp_path / "split" / "model.onnx", WINDOW)
    ours = [each.run([TOKENS[:9]], [9], each.new_cache(1)) for each in (whole, split)]
    np.testing.assert_array_equal(*ours)


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 2)
    decoder.write_graph(decoder.Checkpoint(path), WINDOW, EXACT, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    tables = [t.name for t in graph.initializer if list(t.dims) == [320, 2, 32]]
    assert tables == ["head.codes"]


@pytest.mark.parametrize("kind", [KIND.Q4_0, KIND.Q5_0, KIND.Q8_0, KIND.Q4_1, KIND.Q5_1])
def test_8_bits_keep_the_grid_of_the_source(tmp_path: Path, kind: KIND) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 4, kind=kind)
    checkpoint = decoder.Checkpoint(path)
    name = "blk.0.ffn_gate.weight"
    weights = checkpoint.tensor(name)

    def error(grid) -> float:
        codes, scales, zeros = decoder.quantise(weights, 8, grid)
        back = (codes.astype(np.float32) - zeros[:, :, None]) * scales[:, :, None]
        return float(np.linalg.norm(back.reshape(weights.shape) - weights) / np.linalg.norm(weights))

    kept = error(checkpoint.grid(name))
    # A source with offsets cannot be exact: the zero point is a whole number.
    assert kept < (0.6 * error(None) if kind in (KIND.Q4_1, KIND.Q5_1) else 1e-6)


def test_the_grid_of_q4_k_is_read_right() -> None:
    random = np.random.default_rng(8)
    raw = random.integers(0, 256, (4, 144), dtype=np.uint8)
    raw[:, :4] = np.array([0.01, 0.02], dtype=np.float16).view(np.uint8)
    values = gguf.quants.dequantize(raw, KIND.Q4_K).reshape(4, 8, 32)

    class OneTensor(decoder.Checkpoint):
        def __init__(self) -> None:
            tensor = type("Tensor", (), {})()
            tensor.tensor_type, tensor.data, tensor.shape = KIND.Q4_K, raw, (256, 4)
            self._tensors, self._adapter = {"x": tensor}, {}

    step, offset = OneTensor().grid("x")
    steps = (values - offset[:, :, None]) / np.maximum(step, 1e-9)[:, :, None]
    used = np.broadcast_to(step[:, :, None] > 0, steps.shape)
    np.testing.assert_allclose(steps[used], np.rint(steps[used]), atol=2e-3)
    assert 0 <= np.rint(steps[used]).min() and np.rint(steps[used]).max() <= 15


def test_answers_hold_no_token_that_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 6, kind=KIND.Q8_0)
    reference = Reference(path)
    theirs = reference.forward([TOKENS[:20]], [reference.new_cache()])
    kept = np.setdiff1d(np.arange(320), [int(theirs.argmax()), 7, 319])
    prompts(tmp_path)
    bits = np.zeros(320, dtype=bool)
    bits[kept] = True
    save_file({"kept": np.packbits(bits)}, str(tmp_path / "vocabulary.safetensors"))
    recipe = {"window": WINDOW, "prompts": "prompts.json", "precision": EXACT, "vocabulary": "vocabulary.safetensors"}
    out = tmp_path / "out"
    out.mkdir()
    part = decoder.build({"gguf": path}, recipe, tmp_path, out)
    session = Session(out / "model.onnx", WINDOW)
    # The texts that it reads may hold them all.
    ours = session.run([TOKENS[:20]], [20], session.new_cache(1))
    assert part["answer_tokens"] == decoder.ANSWER_TOKENS
    np.testing.assert_array_equal(np.fromfile(out / decoder.ANSWER_TOKENS, dtype="<u4"), kept)
    assert_close(ours, theirs[:, kept])

    # As alpha-4o-mini has it: with the tables aside, and a second graph that takes them from there.
    monkeypatch.setattr(graph_file, "INLINE_LIMIT", 1000)
    monkeypatch.setattr(graph_file, "SMALL", 512)
    recipe["precision"] = {"linear": 8, "head": 8, "embedding": 8, "prefill": ["attention", "gate_up", "down"]}
    both = tmp_path / "both"
    both.mkdir()
    part = decoder.build({"gguf": path}, recipe, tmp_path, both)
    assert part["prefill"] == decoder.PREFILL
    graphs = {"model.onnx", "model.onnx.data", decoder.PREFILL, f"{decoder.PREFILL}.data"}
    assert {file.name for file in both.iterdir()} == graphs | {decoder.ANSWER_TOKENS, "tokenizer.json"}
    for name in ("model.onnx", decoder.PREFILL):
        session = Session(both / name, WINDOW)
        assert cosines(session.run([TOKENS[:20]], [20], session.new_cache(1)), theirs[:, kept]).min() > 0.99

    recipe["precision"] = EXACT
    bits[2] = False
    save_file({"kept": np.packbits(bits)}, str(tmp_path / "vocabulary.safetensors"))
    with pytest.raises(ValueError, match="vocabulary.*stop token"):
        decoder.build({"gguf": path}, recipe, tmp_path, out)
    save_file({"kept": np.packbits(bits[:160])}, str(tmp_path / "vocabulary.safetensors"))
    with pytest.raises(ValueError, match="another vocabulary"):
        decoder.build({"gguf": path}, recipe, tmp_path, out)


def test_4_bit_codes_are_packed_low_half_first() -> None:
    weights = np.tile(np.arange(16, dtype=np.float32) - 3, (2, 6))
    codes, scales, zeros = decoder.quantise(weights, 4)
    assert codes.shape == (2, 3, 16) and zeros.shape == (2, 2)
    unpacked = np.stack([codes & 15, codes >> 4], axis=-1).reshape(2, 3, 32)
    zero = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(2, 4)[:, :3]
    back = (unpacked.astype(np.float32) - zero[:, :, None]) * scales[:, :, None]
    np.testing.assert_allclose(back.reshape(2, 96), weights, atol=1e-4)


def prompts(folder: Path, stop: str = "<|im_end|>", tasks: tuple[str, ...] = decoder.TASKS) -> None:
    tree = {"tasks": {task: {"prefix": "a", "suffix": "b"} for task in tasks}, "stop": [stop]}
    (folder / "prompts.json").write_text(json.dumps(tree), encoding="utf-8")


def test_build_writes_both_files_and_the_manifest_part(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 2)
    prompts(tmp_path)
    tree = json.loads((tmp_path / "prompts.json").read_text(encoding="utf-8"))
    tree["tasks"]["reply"] |= {"most_doubt": 1.5, "least_right": 0.75, "beforehand": {"english": 0.5}}
    (tmp_path / "prompts.json").write_text(json.dumps(tree), encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    recipe = {"window": 64, "prompts": "prompts.json", "precision": EXACT}
    part = decoder.build({"gguf": path}, recipe, tmp_path, out)
    assert sorted(file.name for file in out.iterdir()) == ["model.onnx", "tokenizer.json"]
    assert part["tasks"]["reply"] == {"prefix": "a", "suffix": "b", "most_doubt": 1.5, "least_right": 0.75, "beforehand": {"english": 0.5}}
    assert part["tasks"]["positive"] == {"prefix": "a", "suffix": "b"}
    del part["tasks"]
    assert part == {
        "layers": 2,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab": 320,
        "window": 64,
        "stop_ids": [2],
        "languages": "any",
    }
    part = decoder.build({"gguf": path}, recipe | {"languages": "english"}, tmp_path, out)
    assert part["languages"] == "english"


def test_how_moods_are_read_goes_into_the_manifest(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "qwen2", 2)
    prompts(tmp_path)
    found = {"tokens": np.array([7, 9], np.int32), "weights": np.array([[1, 2], [3, -4], [0.5, 0]], np.float16)}
    save_file(found | {"bias": np.array([0, 1, -1], np.float32)}, str(tmp_path / "mood.safetensors"))
    recipe = {"window": 64, "prompts": "prompts.json", "precision": EXACT, "mood": "mood.safetensors"}
    (tmp_path / "out").mkdir()
    part = decoder.build({"gguf": path}, recipe, tmp_path, tmp_path / "out")
    assert part["mood"] == {"tokens": [7, 9], "weights": [[1, 2], [3, -4], [0.5, 0]], "bias": [0, 1, -1]}
    found["tokens"] = np.array([7, 320], np.int32)
    save_file(found | {"bias": np.zeros(3, np.float32)}, str(tmp_path / "mood.safetensors"))
    with pytest.raises(ValueError, match="tokens of this vocabulary"):
        decoder.build({"gguf": path}, recipe, tmp_path, tmp_path / "out")


def test_a_wrong_source_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tiny_checkpoint.write(tmp_path / "t.gguf", "llama", 2)
    recipe = {"window": 64, "prompts": "prompts.json", "precision": EXACT}
    prompts(tmp_path, stop="<|absent|>")
    with pytest.raises(ValueError, match="absent.*does not hold"):
        decoder.build({"gguf": path}, recipe, tmp_path, tmp_path)
    prompts(tmp_path, tasks=("positive", "negative"))
    with pytest.raises(ValueError, match="no 'reply'"):
        decoder.build({"gguf": path}, recipe, tmp_path, tmp_path)
    other = tiny_checkpoint.write(tmp_path / "u.gguf", "phi2", 2)
    with pytest.raises(ValueError, match="'phi2'.*only llama, qwen2 and gemma3"):
        decoder.Checkpoint(other)


# --- the built generators ------------------------------------------------------

# What the generators are for. An answer to them is open, so two next tokens are
# often near ties, and the int8 activations of the runtime's fast path tip some:
# a flip is held against the graph by what the reference thinks of its choice.
FIXED_TEXTS = [
    "My sister moved to Leeds in May because she found a new job.",
    "The bus was late again and I missed the start of the film.",
    "Waited 50 minutes for a burger and it came out cold.",
    "The library opens at 9 and has two new printers.",
    "We won 3:1 and my daughter scored twice.",
    "Why does nobody answer my letters?",
    "Our landlord raised the rent to 900 and still has not fixed the heater.",
    "I start my new job at the bakery on Monday.",
    "It has rained since Tuesday.",
    "Grandma taught me how to make dumplings.",
]
ANSWER = 16
# Against the weights that the recipe asks for: the share of tokens that must be
# the reference's own choice, and how much less likely than its own (in nats) the
# reference may find the others.
EQUAL, REGRET = 0.95, 0.3
# What fewer bits may cost: how much less likely, on average, full precision may
# find what the built graph chooses.
MEAN_REGRET = 0.03


def _linear_layers(reference: Reference) -> list[str]:
    return [name for name, value in reference.weights.items() if name.startswith("blk.") and value.ndim == 2]


def _kind(name: str) -> str:
    part = name.split(".")[2]
    return {"ffn_gate": "gate_up", "ffn_up": "gate_up", "ffn_down": "down"}.get(part, "attention")


@pytest.mark.parametrize("identifier", ["alpha-4o-mini", "beta-3-haiku", "gamma-1.5-flash"])
def test_a_built_generator_answers_like_the_full_precision_model(identifier: str) -> None:
    build = ROOT / "models" / identifier / "build"
    if not build.is_dir():
        pytest.skip(f"{identifier} is not built: scripts/setup builds it")
    folder = build / "generator"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    part = manifest["generator"]
    source = Sources(Places.here()).locate(manifest["source"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    task = part["tasks"]["positive"]
    rows = [
        tokenizer.encode(f"{task['prefix']}{text}{task['suffix']}", add_special_tokens=False).ids for text in FIXED_TEXTS
    ]

    # The file's own embedding, even where the graph embeds with the head's table.
    reference = Reference(source["gguf"])
    recipe = json.loads((ROOT / "models" / identifier / "model.json").read_text(encoding="utf-8"))["components"]["generator"]
    checkpoint = decoder.Checkpoint(source["gguf"])
    if "adapter" in recipe:
        adapter = low_rank.unpacked(load_file(ROOT / "models" / identifier / recipe["adapter"]))
        for name in {factor.rpartition(".")[0] for factor in adapter}:
            reference.weights[name] = reference.weights[name] + adapter[f"{name}.lora_b"] @ adapter[f"{name}.lora_a"]
        checkpoint = decoder.Checkpoint(source["gguf"], adapter)
    tokens, logits = reference.greedy(rows, ANSWER)
    assert logits.shape[-1] == part["vocab"]
    # Past its stop token a model babbles; the answer ends there.
    stops = np.isin(tokens, part["stop_ids"])
    inside = np.cumsum(stops, axis=1) - stops == 0

    session = Session(folder / "model.onnx", 128)

    def answered(prompt: Session, rows: list[list[int]]) -> np.ndarray:
        """Logits [text, step, token] where prompts are read by the one graph and steps made by the other."""
        caches, ours = [], []
        for row in rows:
            caches.append(session.new_cache(1))
            ours.append(prompt.run([row], [len(row)], caches[-1])[0])
        cache, lengths, steps = session.join(caches), [len(row) for row in rows], [np.stack(ours)]
        for step in range(ANSWER - 1):
            lengths = [length + 1 for length in lengths]
            # Fed with the reference's tokens: each step is judged by itself.
            steps.append(session.run([[int(token)] for token in tokens[: len(rows), step]], lengths, cache))
        return np.stack(steps, axis=1)

    # As it is served.
    measured = answered(Session(folder / part["prefill"], 128) if "prefill" in part else session, rows)
    kept = np.fromfile(folder / part["answer_tokens"], dtype="<u4") if "answer_tokens" in part else np.arange(part["vocab"])
    chosen = kept[measured.argmax(axis=-1)]

    def regrets(wanted: np.ndarray, chosen: np.ndarray, inside: np.ndarray) -> np.ndarray:
        taken = np.take_along_axis(wanted, chosen[..., None], axis=-1)[..., 0]
        return (wanted.max(axis=-1) - taken)[inside]

    lost = regrets(logits, chosen, inside)
    print(f"{identifier}: {np.mean(lost == 0):.1%} of tokens as in full precision, mean regret {lost.mean():.4f}")
    assert lost.mean() <= MEAN_REGRET

    # The same weights as the first graph has, which then reads the prompts too: what is left is the arithmetic.
    for name in _linear_layers(reference):
        bits = decoder.bits_of(recipe["precision"], _kind(name))
        reference.weights[name] = decoder.settled(reference.weights[name], bits, checkpoint.grid(name))
    # Half of the texts: the reference is slow.
    rows, tokens, inside = (part[: len(rows) // 2] for part in (rows, tokens, inside))
    measured = answered(session, rows)
    chosen = kept[measured.argmax(axis=-1)]
    caches, fed, told = [reference.new_cache() for _ in rows], rows, []
    for step in range(ANSWER):
        told.append(reference.forward(fed, caches))
        fed = [[int(token)] for token in tokens[:, step]]
    settled = np.stack(told, axis=1)
    equal = (chosen == settled.argmax(axis=-1))[inside]
    near = cosines(measured.reshape(-1, len(kept)), settled[..., kept].reshape(-1, len(kept))).reshape(inside.shape)[inside]
    worst = regrets(settled, chosen, inside).max()
    print(f"{identifier}: of its own weights {equal.mean():.1%} of tokens equal, worst regret {worst:.2f}, cosine {near.mean():.5f}")
    assert equal.mean() >= EQUAL
    assert worst <= REGRET
    assert near.mean() >= 0.99
