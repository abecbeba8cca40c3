"""llama-cpp-python, one stream. Runs in .venv-peers: a job on standard input, seconds and tokens on standard output."""

from __future__ import annotations

import json
import sys
import time

from llama_cpp import Llama


def main() -> None:
    job = json.load(sys.stdin)
    model = Llama(
        model_path=job["gguf"],
        n_ctx=1024,
        n_batch=512,
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        verbose=False,
    )

    def timed(prompt: list[int], count: int) -> tuple[float, list[int]]:
        # Forgets what it has seen: its cache of prefixes is off.
        model.reset()
        tokens: list[int] = []
        start = time.perf_counter()
        for token in model.generate(prompt, temp=0.0):
            tokens.append(int(token))
            if len(tokens) == count:
                break
        return time.perf_counter() - start, tokens

    timed(job["whole"][0], 4)
    first = [timed(prompt, 1)[0] for prompt in job["first"]]
    whole = []
    for prompt in job["whole"]:
        one, _ = timed(prompt, 1)
        seconds, tokens = timed(prompt, job["tokens"])
        whole.append({"first": one, "all": seconds, "tokens": tokens})
    json.dump({"first": first, "whole": whole}, sys.stdout)


if __name__ == "__main__":
    main()
