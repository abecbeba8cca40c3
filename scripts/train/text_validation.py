"""Writes the texts that no training sees as a file for `scripts/evaluate moderation`.

Those are the validation tenth of every source and the whole held-out sources.
A label that is trusted less than half in training is written as not judged
(null), so that nothing is measured on a guess: what only stands in for a
category, and what a line of ours says of those that it was not written for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import text_data

# Weight of a label in training from which it is measured on: that of everyday lines of ours, which are harmless.
MEASURED = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines to write; other people's texts: keep it out of the repository")
    args = parser.parse_args()

    lines = []
    for row in text_data.load(args.data):
        if row.side() not in ("validation", "held_out") or row.sentiment >= 0:
            continue
        judged = [w >= MEASURED for w in row.weights]
        labels = {c: int(t) if known else None for c, t, known in zip(text_data.CATEGORIES, row.targets, judged)}
        lines.append(json.dumps({"text": row.text, "labels": labels, "source": row.source}, ensure_ascii=False))
    text_data.write(args.out, lambda path: path.write_text("\n".join(lines) + "\n", encoding="utf-8"))
    print(f"{len(lines)} texts")


if __name__ == "__main__":
    main()
