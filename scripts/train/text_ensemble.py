"""Calibrates an ensemble: classifiers that are trained and built, which answer as one with the weighted mean of their
log-odds.

`ensemble` in the text recipe of a model.json names the identifiers that judge beside its own; with `weights`, how much its
own opinion counts and how much each of theirs, in that order; with `from`, only what that gives such a score in some category. Run this after
text_calibrate.py has finished any of them: writes the `ensemble` of text.json, by which the server turns the mean into
scores, and the tables of the card. English
texts alone count, as the server asks an ensemble about no others. Builds refuse one whose members have changed since.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from safetensors.numpy import load_file  # noqa: E402

import text_calibrate  # noqa: E402
import text_card  # noqa: E402
import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from forge.components import Catalogue, built_alone  # noqa: E402
from forge.fetch import Sources  # noqa: E402
from forge.places import Places  # noqa: E402
from text_scores import Classifier, Ensemble, InTurn, built  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder of the unpacked base of --model")
    parser.add_argument("--model", type=Path, required=True, help="model folder, e.g. models/delta-3.1")
    parser.add_argument("--card", type=Path, required=True, help="Markdown to write the tables to")
    parser.add_argument("--share", type=float, default=1.0, help="share of the validation rows that are not authored")
    parser.add_argument("--disguised", type=int, default=250, help="texts of either kind that are disguised")
    parser.add_argument("--lower", nargs=2, action="append", default=[], metavar=("CATEGORY", "LOGITS"), help="an operating point that lies so much lower than the rule puts it")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    places = Places.here()
    recipe = json.loads((args.model / "model.json").read_text(encoding="utf-8"))["components"]["text"]
    folders = {member: args.model.parent / member for member in recipe["ensemble"]}
    path, kind = args.model / recipe["calibration"], encoder.BACKBONES[recipe["backbone"]]
    settings = json.loads(path.read_text(encoding="utf-8"))
    # Not as it is built, which it cannot be until this has run.
    base = encoder.load_base(args.base / kind.weights, recipe.get("layers"))
    graph = encoder.graph(encoder.merge(base, load_file(args.model / recipe["delta"])), kind)
    own = Classifier(graph, kind.special_ids, text_data.plain_tokenizer(kind, args.base), args.threads)
    catalogue = Catalogue(places, Sources(places))
    with places.locked(print):
        # Without their own company: that may have changed too, and cannot be built before each was here.
        kept = [built_alone(part) for part in catalogue.components(list(folders)) if part.name == "text"]
    others = [built(folder, args.threads) for folder in kept]
    model = Ensemble([(own, settings["calibration"]), *others], recipe.get("weights"))

    rows = [row for row in text_data.load(args.data) if text_data.is_english(row)]
    validation, calibration, scraps = text_calibrate.slices(rows, args.share)
    harm, _ = model.scores([row.text for row in calibration])
    points = text_calibrate.lowered(text_calibrate.calibrate(calibration, harm, ()), args.lower)
    trained = {member: encoder.trained(folder) for member, folder in folders.items()}
    settings["ensemble"] = {"members": trained, "weights": recipe.get("weights"), "calibration": points}
    text_data.write(path, lambda p: p.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8"))
    print("calibrated", points, flush=True)

    served = InTurn(model, points, recipe["from"]) if "from" in recipe else model
    harm, _ = served.scores([row.text for row in validation])
    card = text_card.report(served, points, rows, validation, harm, scraps, (), args.disguised)
    text_data.write(args.card, lambda p: p.write_text("\n".join(card) + "\n", encoding="utf-8"))


if __name__ == "__main__":
    main()
