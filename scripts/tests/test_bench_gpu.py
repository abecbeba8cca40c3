"""What is given to a GPU and what is written of it. No GPU is needed: scripts/bench_gpu itself asks for one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

from peers import gpu  # noqa: E402
from peers.step_profile import PAGE, between  # noqa: E402

ASKED = re.findall(r"[^,\s]+", os.environ.get("MODELS", ""))
built = pytest.mark.skipif(bool(ASKED) and "alpha-4o-mini" not in ASKED, reason="MODELS leaves alpha-4o-mini out")
BUILT = ROOT / "models" / "alpha-4o-mini" / "build"
TEXTS = ["The lift is out of order again.", "My sister passed her exam, and we danced."]
FOUND = {
    "generation": {1: {"rate": 210.4, "first": 9.96}, 8: {"rate": 1500.0, "first": 10.0}, 64: {"rate": 9000.2, "first": 10.0}},
    "moderation": {"64 × 16": 12345.6, "512 × 16": 40000.0},
    "equal": (3, 4),
    "differ": 0.00123,
}


@built
def test_every_answer_asked_for_has_a_prompt_of_a_task() -> None:
    job = gpu.generation(BUILT / "generator", TEXTS, 7, 5)
    tokenizer = Tokenizer.from_file(str(BUILT / "generator" / "tokenizer.json"))
    tasks = json.loads((BUILT / "generator" / "manifest.json").read_text(encoding="utf-8"))["generator"]["tasks"]
    told = [tokenizer.decode(job["prefix"] + body, skip_special_tokens=False) for body in job["together"]]
    assert len(told) == 7
    assert told[0] == tasks["positive"]["prefix"] + TEXTS[0] + tasks["positive"]["suffix"]
    assert {text.rpartition("\n<|im_start|>")[2] for text in told} == {"positive\n", "negative\n", "reply\n"}


@built
def test_windows_are_as_long_as_told_and_differ() -> None:
    job = gpu.moderation(BUILT / "text", TEXTS, (4, 16), 1.0)
    assert [len(window) for window in job["windows"]] == [16] * 4 * gpu.BATCHES
    assert len({tuple(window) for window in job["windows"][:4]}) == 4
    tokenizer = Tokenizer.from_file(str(BUILT / "text" / "tokenizer.json"))
    opening, *_, closing = tokenizer.encode("a").ids
    assert {(window[0], window[-1]) for window in job["windows"]} == {(opening, closing)}


def test_answers_and_scores_are_compared() -> None:
    assert gpu.alike([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == (1, 2)
    assert gpu.furthest([[0.1, 0.5], [0.2, 0.9]], [[0.1, 0.4], [0.25, 0.9]]) == pytest.approx(0.1)
    with pytest.raises(ValueError):
        gpu.alike([[1]], [])


def test_the_table_has_all_figures_and_a_place_on_the_page() -> None:
    text = gpu.table("NVIDIA X, driver 1", {"alpha-4o-mini": FOUND})
    assert "| alpha-4o-mini | 1 | 210 | 10.0 | 64 × 16 | 12,346 |" in text
    assert "| alpha-4o-mini | 64 | 9,000 | 10.0 |  |  |" in text
    assert "3 of 4 answers" in text and "0.0012 apart" in text
    assert text.strip() in between(PAGE.read_text(encoding="utf-8"), "gpu", text)


def test_its_texts_are_there() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import runpy; print(len(runpy.run_path('scripts/bench_gpu')['everyday_texts']()))"],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=60,
    )
    assert int(told.stdout) >= 100


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench_gpu", "--models", ""],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": str(tmp_path)}, timeout=60,
    )
    assert told.returncode == 1
    assert "shows no GPU" in told.stderr
