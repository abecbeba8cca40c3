"""Lets finished text classifiers judge the training texts.

Their probabilities teach another model (`--teacher` of text_classifier.py) or
show which labels are doubtful (`--opinion`); of several classifiers the mean of
their log-odds, as they err in different places. Asked are the English texts of
the training side. Writes `probabilities` [rows, 5] in the order of
text_data.load, NaN where none was asked, and `data`, the digest of those rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import text_data
from text_scores import built, mean_odds, probabilities, sigmoid

HALF_JUDGED = {f"authored/{name}" for name in text_data.HARM_FILES}


def is_asked(row: text_data.Row, share: float) -> bool:
    """Whether a teacher judges it; of the public texts this share."""
    if row.sentiment >= 0 or row.side() != "train" or not text_data.is_english(row):
        return False
    if row.source.startswith("authored/"):
        # What was read for all five categories needs no teacher, and everyday texts none who finds harm in them.
        return row.source in HALF_JUDGED and min(row.weights) < 1
    return text_data.share_of(row.text) < share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="built text components, e.g. models/delta-3.1/build/text")
    parser.add_argument("--out", type=Path, required=True, help=".npz to write")
    parser.add_argument("--share", type=float, default=1.0, help="share of the public texts that is judged")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    rows = text_data.load(args.data)
    asked = [i for i, row in enumerate(rows) if is_asked(row, args.share)]
    said = []
    for folder in args.model:
        model, places = built(folder, args.threads)
        harm, _ = model.scores([rows[i].text for i in asked])
        said.append(probabilities(harm, places))
        print(f"{folder}: {len(asked)} texts", flush=True)
    found = np.full((len(rows), 5), np.nan, np.float32)
    found[asked] = sigmoid(mean_odds(said))
    with args.out.open("wb") as out:
        np.savez(out, probabilities=found, data=text_data.digest(rows))


if __name__ == "__main__":
    main()
