"""Widens what a small generator learns from: chooses texts for a larger one to answer, and what of its answers is fit.

`texts` draws ordinary English texts from the public sources, of the side that is trained on, which neither their source
nor our moderation calls harmful; they are other people's, and only answered here. `check` keeps the answers of
generator_answers.py that an automatic judge finds right: an expression has the light that was asked for, all names and numbers of the text and
none besides, is no copy, no loop and not flagged by our moderation; a reply is one sentence of 5 to 30 words, not
flagged, names nobody new. Of replies that begin alike a few are kept. Writes lines in the form of ours, for `--extra` of
generator_train.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from generator_data import PREFERRED, TASKS, WRITTEN, written  # noqa: E402
from measure import likeness, replies  # noqa: E402
from text_scores import built, probabilities  # noqa: E402

# How many texts of each source are answered at most.
SHARES = {"positive-frames": 5000, "goemotions": 2200, "suicide-reddit-sentences": 900, "surge-nontoxic": 200, "ud-ewt": 700,
          "imdb-counterfactual": 700, "clinc150": 200}
FEWEST_WORDS, MOST_WORDS = 4, 32
# Above this probability of a category a text is left out, and an answer too.
HARM = 0.3
# Log-odds by which the sentiment head must be sure of an expression's light.
SURE = 0.7
# Replies that begin with the same words, as replies.opening counts them.
ALIKE = 40


def candidates(data: Path) -> Iterator[tuple[str, str]]:
    """Sources and texts."""
    for path in sorted((data / "moderation" / "train").glob("*.jsonl.gz")) + sorted((data / "expression" / "train").glob("*.jsonl.gz")):
        source = path.name.removesuffix(".jsonl.gz")
        if source not in SHARES:
            continue
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for item in map(json.loads, lines):
                # Of reframed pairs the text that somebody wrote, not what was made of it.
                if any(item.get("labels", {}).values()) or ("positive" in item and not item["positive"]):
                    continue
                yield source, re.sub(r"\s+", " ", item["text"]).strip()


def is_ordinary(text: str) -> bool:
    words = text.split()
    letters = sum(c.isalpha() or c == " " for c in text)
    return (
        FEWEST_WORDS <= len(words) <= MOST_WORDS and text.isascii() and letters >= 0.85 * len(text)
        and "http" not in text and not set("@<[") & set(text) and max(map(len, words)) < 25
    )


def chosen(data: Path, seed: int) -> dict[str, list[str]]:
    # Those of ours have answers already.
    known = {example.text for example in written(names=(*WRITTEN, *PREFERRED))}
    found: dict[str, list[str]] = {source: [] for source in SHARES}
    for source, text in candidates(data):
        if text not in known and is_ordinary(text) and text_data.split_of(text, source) == "train":
            known.add(text)
            found[source].append(text)
    rng = random.Random(seed)
    return {source: rng.sample(texts, min(SHARES[source], len(texts))) for source, texts in found.items()}


def is_faithful(text: str, answer: str) -> bool:
    return (
        likeness.facts_kept(text, answer) == 1 and not likeness.facts_invented(text, answer)
        and not likeness.repeats(text, answer) and not likeness.loops(text, answer)
        and 3 <= len(answer.split()) <= 1.6 * len(text.split()) + 14
    )


def checked(items: list[dict], judge: Path, threads: int) -> tuple[list[dict], Counter]:
    """The answers that are fit to be learned, and how many were left out for what."""
    model, places = built(judge, threads)
    answers = [(item, task) for item in items for task in TASKS if item.get(task)]
    said = [item[task] for item, task in answers]
    print(f"{len(said)} answers to {len(items)} texts", flush=True)
    harm = probabilities(model.scores(said)[0], places).max(axis=1)
    light = model.first(said, encoder.SENTIMENT)[:, 0]
    dropped: Counter = Counter()
    openings: Counter = Counter()
    for (item, task), score, odds in zip(answers, harm, light):
        text, answer = item["text"], item[task]
        if score >= HARM:
            why = "flagged"
        elif "[" in answer:
            why = "place-holder"
        elif task == "reply":
            opening = replies.opening(answer)
            why = (
                "not one sentence" if not replies.one_sentence(answer) or not 5 <= len(answer.split()) <= 30
                else "invented" if likeness.facts_invented(text, answer)
                else "alike" if openings[opening] >= ALIKE else ""
            )
            openings[opening] += not why
        else:
            why = "unfaithful" if not is_faithful(text, answer) else "light" if (odds if task == "positive" else -odds) < SURE else ""
        if why:
            dropped[f"{task}: {why}"] += 1
            del item[task]
    for item in items:
        # Two expressions that say the same are no pair.
        if item.get("positive") and item.get("negative") and likeness.repeats(item["positive"], item["negative"]):
            del item["positive"], item["negative"]
            dropped["pair: alike"] += 1
    return [item for item in items if any(item.get(task) for task in TASKS)], dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("texts", "check"))
    parser.add_argument("--data", type=Path, help="for texts: folder that holds moderation/train/ and expression/train/")
    parser.add_argument("--answers", type=Path, help="for check: what generator_answers.py wrote")
    parser.add_argument("--judge", type=Path, required=True, help="a built text component with a sentiment head")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines to write")
    parser.add_argument("--seed", type=int, default=301)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if (args.data if args.what == "texts" else args.answers) is None:
        parser.error("texts needs --data, check needs --answers")
    if args.what == "texts":
        model, places = built(args.judge, args.threads)
        lines = []
        for source, texts in chosen(args.data, args.seed).items():
            harm = probabilities(model.scores(texts)[0], places).max(axis=1)
            lines += [{"text": text, "source": source} for text, score in zip(texts, harm) if score < HARM]
            print(f"{source}: {len(texts)} texts, {int((harm >= HARM).sum())} of them left out as harmful", flush=True)
        random.Random(args.seed).shuffle(lines)
    else:
        items = [json.loads(line) for line in args.answers.read_text(encoding="utf-8").splitlines()]
        lines, dropped = checked(items, args.judge, args.threads)
        kept = Counter(task for line in lines for task in TASKS if line.get(task))
        print(f"kept {dict(kept)}; left out {dict(dropped)}", flush=True)
    args.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
