"""The corpus of small pictures against the running server with the real models: each gets the verdict that
`tests/fixtures/images/expected.json` says, or the refusal.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from running_server import MODELS, start

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "images"
# The classifiers of both see such pictures differently, and read them alike.
ASKED = [model for model in ("alpha-4o-mini", "beta-3-haiku") if model in MODELS]

pytestmark = pytest.mark.skipif(not ASKED, reason="no model is set up")


def picture(name: str) -> bytes:
    packed = CORPUS / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (CORPUS / name).read_bytes()


def test_every_picture_gets_its_verdict(tmp_path: Path) -> None:
    expected = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))
    assert sum(bool(wanted.get("flagged")) for wanted in expected.values()) >= 8
    server = start(tmp_path, DICHROIC_MODELS=",".join(ASKED))
    wrong = []
    try:
        for name, wanted in expected.items():
            image = base64.b64encode(picture(name)).decode()
            for model in ASKED:
                answer = server.post("/v1/guardians/image", {"image": image, "model": model})
                if "error" in wanted:
                    found, due = answer.status_code, 400
                else:
                    categories = answer.json().get("categories", {})
                    found, due = [category for category, is_found in categories.items() if is_found], wanted["flagged"]
                if found != due:
                    wrong.append(f"{name}, {model}: {found} instead of {due}")
    finally:
        server.stop()
    assert not wrong
