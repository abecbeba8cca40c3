"""A photograph without a server: one decode by libjpeg (Pillow), then plain ONNX Runtime for an image classifier and a
text detector. Runs in .venv-peers: a job on standard input, seconds of each part of every pass on standard output.

What stands between them, resizing and looking for boxes, is left out. The passes
are made with threads that spin between products, ONNX Runtime's default, and with
threads that sleep: two pools on the same cores may be in each other's way.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image

WARM = 2


def main() -> None:
    job = json.load(sys.stdin)
    jpeg = Path(job["picture"]).read_bytes()
    picture = Image.open(io.BytesIO(jpeg)).convert("RGB")
    side = (job["side"], job["side"])
    pixels = np.asarray(picture.resize(side, Image.Resampling.BILINEAR), np.float32)[None] / 255
    page = np.asarray(picture.resize(tuple(job["page"])))[None]
    found = []
    for spinning in (True, False):
        vision, detector = (session(job, name, spinning) for name in ("vision", "detector"))
        passes: list[dict[str, float]] = []
        until = float("inf")
        while len(passes) <= WARM or time.perf_counter() < until:
            if len(passes) == WARM:
                until = time.perf_counter() + job["seconds"]
            times = [time.perf_counter()]
            for step in (
                lambda: Image.open(io.BytesIO(jpeg)).load(),
                lambda: vision.run(None, {"pixels": pixels}),
                lambda: detector.run(None, {"pixels": page}),
            ):
                step()
                times.append(time.perf_counter())
            parts = (after - before for before, after in zip(times, times[1:]))
            passes.append(dict(zip(("decode", "vision", "detector"), parts)))
        found.append(passes[WARM:])
    json.dump(found, sys.stdout)


def session(job: dict[str, Any], name: str, spinning: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    return ort.InferenceSession(job[name], options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
