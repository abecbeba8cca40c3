"""Plain ONNX Runtime opens graphs, one after the other, as the server opens them: one pool of threads for all, no
memory patterns. Runs in .venv-peers: a job on standard input, seconds on standard output. Its imports do not count.
"""

from __future__ import annotations

import json
import sys
import time

import onnxruntime as ort


def main() -> None:
    job = json.load(sys.stdin)
    ort.set_global_thread_pool_sizes(job["threads"], 1)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.enable_mem_pattern = False
    start = time.perf_counter()
    # Kept until the end: closing them is no part of opening.
    sessions = [ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"]) for graph in job["graphs"]]
    seconds = time.perf_counter() - start
    json.dump({"seconds": seconds, "graphs": len(sessions)}, sys.stdout)


if __name__ == "__main__":
    main()
