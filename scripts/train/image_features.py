#!/usr/bin/env python3
"""Computes what an image classifier's last pooling sees in pictures, for heads to be trained on.

Owns one npz file: `features` [rows, width] float16 (the `features` output of
the built graph, which a recipe may take from another network), and a row's `sources`, `digests` (of the file), `variants`.
Variant 0 is the picture as it is; the others are altered by chance, in the
same way whatever the picture shows: cropped, squashed, mirrored, stamped with
a watermark, reduced, compressed. Weapon pictures more often come squashed and
stamped than harmless ones do; a head that trains on altered pictures alone
cannot tell the two by that. (The network itself squashes every picture to a
square, so of the squash it sees the resampling only.)

    .venv/bin/python scripts/train/image_features.py --network NETWORK --out FILE.npz PICTURES.tar [...]

NETWORK is a built `model.onnx`, or a folder with the files of a tf.js model
(`~/.cache/dichroic/sources/nsfwjs-mobilenet-v2-mid/4.3.0`), which need not be
built. The tar files hold `<source>/<n>.jpg`; those of draw_symbols.py too. A
run that was stopped goes on where it was; the log lies beside the file. Runs
in the build environment.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import onnxruntime as ort
from PIL import Image, ImageDraw, ImageFont, ImageOps

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from forge import built_graph, tfjs  # noqa: E402
from image_calibration import pictures, resize  # noqa: E402

WORDS = ("stock photo", "sample", "preview", "(c) 2019", "shutter", "images.example", "PHOTO", "channel 5", "LIVE")
KEEP_EVERY = 500


# --- alterations -------------------------------------------------------------


def altered(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A picture as it might come another way; what it shows has no part in what is done to it."""
    share, aspect = rng.uniform(0.65, 1), math.exp(rng.uniform(-0.25, 0.25))
    width = min(image.width * math.sqrt(share * aspect), image.width)
    height = min(image.height * math.sqrt(share / aspect), image.height)
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    image = image.crop((int(left), int(top), max(int(left + width), 1), max(int(top + height), 1)))
    if rng.random() < 0.5:
        image = image.resize((416, 416), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    if rng.random() < 0.4:
        image = stamped(image, rng)
    longest = max(image.size)
    if rng.random() < 0.5:
        factor = rng.uniform(96, 320) / longest
        image = image.resize((max(int(image.width * factor), 1), max(int(image.height * factor), 1)))
    if rng.random() < 0.8:
        data = io.BytesIO()
        image.save(data, format="JPEG", quality=int(rng.integers(25, 93)))
        image = Image.open(data).convert("RGB")
    return image


def stamped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """With a watermark: words once, words all over, or two lines across."""
    layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    level = 255 if rng.random() < 0.7 else 20
    ink = (level, level, level, int(rng.integers(60, 190)))
    words = WORDS[rng.integers(len(WORDS))]
    size = max(int(image.height * rng.uniform(0.05, 0.13)), 6)
    font = ImageFont.load_default(size=size)
    form = rng.integers(3)
    if form == 0:
        draw.text((rng.uniform(0, 0.6) * image.width, rng.uniform(0, 0.9) * image.height), words, font=font, fill=ink)
    elif form == 1:
        for y in range(0, image.height, 3 * size):
            for x in range(-(y % 90), image.width, len(words) * size):
                draw.text((x, y), words, font=font, fill=ink)
        layer = layer.rotate(rng.uniform(-35, 35))
    else:
        corners = ((0, 0, image.width, image.height), (0, image.height, image.width, 0))
        for line in corners:
            draw.line(line, fill=ink, width=max(size // 6, 1))
        draw.text((image.width * 0.35, image.height * 0.45), words, font=font, fill=ink)
    image = image.convert("RGB")
    image.paste(layer, (0, 0), layer)
    return image


def variant(data: bytes, digest: str, number: int, seed: int) -> np.ndarray:
    """The pixels of one variant, the same for the same file in every run."""
    with Image.open(io.BytesIO(data)) as image:
        whole = image.convert("RGB")
    if number > 0:
        whole = altered(whole, np.random.default_rng([seed, number, int(digest[:15], 16)]))
    return np.asarray(whole)


# --- the network -------------------------------------------------------------


def alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """The part of a model that its features need, without what else looks at the pixels and without heads."""
    if "features" not in [output.name for output in model.graph.output]:
        raise SystemExit("the model has no features: build it anew (make models)")
    return onnx.utils.Extractor(model).extract_model(["pixels"], ["features"])


class Network:
    """A classifier whose `features` are asked for."""

    def __init__(self, path: Path, threads: int) -> None:
        if path.is_dir():
            model, _ = tfjs.convert({file.name: file for file in sorted(path.iterdir()) if file.is_file()})
            data = model.SerializeToString()
        else:
            data = alone(built_graph.load(path)).SerializeToString(deterministic=True)
        self.digest = hashlib.sha256(data).hexdigest()
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = threads
        self._session = ort.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
        self._size = int(self._session.get_inputs()[0].shape[1])

    def features(self, pixels: np.ndarray) -> np.ndarray:
        (row,) = self._session.run(["features"], {"pixels": resize(pixels, self._size)[None]})[0]
        return row.astype(np.float16)


# --- the file ----------------------------------------------------------------


class Kept:
    """The rows so far, in memory and in the file."""

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        self._path, self._settings = path, json.dumps(settings, sort_keys=True)
        self.features: list[np.ndarray] = []
        self.rows: list[tuple[str, str, int]] = []
        if path.exists():
            with np.load(path) as file:
                if str(file["settings"]) != self._settings:
                    raise SystemExit(f"{path.name} was made with other settings ({file['settings']}): name another file")
                self.features = list(file["features"])
                self.rows = [(str(s), str(d), int(v)) for s, d, v in zip(file["sources"], file["digests"], file["variants"])]
        self.known = set(self.rows)

    def add(self, row: tuple[str, str, int], features: np.ndarray) -> None:
        self.rows.append(row)
        self.known.add(row)
        self.features.append(features)

    def write(self) -> None:
        partial = self._path.with_name(self._path.name + ".partial")
        with partial.open("wb") as handle:
            np.savez(
                handle,
                features=np.array(self.features, np.float16),
                sources=np.array([row[0] for row in self.rows]),
                digests=np.array([row[1] for row in self.rows]),
                variants=np.array([row[2] for row in self.rows], np.int16),
                settings=self._settings,
            )
        partial.replace(self._path)


def extract(network: Network, tars: list[Path], out: Path, variants: int, most: int | None, seed: int) -> int:
    """Adds what the file lacks; answers how many rows were new."""
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = Kept(out, {"network": network.digest, "variants": variants, "seed": seed})
    started, new = time.monotonic(), 0
    with out.with_suffix(".log").open("a", encoding="utf-8") as log:

        def say(line: str) -> None:
            print(f"{time.monotonic() - started:7.0f}s  {line}", file=log, flush=True)
            print(line, file=sys.stderr, flush=True)

        say(f"{[tar.name for tar in tars]}, {variants} altered variants, seed {seed}; {len(kept.rows)} rows are there")
        for source, digest, data in pictures(tars, most, seed):
            for number in range(variants + 1):
                row = (source, digest, number)
                if row in kept.known:
                    continue
                kept.add(row, network.features(variant(data, digest, number, seed)))
                new += 1
                if new % KEEP_EVERY == 0:
                    kept.write()
                    say(f"{len(kept.rows)} rows, {1000 * (time.monotonic() - started) / new:.0f} ms each, at {source}")
        kept.write()
        say(f"done: {len(kept.rows)} rows, {new} of them new")
    return new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, metavar="PICTURES.tar")
    parser.add_argument("--network", type=Path, required=True, help="built model.onnx, or a folder of tf.js files")
    parser.add_argument("--out", type=Path, required=True, help="npz file; rows that it has are not made again")
    parser.add_argument("--variants", type=int, default=3, help="altered variants of each picture")
    parser.add_argument("--most", type=int, help="pictures a source (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=33)
    options = parser.parse_args()
    network = Network(options.network, options.threads)
    extract(network, options.tars, options.out, options.variants, options.most, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
