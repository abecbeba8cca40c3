"""Plain ONNX Runtime: a stock export by fixed batches, or the int8 products of an encoder and nothing else. Runs in
.venv-peers: a job on standard input, counts and seconds on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime as ort


def main() -> None:
    job = json.load(sys.stdin)
    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    session = ort.InferenceSession(job["graph"], options, providers=["CPUExecutionProvider"])
    prepare = {"stock": stock, "products": products}[job["kind"]]
    found = []
    for batch in job["batches"]:
        step = prepare(session, batch, job["tokens"])
        step()
        passes, start = 0, time.perf_counter()
        while time.perf_counter() - start < job["seconds"]:
            step()
            passes += 1
        seconds = time.perf_counter() - start
        # The products of one layer are in the graph; a model has several.
        found.append({"batch": batch, "texts": passes * batch / job.get("layers", 1), "seconds": seconds})
    json.dump(found, sys.stdout)


def stock(session: ort.InferenceSession, batch: int, tokens: int) -> Callable[[], object]:
    ids = np.arange(1000, 1000 + batch * tokens, dtype=np.int64).reshape(batch, tokens)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return lambda: session.run(None, inputs)


def products(session: ort.InferenceSession, batch: int, tokens: int) -> Callable[[], object]:
    """Inputs and outputs lie where they are: only the products take time."""
    rows, binding = batch * tokens, session.io_binding()
    random = np.random.default_rng(1)
    kept = []
    for given in session.get_inputs():
        kept.append(random.integers(0, 255, (rows, given.shape[1]), dtype=np.uint8))
        binding.bind_cpu_input(given.name, kept[-1])
    for wanted in session.get_outputs():
        space = np.empty((rows, wanted.shape[1]), dtype=np.int32)
        kept.append(space)
        binding.bind_output(wanted.name, "cpu", 0, np.int32, space.shape, space.ctypes.data)
    # The arrays must live as long as the binding that points to them.
    return lambda keep=kept: session.run_with_iobinding(binding)


if __name__ == "__main__":
    main()
