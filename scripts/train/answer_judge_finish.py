"""Finishes a trained judge of answers: ranges, figures, the delta as it is kept, the head of sentences as factors.

Measures the activation ranges for the int8 graph on pairs that the judge learned from, writes the delta with factors of
six bits, and prints what the graph that the server will run is worth on what was kept aside, beside the same in full
precision.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import attitude_data  # noqa: E402
import generator_data  # noqa: E402
import judge_data  # noqa: E402
import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from forge.judge import HEADS  # noqa: E402
from judge_sentences import kept_head  # noqa: E402
from text_calibrate import ranges_of  # noqa: E402
from text_scores import Classifier  # noqa: E402

# Sequences that the ranges are measured on.
RANGED = 1200
# Of the factors of the head that tells which sentences fit.
HEAD_RANK = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=Path, required=True, help="what answer_judge.py has written")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of mpnet")
    parser.add_argument("--out", type=Path, required=True, help="judge.safetensors to write")
    parser.add_argument("--seed", type=int, default=261)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    kind = encoder.BACKBONES["mpnet"]
    tokenizer, base = text_data.plain_tokenizer(kind, args.base), encoder.load_base(args.base / kind.weights)
    delta = low_rank.packed(load_file(args.delta), bits=6)
    items = judge_data.judged() + [item for side in judge_data.moods() for item in side]
    aside = [item for item in items if generator_data.judged_aside(item.text)]
    learned = [item for item in items if not generator_data.judged_aside(item.text)]
    sample = judge_data.windows(tokenizer, kind, random.Random(args.seed).sample(learned, RANGED))
    merged = encoder.merge(base, delta, HEADS)
    shown = Classifier(encoder.graph(merged, kind, "float32", show=True, heads=HEADS), kind.special_ids, tokenizer, args.threads)
    delta |= ranges_of(shown, sample, HEADS)
    rows = judge_data.windows(tokenizer, kind, aside)
    read, read_aside = (judge_data.sentences(aside=side) for side in (False, True))
    plain = encoder.graph(encoder.merge(base, delta, HEADS), kind, "float32", heads=HEADS, embedding=True)
    states = Classifier(plain, kind.special_ids, tokenizer, args.threads).each(judge_data.windows(tokenizer, kind, read), "embedding")
    bias = attitude_data.lifted(delta["attitude.bias"], [item.fitting for item in read])
    delta |= kept_head("attitude", delta.pop("attitude.weight"), bias, states, HEAD_RANK)
    counts = [len(names) for names in attitude_data.names(replies=True)]
    for precision in ("float32", "int8"):
        graph = encoder.graph(encoder.merge(base, delta, HEADS), kind, precision, heads=HEADS)
        classifier = Classifier(graph, kind.special_ids, tokenizer, args.threads)
        found = classifier.each(rows, "verdict")
        print(f"{precision}: {judge_data.told(found, aside)}", flush=True)
        said = classifier.each(judge_data.windows(tokenizer, kind, read_aside), "attitude")
        print(f"{precision}, sentences: {attitude_data.report(said, [item.fitting for item in read_aside], counts)}", flush=True)
        for file in judge_data.READ:
            of_file = [i for i, item in enumerate(aside) if item.file == file]
            print(f"{precision}, {file}: {judge_data.told(found[of_file], [aside[i] for i in of_file])}", flush=True)
    text_data.write(args.out, lambda path: save_file(delta, str(path)))


if __name__ == "__main__":
    main()
