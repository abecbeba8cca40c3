"""Writes the golden scores that the tests hold the built text model to.

Takes authored validation texts with their labels and lets the full-precision
graph score them; run it after text_calibrate.py has written a new model.
"""

from __future__ import annotations

import argparse
import bz2
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import text_data
import text_scores
from forge import encoder


def sample(rows: list[text_data.Row], each: int) -> list[text_data.Row]:
    """Short texts of every authored file, harmful and not, in a fixed order."""
    out: list[text_data.Row] = []
    kept = [
        r for r in rows
        if r.source.startswith("authored/") and r.sentiment < 0 and len(r.text) <= 160
        # Of texts in other languages it says more or less nothing; the server asks another one about them.
        and r.side() == "validation" and text_data.is_english(r)
    ]
    for source in sorted({r.source for r in kept}):
        for positive in (True, False):
            group = [r for r in kept if r.source == source and r.positive() == positive]
            # All there is of the expressibility texts: they are few and short.
            take = len(group) if source in ("authored/special", "authored/near_miss") else each
            out += sorted(group, key=lambda r: text_data.share_of(r.text))[:take]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="model folder of a MiniLM classifier, e.g. models/alpha-4o-mini")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=10, help="texts of each file and label")
    args = parser.parse_args()

    rows = sample(text_data.load(args.data), args.each)
    kind = encoder.BACKBONES["minilm"]
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    merged = encoder.merge(
        encoder.load_base(args.base / "model.safetensors"), load_file(args.model / "text.safetensors")
    )
    model = text_scores.Classifier(encoder.graph(merged, kind, "float32"), kind.special_ids, tokenizer, 2)
    harm, special = model.scores([r.text for r in rows])
    places = json.loads((args.model / "text.json").read_text(encoding="utf-8"))["calibration"]
    harm, special = text_scores.probabilities(harm, places), 1 - text_scores.softmax(special)[:, 0]
    texts = []
    for row, p, s in zip(rows, harm, special):
        texts.append(
            {
                "text": row.text,
                "labels": {c: int(t) for c, t in zip(text_data.CATEGORIES, row.targets)},
                "kind": text_data.EXPRESSIBILITY[max(row.kind, 0)],
                "harm": [round(float(v), 4) for v in p],
                "special": round(float(s), 4),
            }
        )
    lines = ",\n".join(json.dumps(t, ensure_ascii=False) for t in texts)
    packed = bz2.compress(('{"texts": [\n' + lines + "\n]}\n").encode())
    text_data.write(args.out, lambda p: p.write_bytes(packed))
    print(f"{len(texts)} texts, {np.mean([any(t['labels'].values()) for t in texts]):.0%} harmful")


if __name__ == "__main__":
    main()
