"""Fits a head of the judge of answers that tells what has nothing to express, on its finished states.

The regression of text_expressibility.py, on the English ones of its lines: a larger encoder sees what the classifiers of
alpha-4o-mini and gamma-1.5-flash do not, and the mean of all four decides. Run this after answer_judge_finish.py: it adds
that head to judge.safetensors, or fits it anew, and changes nothing else. Its threshold is folded into the bias, so that a
text is special where the share of a statement is below a half. Prints what it is worth, alone, on the lines kept aside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from safetensors.numpy import load_file, save_file  # noqa: E402

import text_card  # noqa: E402
import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from forge.judge import HEADS  # noqa: E402
from text_expressibility import OTHERS_WEIGHT, SOURCES, drawn, regression  # noqa: E402
from text_scores import Classifier  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of mpnet")
    parser.add_argument("--judge", type=Path, required=True, help="judge.safetensors")
    parser.add_argument("--threshold", type=float, default=0.27, help="share of a special text from which it is one: lower than the classifiers', which are shy of it")
    parser.add_argument("--seed", type=int, default=181)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    kind = encoder.BACKBONES["mpnet"]
    delta = load_file(args.judge)
    merged = encoder.merge(encoder.load_base(args.base / kind.weights), delta, HEADS)
    graph = encoder.graph(merged, kind, heads=HEADS, embedding=True)
    model = Classifier(graph, kind.special_ids, text_data.plain_tokenizer(kind, args.base), args.threads)
    rows = [row for row in drawn(text_data.load(args.data), args.seed) if row.lang == "en"]
    states = model.first([row.text for row in rows], "embedding")
    kinds = np.array([row.kind for row in rows])
    weights = np.array([1.0 if row.source in SOURCES else OTHERS_WEIGHT for row in rows])
    learned = np.array([row.side() != "validation" for row in rows])
    weight, bias = regression(states[learned], kinds[learned], weights[learned])
    bias[0] += np.log(args.threshold / (1 - args.threshold))
    aside = np.flatnonzero(~learned)
    print("\n".join(text_card.special_lines([rows[i] for i in aside], states[aside] @ weight.T + bias, 0.5)), flush=True)
    delta |= {"expressibility.weight": weight, "expressibility.bias": bias}
    text_data.write(args.judge, lambda path: save_file(delta, str(path)))


if __name__ == "__main__":
    main()
