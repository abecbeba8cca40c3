"""Lets finished text classifiers judge the training texts.

Their probabilities teach another model (`--teacher` of text_classifier.py) or
show which labels are doubtful (`--opinion`); of several classifiers the mean of
their log-odds, as they err in different places. Asked are the English texts of
the training side. One that is not built yet is asked by its delta (`--trained`),
in full precision or, on a GPU, in bfloat16; its log-odds are as it was trained. Writes `probabilities` [rows, 5] in the order of
text_data.load, NaN where none was asked, and `data`, the digest of those rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import text_data
from normalise import normalise
from text_scores import built, cut, mean_odds, probabilities, sigmoid

HALF_JUDGED = {f"authored/{name}" for name in text_data.HARM_FILES}


def is_asked(row: text_data.Row, share: float) -> bool:
    """Whether a teacher judges it; of the public texts this share."""
    if row.sentiment >= 0 or row.side() != "train" or not text_data.is_english(row):
        return False
    if row.source.startswith("authored/"):
        # What was read for all five categories needs no teacher, and everyday texts none who finds harm in them.
        return row.source in HALF_JUDGED and min(row.weights) < 1
    return text_data.share_of(row.text) < share


def trained(kind_name: str, base: Path, delta: Path, pairs: list[tuple[str, str]], device: str) -> np.ndarray:
    """The probabilities that a classifier which is only a delta holds of each text, the highest of its windows, as written or normalised."""
    # Only those need PyTorch.
    from safetensors.numpy import load_file

    import text_classifier
    from forge import encoder
    from text_model import TextClassifier, load_base

    kind, found = encoder.BACKBONES[kind_name], load_file(delta)
    rank = max(len(value) for name, value in found.items() if name.endswith(".lora_a"))
    model = TextClassifier(load_base(base / kind.weights, start=found), kind, rank)
    model.load_delta(found)
    model = model.to(device)
    if device.startswith("cuda"):
        model.in_bf16()
    tokenizer = text_data.plain_tokenizer(kind, base)
    forms = list(dict.fromkeys(form for pair in pairs for form in pair))
    windows = [cut(row.ids, kind.special_ids) for row in tokenizer.encode_batch(forms, add_special_tokens=False)]
    harm, _ = text_classifier.scores(model, [ids for own in windows for ids in own], 512 if device.startswith("cuda") else 32)
    of_form = np.maximum.reduceat(harm, np.cumsum([0, *map(len, windows[:-1])]))
    place = {form: i for i, form in enumerate(forms)}
    return sigmoid(np.array([np.maximum(of_form[place[raw]], of_form[place[plain]]) for raw, plain in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--model", type=Path, nargs="+", default=[], help="built text components, e.g. models/delta-3.1/build/text")
    parser.add_argument("--trained", nargs=3, action="append", default=[], metavar=("BACKBONE", "BASE", "DELTA"),
                        help="one that is not built, with all layers: as text_classifier.py had --backbone and --base, and what it wrote")
    parser.add_argument("--device", default="cpu", help="where those are asked")
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
    pairs = [(rows[i].text, normalise(rows[i].text) or rows[i].text) for i in asked] if args.trained else []
    for name, base, delta in args.trained:
        said.append(trained(name, Path(base), Path(delta), pairs, args.device))
        print(f"{delta}: {len(asked)} texts", flush=True)
    if not said:
        parser.error("nobody is asked: give --model or --trained")
    found = np.full((len(rows), 5), np.nan, np.float32)
    found[asked] = sigmoid(mean_odds(said))
    with args.out.open("wb") as out:
        np.savez(out, probabilities=found, data=text_data.digest(rows))


if __name__ == "__main__":
    main()
