"""Lets a finished text classifier judge the training texts.

Its probabilities teach another model (`--teacher` of text_classifier.py) or
show which labels are doubtful (`--opinion`). Writes `probabilities` [rows, 5]
in the order of text_data.load, NaN where it was not asked, and `data`, the
digest of those rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import text_data
from forge import built_graph
from text_scores import Classifier, probabilities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--model", type=Path, required=True, help="built text component, e.g. models/delta-3.1/build/text")
    parser.add_argument("--out", type=Path, required=True, help=".npz to write")
    parser.add_argument("--share", type=float, default=1.0, help="share of the public texts that is judged")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    rows = text_data.load(args.data)
    manifest = json.loads((args.model / "manifest.json").read_text(encoding="utf-8"))["text_classifier"]
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    model = Classifier(built_graph.load(args.model / "model.onnx"), manifest, tokenizer, args.threads)
    # Ours that were read for all five categories need no teacher, and everyday ones none who finds harm in them.
    half_judged = {f"authored/{name}" for name in text_data.HARM_FILES}

    def is_asked(row: text_data.Row) -> bool:
        if row.source.startswith("authored/"):
            return row.source in half_judged and min(row.weights) < 1
        return text_data.share_of(row.text) < args.share

    asked = [i for i, row in enumerate(rows) if row.sentiment < 0 and is_asked(row)]
    harm, _ = model.scores([rows[i].text for i in asked])
    found = np.full((len(rows), 5), np.nan, np.float32)
    found[asked] = probabilities(harm, manifest["calibration"])
    with args.out.open("wb") as out:
        np.savez(out, probabilities=found, data=text_data.digest(rows))


if __name__ == "__main__":
    main()
