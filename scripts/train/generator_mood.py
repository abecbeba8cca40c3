"""Learns to read what a text tells (good news, bad news, neither) from how a built generator would begin its reply.

A linear reading of the logits of some tokens where a reply begins: small models read a text better than they answer it. The
server compares it with the reply, and begins that anew where it is glad of what is no good news. Learns from the judged lines of ours,
but for the tenth that is kept aside; of that, one half sets how sure the reading may be, the other is what it prints. Writes
`mood.safetensors` beside the recipe, for the next build of the generator: `tokens` [n], `weights` [3, n], `bias` [3].
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generator_data  # noqa: E402
import text_data  # noqa: E402

# In the order of the server's.
TARGETS = {"g": (1.0, 0.0, 0.0), "b": (0.0, 1.0, 0.0), "n": (0.0, 0.0, 1.0), "m": (0.5, 0.5, 0.0)}
ROWS, PLACES = 8, 256
# Of a longer text its beginning is read: what it tells is clear by then.
MOST_TOKENS = 170
# Tokens that are looked at, and how many of them the reading is made of in the end.
LOOKED, KEPT = 1500, 256
HELD_BACK, HELD_BACK_LAST = 3e-3, 3e-4
# As in src/domain/mood.rs.
SURE, DOUBTFUL = 0.5, 0.35
NAMES = {"g": "good news", "b": "bad news", "n": "texts that are neither", "m": "that are both"}


class Beginnings:
    """A built generator, asked for the logits with which its replies would begin."""

    def __init__(self, folder: Path, threads: int) -> None:
        part = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["generator"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        prompt = part["tasks"]["reply"]
        self.before, self.after = self.ids(prompt["prefix"]), self.ids(prompt["suffix"])
        # What a text spells like a control token is text.
        self.tokenizer.encode_special_tokens = True
        kept = folder / part["answer_tokens"] if "answer_tokens" in part else None
        self.tokens = np.fromfile(kept, "<u4").astype(np.int64) if kept else np.arange(part["vocab"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        # The library cannot multiply what a graph for our own products has; its first graph is the nearest.
        graph = folder / ("model.onnx" if "products" in part else part.get("prefill", "model.onnx"))
        self.session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.caches: dict[int, dict[str, onnxruntime.OrtValue]] = {}

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def usual(self) -> np.ndarray:
        """The places among the logits of the tokens that replies of ours begin with or often hold."""
        replies = [line["reply"] for line in text_data.all_authored_lines()
                   if isinstance(line.get("reply"), str) and line["reply"] and line.get("lang", "en") == "en"]
        ids = [self.ids(reply) for reply in replies]
        held, first = Counter(token for reply in ids for token in reply), Counter(reply[0] for reply in ids)
        usual = {token for token, _ in held.most_common(LOOKED)} | {token for token, count in first.items() if count > 1}
        return np.flatnonzero(np.isin(self.tokens, list(usual)))

    def _cache(self, rows: int) -> dict[str, onnxruntime.OrtValue]:
        if rows not in self.caches:
            self.caches[rows] = {
                entry.name: onnxruntime.OrtValue.ortvalue_from_numpy(
                    np.zeros((rows, entry.shape[1], PLACES, entry.shape[3]), np.float32)
                )
                for entry in self.session.get_inputs() if entry.name.startswith("past.")
            }
        return self.caches[rows]

    def logits(self, texts: Sequence[str], places: np.ndarray) -> np.ndarray:
        """`[texts, places]`, where a reply to each begins."""
        rows = [self.before + self.ids(text)[:MOST_TOKENS] + self.after for text in texts]
        of_length: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            of_length[len(row)].append(number)
        out = np.zeros((len(texts), len(places)), np.float32)
        for length, numbers in of_length.items():
            for start in range(0, len(numbers), ROWS):
                batch = numbers[start : start + ROWS]
                binding = self.session.io_binding()
                binding.bind_cpu_input("input_ids", np.array([rows[number] for number in batch], np.int64))
                binding.bind_cpu_input("seqlens_k", np.full(len(batch), length - 1, np.int32))
                binding.bind_cpu_input("total_sequence_length", np.array(length, np.int32))
                binding.bind_output("logits")
                for name, value in self._cache(len(batch)).items():
                    binding.bind_ortvalue_input(name, value)
                    binding.bind_ortvalue_output(f"present.{name.removeprefix('past.')}", value)
                self.session.run_with_iobinding(binding)
                found = binding.get_outputs()[0].numpy()
                out[batch] = found.reshape(len(batch), -1, found.shape[-1])[:, -1, places]
        return out


def regression(x: np.ndarray, y: np.ndarray, held_back: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight [3, n] and bias [3] of the multinomial logistic regression of shares [rows, 3], and how much each column tells."""
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    inputs, targets = torch.from_numpy((x - mean) / spread), torch.from_numpy(y)
    weight = torch.zeros(3, x.shape[1], requires_grad=True)
    bias = torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        told = torch.log_softmax(inputs @ weight.T + bias, dim=1)
        loss = held_back * weight.square().sum() - (told * targets).sum(dim=1).mean()
        loss.backward()
        return loss

    optimiser.step(step)
    own = weight.detach().numpy() / spread
    return own, bias.detach().numpy() - own @ mean, np.abs(weight.detach().numpy()).max(axis=0)


def chosen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The columns that tell most, the others left out a few at a time."""
    kept = np.arange(x.shape[1])
    while len(kept) > KEPT:
        _, _, tells = regression(x[:, kept], y, HELD_BACK)
        kept = np.sort(kept[np.argsort(-tells)[: max(KEPT, len(kept) * 2 // 3)]])
    return kept


def shares(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def surest(logits: np.ndarray, y: np.ndarray) -> float:
    """What the logits are multiplied with, so that their shares are most like what was judged."""
    def loss(factor: float) -> float:
        return float(-(np.log(np.maximum(shares(factor * logits), 1e-9)) * y).sum(axis=1).mean())

    return min(np.linspace(0.3, 1.5, 61), key=loss)


def told(p: np.ndarray, letters: np.ndarray) -> str:
    """How often the reading is right, of texts with these letters, and what the server makes of it."""
    clear = np.isin(letters, ["g", "b"])
    right = (p[:, 0] > p[:, 1]) == (letters == "g")
    refused = (p[:, 0] < DOUBTFUL) & (p[:, 1:].max(axis=1) >= SURE)
    shares_refused = ", ".join(f"{np.mean(refused[letters == letter]):.3f} of {np.sum(letters == letter)} {name}" for letter, name in NAMES.items())
    return f"good from bad news told in {np.mean(right[clear]):.3f} of {clear.sum()}; gladness refused of {shares_refused}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder with its built generator, e.g. models/alpha-4o-mini")
    parser.add_argument("--most", type=int, default=10**6, help="texts to learn from: a large model takes a quarter of a second for each")
    parser.add_argument("--seed", type=int, default=221)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    judged = generator_data.moods()
    side = {text: text_data.split_of(text, f"authored/{generator_data.MOODS}") for text in judged}
    # The lines of some files are learned whole, also on that side.
    whole = {example.text for example in generator_data.written(names=generator_data.LEARNED)}
    aside = [text for text in judged if side[text] == "validation" and text not in whole]
    train = [text for text in judged if side[text] != "validation"]
    train = random.Random(args.seed).sample(train, min(args.most, len(train)))
    model = Beginnings(args.model / "build" / "generator", args.threads)
    looked = model.usual()
    print(f"{len(train)} texts to learn from, {len(aside)} kept aside, {len(looked)} tokens", flush=True)
    x, y = model.logits(train, looked), np.array([TARGETS[judged[text]] for text in train], np.float32)
    kept = chosen(x, y)
    weight, bias, _ = regression(x[:, kept], y, HELD_BACK_LAST)

    logits = model.logits(aside, looked[kept]) @ weight.T + bias
    letters = np.array([judged[text] for text in aside])
    sets = np.array([int(text_data.name_of(text), 16) % 2 == 0 for text in aside])
    factor = surest(logits[sets], np.array([TARGETS[letter] for letter in letters[sets]]))
    print(f"sureness times {factor:.2f}; {told(shares(factor * logits[~sets]), letters[~sets])}")
    found = {
        "tokens": model.tokens[looked[kept]].astype(np.int32),
        "weights": (factor * weight).astype(np.float16),
        "bias": (factor * bias).astype(np.float32),
    }
    text_data.write(args.model / "mood.safetensors", lambda path: save_file(found, str(path)))


if __name__ == "__main__":
    main()
