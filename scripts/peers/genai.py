"""onnxruntime-genai, one stream and a batch. Runs in .venv-peers: a job on standard input, seconds and tokens on
standard output.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime_genai as og


def main() -> None:
    job = json.load(sys.stdin)
    model = og.Model(og.Config(job["folder"]))

    def timed(prompts: list[list[int]], count: int) -> tuple[float, list[list[int]]]:
        length = len(prompts[0])
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(batch_size=len(prompts), max_length=length + count, do_sample=False)
        # Its buffers are made before the clock starts.
        generator = og.Generator(model, parameters)
        start = time.perf_counter()
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(count):
            generator.generate_next_token()
        seconds = time.perf_counter() - start
        return seconds, [list(map(int, generator.get_sequence(row)[length:])) for row in range(len(prompts))]

    timed(job["together"], 4)
    first = [timed([prompt], 1)[0] for prompt in job["first"]]
    whole = []
    for prompt in job["whole"]:
        one, _ = timed([prompt], 1)
        seconds, (tokens,) = timed([prompt], job["tokens"])
        whole.append({"first": one, "all": seconds, "tokens": tokens})
    seconds, answers = timed(job["together"], job["tokens"])
    json.dump({"first": first, "whole": whole, "together": {"all": seconds, "tokens": answers}}, sys.stdout)


if __name__ == "__main__":
    main()
