"""Text moderation as most people serve it: FastAPI, uvicorn, tokenizers and ONNX Runtime, a pass a request. Runs in
.venv-peers; the settings are one JSON object on the command line.
"""

import json
import sys

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

SETTINGS = json.loads(sys.argv[1])
CATEGORIES = SETTINGS["categories"]
POINT, BELOW, ABOVE = (
    np.array([place[name] for place in SETTINGS["calibration"]]) for name in ("point", "below", "above")
)

app = FastAPI()
tokenizer = Tokenizer.from_file(SETTINGS["tokenizer"])
options = ort.SessionOptions()
options.intra_op_num_threads = SETTINGS["threads"]
session = ort.InferenceSession(SETTINGS["graph"], options, providers=["CPUExecutionProvider"])


class Question(BaseModel):
    text: str


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/guardians/text")
def moderate(question: Question) -> dict[str, object]:
    ids = np.array([tokenizer.encode(question.text).ids], dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    off = session.run(["harm"], inputs)[0][0] - POINT
    scores = 1 / (1 + np.exp(-off * np.where(off < 0, BELOW, ABOVE)))
    found = {name: round(float(score), 4) for name, score in zip(CATEGORIES, scores)}
    flags = {name: score >= 0.5 for name, score in found.items()}
    return {"flagged": any(flags.values()), "categories": flags, "category_scores": found}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=SETTINGS["port"], log_level="warning", access_log=False)
