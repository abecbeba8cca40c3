"""The comparison with peers: its arithmetic, its refusals and its page, and that both sides get the same weights.

No peer and no built model is needed; what runs is a stand-in or a tiny graph.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import os
import re
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

import tiny_checkpoint  # noqa: E402
from demo_support import Server  # noqa: E402
from forge import decoder  # noqa: E402
from forge.ocr import SETTINGS  # noqa: E402
from peers import (  # noqa: E402
    baseline,
    bench as bench_,
    drawn,
    environment,
    figures,
    machine as machine_sides,
    material,
    mixed,
    page,
    processes,
    procfs,
    served,
    sides,
    step_profile,
)
from peers.figures import Compared, Failed, Refused, Spread, judge  # noqa: E402
from peers.rows import ROWS, Row, chosen  # noqa: E402
from test_encoder import forward, random_base  # noqa: E402

FASTER = Row("a/faster", "ours, beside two", "tokens/s", "a/ours/rate", ("a/one/rate", "a/two/rate"), ">=", 2.0)
SOONER = Row("a/sooner", "ours, beside one", "ms", "a/ours/first", ("a/one/first", "a/two/first"), "<=", 0.4)


def rounds(*triples: tuple[float, float, float], what: str = "rate") -> list[dict[str, Any]]:
    return [{"a/ours": {what: ours}, "a/one": {what: one}, "a/two": {what: two}} for ours, one, two in triples]


# --- ratios and verdicts -------------------------------------------------------


def test_a_ratio_is_taken_within_a_round_and_beside_the_best_of_theirs():
    # The machine was twice as fast in the second round: ratios of medians would say otherwise.
    found = judge(FASTER, rounds((100, 40, 50), (300, 100, 90), (90, 45, 30)))
    assert isinstance(found, Compared)
    assert found.ratio == Spread(2.0, 2.0, 3.0)
    assert found.ours == Spread(100, 90, 300) and found.theirs == Spread(50, 45, 100)
    assert found.peer == "one" and found.rounds == 3 and found.met


def test_where_less_is_better_the_best_of_theirs_is_the_smallest():
    found = judge(SOONER, rounds((40, 100, 90), (40, 90, 200), what="first"))
    assert isinstance(found, Compared)
    assert found.ratio.median == pytest.approx(40 / 90) and not found.met


@pytest.mark.parametrize(
    ("sense", "bound", "ratio", "met"),
    [
        (">=", 2, 2.0, True),
        (">=", 2, 1.99, False),
        (">", 1, 1.0, False),
        ("<=", 0.4, 0.4, True),
        ("<", 1, 1.0, False),
        ("<", 1, 0.9, True),
    ],
)
def test_a_bar_is_met_as_its_sign_says(sense: str, bound: float, ratio: float, met: bool):
    assert Row("a/b", "", "", "a/ours/x", ("a/one/x",), sense, bound).met(ratio) is met


def test_a_side_that_failed_is_not_compared_though_other_rounds_went_well():
    history = rounds((100, 40, 50), (100, 40, 50))
    history[1]["a/two"] = Failed("the server ended with 1")
    found = judge(FASTER, history)
    assert found == Refused(FASTER, "a/two failed in round 2: the server ended with 1")


def test_a_round_that_ran_out_of_time_does_not_count_and_no_round_at_all_is_said():
    history = rounds((100, 40, 50), (300, 100, 100))
    del history[1]["a/two"]
    found = judge(FASTER, history)
    assert isinstance(found, Compared) and found.rounds == 1 and found.ratio.median == 2.0
    assert judge(FASTER, history[1:]) == Refused(FASTER, "not measured")


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_figures_that_cannot_be_are_refused(value: float):
    found = judge(FASTER, rounds((value, 40, 50)))
    assert isinstance(found, Refused) and "a/ours gave no rate" in found.reason


def test_rates_leave_the_first_token_out_of_one_stream_and_count_all_of_many():
    raw = {
        "first": [0.2, 0.1, 0.3],
        "whole": [{"first": 0.1, "all": 1.1, "tokens": [1] * 11}, {"first": 0.1, "all": 0.6, "tokens": [1] * 11}],
        "together": {"all": 2.0, "tokens": [[1] * 11] * 8},
    }
    found = {"first": 200.0, "decode": pytest.approx(15.0), "spoken": pytest.approx(3000.0), "together": 44.0}
    assert figures.generation(raw, 11) == found


def test_a_side_that_generated_less_is_no_side():
    with pytest.raises(ValueError, match="10 tokens were generated instead of 11"):
        figures.generation({"whole": [{"first": 0.1, "all": 1.1, "tokens": [1] * 10}]}, 11)
    with pytest.raises(ValueError, match="3 tokens"):
        figures.generation({"together": {"all": 1.0, "tokens": [[1] * 4, [1] * 3]}}, 4)


# --- outputs -------------------------------------------------------------------


def test_answers_are_compared_up_to_the_first_difference_and_the_end_of_ours():
    found = figures.agreement([[1, 2, 3, 4], [5, 9, 6], [1, 2]], [[1, 2, 8, 4], [5, 9, 7], [1, 2]], stop=[9])
    assert found.same == (2, 1, 2) and found.compared == (4, 1, 2) and not found.whole
    assert figures.agreement([[1, 9, 2]], [[1, 9, 3]], stop=[9]).whole
    assert figures.agreement([[9, 9, 2]], [[9, 9, 3]], stop=[9]) == figures.Agreement((1,), (1,))
    assert figures.agreement([[9, 9]], [[7, 9]], stop=[9]) == figures.Agreement((0,), (1,))


def test_one_model_agrees_for_a_while_in_half_of_its_answers():
    alike = figures.Agreement(same=(4, 0), compared=(20, 20))
    assert figures.one_model(alike, 4) and not figures.one_model(alike, 5)
    assert figures.one_model(figures.Agreement((2,), (2,)), 4), "a short answer can agree no longer"
    assert not figures.one_model(figures.Agreement((0,), (0,)), 4), "nothing compared proves nothing"


def test_sides_that_did_other_work_are_found():
    stops = {"alpha-4o-mini": [0]}

    def raw(token: int) -> dict[str, Any]:
        return {"whole": [{"tokens": [7, *[token] * 19]}] * 2, "together": {"tokens": [[token] * 20] * 8}}

    raws = {
        "alpha-4o-mini/ours": raw(5),
        "alpha-4o-mini/llama-server": {"whole": raw(5)["whole"]},
        "alpha-4o-mini/onnxruntime-genai": raw(6),
        "text/http": {"scores": [[0.9, 0.1]]},
        "text/fastapi": {"scores": [[0.1, 0.1]]},
    }
    said, failed = sides.check(raws, stops)
    assert set(failed) == {"alpha-4o-mini/onnxruntime-genai", "text/fastapi"}
    assert "all are equal" in said["alpha-4o-mini/llama-server/whole"]


def test_scores_are_compared_by_verdict_and_by_distance():
    same, apart = figures.scores_agree([[0.9, 0.1], [0.4, 0.2]], [[0.7, 0.1], [0.6, 0.2]])
    assert same == 0.75 and apart == pytest.approx(0.1)


# --- rows and page -------------------------------------------------------------


def test_rows_are_named_once_and_every_side_of_theirs_is_measured():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {side for row in ROWS for side in row.sides} <= set(sides.sides())


def test_rows_are_chosen_by_name_or_by_group():
    assert [row.name for row in chosen(["text/p99"])] == ["text/p99"]
    assert {row.name.partition("/")[0] for row in chosen(["beta", "image"])} == {"beta", "image"}
    with pytest.raises(ValueError, match="no row text/fast"):
        chosen(["text/fast"])


def machine(load: float) -> page.Machine:
    return page.Machine("A processor", 2, 2, 24.0, load, "2026-01-02", "abc", {"onnxruntime": "1"})


def test_the_page_has_a_line_for_every_row_with_its_verdict():
    met = judge(
        ROWS[0],
        [
            {
                "alpha-4o-mini/ours": {"decode": 42.0},
                "alpha-4o-mini/llama-server": {"decode": 20.0},
                "alpha-4o-mini/llama-cpp-python": {"decode": 21.0},
            }
        ],
    )
    failed = Refused(ROWS[2], "x failed in round 1: a | b\n<c>")
    text = page.page(
        page.Run(
            [met, Refused(ROWS[1], "not measured"), failed],
            machine(0.1),
            ["All equal."],
            [("Beside", "x/s", Spread(1, 1, 1))],
            120,
            True,
        )
    )
    lines = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert lines["alpha/stream"] == (
        "| `alpha/stream` | one stream, beside llama.cpp | 42.0 tokens/s (42.0–42.0) | 21.0 tokens/s (21.0–21.0)"
        " llama-cpp-python | 2.00 (2.00–2.00) | ≥ 2 | met, 1 round |"
    )
    assert lines["alpha/streams"].endswith("| – | – | – | ≥ 4 | not measured |")
    assert lines["alpha/slots"].endswith("| x failed in round 1: a / b ‹c› |")
    assert "1 of 3 bars met, 0 missed, 2 not measured" in text and "busy" not in text
    assert "- All equal." in text and "| Beside | 1.0 x/s (1.0–1.0) |" in text and "A quick run" in text


def test_a_missed_bar_and_a_busy_machine_are_said():
    missed = judge(FASTER, rounds((50, 40, 50)))
    assert "**missed**" in page._line(missed)
    assert "load 2.5" in page.page(page.Run([missed], machine(2.5), [], [], 60, False))


def test_the_page_in_the_repository_has_every_row():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for row in ROWS:
        assert f"| `{row.name}` | {row.title} |" in text, f"{row.name}: run make bench-peers"


def test_a_small_ratio_and_a_bound_of_a_third_keep_their_digits():
    third = next(row for row in ROWS if row.name == "image/speed-beta")
    assert page.bar(third) == "≤ 0.333" and third.met(0.3333) and not third.met(0.3334)
    rest = next(row for row in ROWS if row.name == "machine/idle")
    found = judge(rest, [{"machine/idle": {"used": 20.0, "core": 30_000.0}}])
    assert "| 0.0007 (0.0007–0.0007) | < 0.01 | met, 1 round |" in page._line(found)


def test_memory_by_identifier_is_told_where_it_was_measured():
    told = page.Run([], None, [], [], 0, False, {"alpha-4o-mini": 1234.4, "all": 3000.0})
    assert "| `alpha-4o-mini` alone | 1,234 MiB |\n| all of them | 3,000 MiB |" in page.page(told)
    assert "Resident set" not in page.page(page.Run([], None, [], [], 0, False))


# --- rounds --------------------------------------------------------------------


def load_script() -> Any:
    loader = importlib.machinery.SourceFileLoader("bench_peers", str(ROOT / "scripts" / "bench_peers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_peers", loader))
    loader.exec_module(module)
    return module


class StandIn:
    """A bench whose clock the test turns."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.clock = processes.Clock(seconds, lambda: self.now)


def turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, count: int, fails: str = ""
) -> tuple[Any, list[str]]:
    script, bench, asked = load_script(), StandIn(seconds), []
    monkeypatch.setattr(script, "ROOT", tmp_path)

    def side(name: str):
        def measure(bench: StandIn, raw: dict[str, Any]) -> dict[str, float]:
            bench.clock.limit(1)
            asked.append(name)
            bench.now += 10
            if name == fails:
                raise processes.SideFailed("it broke")
            return {"rate": 1.0}

        return measure

    known = {name: side(name) for name in ("a/ours", "a/one", "a/two")}
    found, _ = script.run_rounds(known, count, bench, lambda raws: ({}, {}))
    return found, asked


def test_every_other_round_goes_backwards(monkeypatch, tmp_path):
    found, asked = turn(monkeypatch, tmp_path, 1000, 2)
    assert asked == ["a/ours", "a/one", "a/two", "a/two", "a/one", "a/ours"]
    assert [sorted(one) for one in found] == [["a/one", "a/ours", "a/two"]] * 2
    assert (tmp_path / "target/peers/rounds.json").exists()


def test_no_round_begins_that_will_not_end_in_time(monkeypatch, tmp_path):
    found, asked = turn(monkeypatch, tmp_path, 75, 5)
    assert len(found) == 2 and len(asked) == 6


def test_a_first_round_that_is_cut_short_keeps_what_it_has(monkeypatch, tmp_path):
    found, asked = turn(monkeypatch, tmp_path, 15, 5)
    assert asked == ["a/ours", "a/one"] and sorted(found[0]) == ["a/one", "a/ours"]
    assert judge(FASTER, found) == Refused(FASTER, "not measured")


def test_a_side_that_failed_is_not_asked_again(monkeypatch, tmp_path):
    found, asked = turn(monkeypatch, tmp_path, 1000, 3, fails="a/one")
    assert asked.count("a/one") == 1 and asked.count("a/two") == 3
    assert judge(FASTER, found) == Refused(FASTER, "a/one failed in round 1: it broke")


def test_what_was_measured_once_counts_as_part_of_the_first_round(monkeypatch, tmp_path):
    script, bench = load_script(), StandIn(1000)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    once = script.run_once({"a/one": lambda bench, raw: {"rate": 2.0}}, bench)
    assert once == {"a/one": {"rate": 2.0}}
    often = {"a/ours": lambda bench, raw: {"rate": 3.0}, "a/two": lambda bench, raw: {"rate": 1.0}}
    found, _ = script.run_rounds(often, 3, bench, lambda raws: ({}, {}), once)
    result = judge(FASTER, found)
    assert len(found) == 3 and isinstance(result, Compared) and result.rounds == 1 and result.ratio.median == 1.5
    assert script.run_rounds({}, 3, bench, lambda raws: ({}, {}), once)[0] == [once]


def test_what_fails_once_is_said_and_the_rest_is_measured(monkeypatch, tmp_path):
    script, bench = load_script(), StandIn(1000)
    monkeypatch.setattr(script, "ROOT", tmp_path)

    def breaks(bench: StandIn, raw: dict[str, Any]) -> dict[str, float]:
        raise processes.SideFailed("it broke")

    once = script.run_once({"a/one": breaks, "a/two": lambda bench, raw: {"rate": 1.0}}, bench)
    assert once == {"a/one": Failed("it broke"), "a/two": {"rate": 1.0}}
    assert script.resident(once["a/one"]) == {} and script.resident(once["a/two"]) == {"rate": 1.0}


# --- the machine ---------------------------------------------------------------


def test_processor_time_is_that_of_the_process_and_of_the_system_for_it():
    stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 250 31 7 8 20 0 5 0 1 2 3"
    assert procfs.ticks(stat) == 281
    start = procfs.ticks(Path("/proc/self/stat").read_text())
    while procfs.ticks(Path("/proc/self/stat").read_text()) < start + 2:
        pass


def test_a_processor_is_told_with_what_decides_its_products():
    one = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse2 avx2 {}\nbugs\t\t: spectre_v1\n"
    assert procfs.processor(one.format("fma") * 2) == "AMD EPYC (AVX2, no AVX-512, no VNNI, no AMX)"
    assert procfs.processor(one.format("avx512f avx512_vnni")) == "AMD EPYC (AVX2, AVX-512, VNNI, no AMX)"
    assert procfs.processor(one.format("avx_vnni")) == "AMD EPYC (AVX2, no AVX-512, VNNI, no AMX)"
    arm = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n"
    assert procfs.processor(arm) == "a processor without a name (dot products, no I8MM, no SVE)"
    assert procfs.processor("") == "a processor without a name"


def test_the_resident_set_is_read_in_mebibytes():
    assert procfs.resident("Name:\tx\nVmHWM:\t  4096 kB\nVmRSS:\t  3072 kB\nRssAnon:\t 1 kB\n") == 3.0
    assert procfs.resident(Path("/proc/self/status").read_text()) > 10
    with pytest.raises(ValueError, match="has ended"):
        procfs.resident("Name:\tx\nState:\tZ (zombie)\n")


def test_rest_is_told_beside_one_core_and_never_below_what_was_used():
    assert procfs.idle(100, 104, 100, 30.0) == {"used": 50.0, "core": 30_000.0}
    # Nothing seen may still be almost a tick, and a figure of nothing could not be compared.
    assert procfs.idle(100, 100, 100, 30.0)["used"] == 10.0


def test_of_two_hundred_mixed_requests_192_are_texts_6_pictures_and_two_generated():
    models = ["a", "b", "c", "d"]
    asked = mixed.order(10_000, models)
    assert Counter(request.kind for request in asked) == {"text": 9_600, "picture": 300, "reply": 50, "pair": 50}
    assert Counter(request.kind for request in asked[:1_000]) == {"text": 960, "picture": 30, "reply": 5, "pair": 5}
    shares = Counter((request.kind, request.model) for request in asked)
    assert shares[("picture", "a")] == shares[("picture", "d")] == 75 and shares[("reply", "b")] == shares[("pair", "b")] == 13
    assert len(set(asked)) == len(asked), "nothing is asked twice of a model"
    lengths = {request.number % len(mixed.LENGTHS) for request in asked if request.model == "a"}
    assert lengths == set(range(len(mixed.LENGTHS))), "every model gets every length"


def test_mixed_texts_differ_and_are_no_longer_than_is_allowed():
    texts = mixed.texts(material.sentences(2_000))
    assert len(set(texts)) == 2_000 and max(map(len, texts)) <= 500
    assert [text.count(".") for text in texts[:8]] == list(mixed.LENGTHS)


@contextmanager
def answering(status: int, body: dict[str, Any], paths: list[str]) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            paths.append(f"{self.path} {asked['model']} {asked.get('text', 'a picture')}")
            raw = json.dumps(body).encode()
            # Pictures and texts are answered well in any case.
            self.send_response(status if self.path in (mixed.PATHS["reply"], mixed.PATHS["pair"]) else 200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Server(server.server_port, "key", os.getpid())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


MIXTURE = mixed.Mixture(["one", "two"], ["cGljdHVyZQ=="])
REJECTED = {"error": {"code": "generation_rejected"}}


def test_every_mixed_request_is_asked_once_of_its_model():
    paths: list[str] = []
    asked = mixed.order(200, ["a", "b"])
    with answering(500, REJECTED, paths) as server:
        mixed.ask(server, asked, MIXTURE, processes.Clock(60), 30)
    assert len(paths) == 200
    assert Counter(path.split()[0] for path in paths) == {
        "/v1/guardians/text": 192,
        "/v1/guardians/image": 6,
        "/v1/sunshines/text": 1,
        "/v1/prisms/text": 1,
    }
    assert "/v1/sunshines/text a one" in paths and "/v1/guardians/image b a picture" in paths


def test_a_mixed_request_that_is_refused_ends_the_measurement():
    paths: list[str] = []
    with answering(429, {"error": {"code": "overloaded"}}, paths) as server:
        with pytest.raises(processes.SideFailed, match="sunshines/text to a answered 429"):
            mixed.ask(server, mixed.order(2_000, ["a"]), MIXTURE, processes.Clock(60), 30)
    assert len(paths) < 2_000


def test_mixed_requests_that_take_too_long_are_counted():
    with answering(200, {}, []) as server:
        with pytest.raises(processes.SideFailed, match="of 300 requests were left"):
            mixed.ask(server, mixed.order(300, ["a"]), MIXTURE, processes.Clock(60), 0.0)


def test_files_that_identifiers_share_are_opened_once(tmp_path):
    for name, files in (("a", {"model.onnx": "1", "tokenizer.json": "2"}), ("b", {"model.onnx": "1", "x.onnx": "3"})):
        (tmp_path / name).mkdir()
        listed = [{"path": path, "bytes": 1, "sha256": digest} for path, digest in files.items()]
        (tmp_path / name / "manifest.json").write_text(json.dumps({"files": listed}))
    folders = [tmp_path / "a", tmp_path / "b"]
    for ours in (True, False):
        assert material.graphs(folders, ours) == [tmp_path / "a/model.onnx", tmp_path / "b/x.onnx"]


def test_of_a_generator_the_graphs_are_opened_that_the_server_opens(tmp_path):
    names = ["model.onnx", "prefill.onnx", "products.onnx"]

    def opened(generator, ours):
        listed = [{"path": name, "bytes": 1, "sha256": name} for name in names]
        (tmp_path / "manifest.json").write_text(json.dumps({"files": listed, "generator": generator}))
        return [path.name for path in material.graphs([tmp_path], ours)]

    both = {"prefill": "prefill.onnx", "products": "products.onnx"}
    assert opened(both, ours=True) == ["products.onnx"]
    assert opened(both, ours=False) == ["model.onnx", "prefill.onnx"]
    del names[2]
    assert opened({"prefill": "prefill.onnx"}, ours=True) == ["model.onnx"]
    assert opened({"prefill": "prefill.onnx"}, ours=False) == names


def test_graphs_are_opened_without_a_server(tmp_path):
    one = onnx.helper.make_tensor_value_info("one", onnx.TensorProto.FLOAT, [2])
    two = onnx.helper.make_tensor_value_info("two", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["one", "one"], ["two"])], "g", [one], [two])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    job = {"graphs": [str(tmp_path / "model.onnx")] * 2, "threads": 1}
    command = [sys.executable, ROOT / "scripts/peers/open_onnx.py"]
    found = processes.ask(command, job, processes.Clock(60), 30, ROOT, os.environ)
    assert found["graphs"] == 2 and 0 < found["seconds"] < 30
    job["graphs"].append(str(tmp_path / "missing.onnx"))
    with pytest.raises(processes.SideFailed, match="ended with 1"):
        processes.ask(command, job, processes.Clock(60), 30, ROOT, os.environ)


def test_a_measured_server_is_told_models_and_threads_in_variables_that_it_knows():
    told = served.settings(Path("/models"), ["a", "b"], 2)
    assert told["DICHROIC_MODELS"] == "a,b" and told["DICHROIC_THREADS"] == "2"
    assert told["DICHROIC_MODERATION_CACHE"] == "false", "every answer is computed"
    source = (ROOT / "src/config/raw.rs").read_text(encoding="utf-8")
    for name in told:
        assert f'"{name.removeprefix("DICHROIC_").lower()}"' in source, name


STAND_IN = """#!{python}
import http.server, os, signal, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        kept.append(bytearray(40 << 10))
        self.answer()
    def answer(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{{}}")
    def log_message(self, *_):
        pass

# As much as its models weigh.
kept = [bytearray(16 << 20) for _ in os.environ["DICHROIC_MODELS"].split(",")]
time.sleep(0.3)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
host, port = sys.argv[3].split(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


class Built:
    """Two identifiers of one component each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def installed(self) -> dict[str, list[Path]]:
        return {model: [self.folder / "models" / model / "build" / "text"] for model in ("one", "two")}

    def mixture(self) -> mixed.Mixture:
        return MIXTURE


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> sides.Bench:
    """A bench whose server is a program that keeps 40 KiB of every request."""
    (tmp_path / "server").write_text(STAND_IN.format(python=sys.executable))
    (tmp_path / "server").chmod(0o755)
    for folder in ("one", "two"):
        (tmp_path / "models" / folder / "build" / "text").mkdir(parents=True)
    monkeypatch.setattr(machine_sides, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(machine_sides, "REST_SECONDS", (0.5, 0.5))
    monkeypatch.setattr(machine_sides, "EARLY", 100)
    monkeypatch.setattr(machine_sides, "LATE", (1_000, 400))
    binary, built = tmp_path / "server", Built(tmp_path)
    return sides.Bench(tmp_path, binary, binary, binary, None, built, processes.Clock(120), 1, quick=True)


def test_a_start_lasts_until_the_server_is_ready(stand_in: sides.Bench):
    found = sides.measured(stand_in, machine_sides.SIDES["machine/start"], {})
    assert 0.3 < found["ready"] < 10


def test_a_server_that_waits_uses_no_core(stand_in: sides.Bench):
    found = sides.measured(stand_in, machine_sides.ONCE["machine/idle"], {})
    assert 500 <= found["core"] < 5_000 and 10 <= found["used"] < found["core"] / 2


def test_memory_that_every_request_keeps_is_seen(stand_in: sides.Bench):
    found = sides.measured(stand_in, machine_sides.ONCE["machine/memory"], {})
    # 300 requests more, of 40 KiB each.
    assert 10 < found["late"] - found["early"] < 16
    assert not next(row for row in ROWS if row.name == "machine/memory").met(found["late"] / found["early"])


def test_memory_is_measured_of_each_identifier_and_of_all(stand_in: sides.Bench):
    found = sides.measured(stand_in, machine_sides.ONCE[machine_sides.BY_IDENTIFIER], {})
    assert list(found) == ["one", "two", "all"]
    assert abs(found["one"] - found["two"]) < 4 and 12 < found["all"] - found["one"] < 24


def test_what_is_measured_once_is_no_side_of_rounds():
    assert set(machine_sides.ONCE) & set(machine_sides.SIDES) == set()
    assert machine_sides.BY_IDENTIFIER in machine_sides.ONCE


# --- a photograph ----------------------------------------------------------------


def test_the_detector_is_shown_a_page_of_the_size_that_the_server_makes():
    # The sizes of the server's own tests in src/imaging/reading/page.rs.
    rules = {"multiple": 32, "least_pixels": 10_000, "most_pixels": 40_000, "most_side": 512}
    sizes = {
        (20, 10): (64, 32),
        (80, 80): (128, 128),
        (200, 100): (224, 128),
        (400, 400): (224, 224),
        (1024, 4): (512, 32),
        (16_384, 1): (512, 32),
    }
    assert {size: drawn.page_size(*size, rules) for size in sizes} == sizes
    assert drawn.page_size(*drawn.MEGAPIXEL, SETTINGS["detector"]) == drawn.MEGAPIXEL, "and so nothing is scaled"


def test_the_photograph_is_a_jpeg_of_a_megapixel_as_heavy_as_a_camera_makes_them():
    jpeg = drawn.large_photograph()
    picture = Image.open(io.BytesIO(jpeg))
    assert picture.format == "JPEG" and picture.mode == "RGB" and picture.size == (1152, 864)
    assert 150_000 < len(jpeg) < 900_000
    values = np.asarray(picture, np.float32)
    assert values.std() > 15 and (values[:, 1:] != values[:, :-1]).mean() > 0.5, "it has contrast and grain"
    assert jpeg == drawn.large_photograph()


def test_small_pictures_are_small_and_of_many_sizes():
    sizes = {Image.open(io.BytesIO(picture)).size for picture in drawn.small_pictures(["some words"])}
    assert len(sizes) > 20 and all(width <= 640 and height <= 320 for width, height in sizes)


def test_the_faster_way_through_the_parts_counts():
    spinning = [{"decode": 0.01, "vision": 0.05, "detector": 0.14}] * 3
    slow, quick = ({"decode": 0.01, "vision": vision, "detector": 0.1} for vision in (0.04, 0.03))
    sleeping = [quick, slow, slow]
    found = figures.best_pass([spinning, sleeping])
    assert found == {"alpha": pytest.approx(150), "decode": 10.0, "vision": 40.0, "detector": 100.0}
    with pytest.raises(ValueError, match="no passes"):
        figures.best_pass([spinning, []])


def test_a_photograph_is_taken_through_its_parts_without_a_server(tmp_path):
    job: dict[str, Any] = {"side": 4, "page": [32, 64], "threads": 1, "seconds": 0.1}
    job["picture"] = str(tmp_path / "one.jpg")
    Image.new("RGB", (32, 64), "red").save(job["picture"])
    for name, kind, shape in (
        ("vision", onnx.TensorProto.FLOAT, ["batch", 4, 4, 3]),
        ("detector", onnx.TensorProto.UINT8, ["batch", 64, 32, 3]),
    ):
        given, made = (onnx.helper.make_tensor_value_info(value, kind, shape) for value in ("pixels", "seen"))
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["pixels"], ["seen"])], "g", [given], [made])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
        job[name] = str(tmp_path / f"{name}.onnx")
        onnx.save(model, job[name])
    command = [sys.executable, ROOT / "scripts/peers/plain_pictures.py"]
    found = figures.best_pass(processes.ask(command, job, processes.Clock(60), 30, ROOT, os.environ))
    assert set(found) == {"alpha", "decode", "vision", "detector"} and all(value > 0 for value in found.values())


def test_passes_are_counted_by_kind_over_all_models():
    text = """\
dichroic_inference_duration_seconds_bucket{component="image",model="a",le="1"} 9
dichroic_inference_duration_seconds_count{component="image",model="a"} 3
dichroic_inference_duration_seconds_count{component="image",model="b"} 4
dichroic_inference_duration_seconds_count{component="detector",model="a"} 7
dichroic_queue_duration_seconds_count{component="image",model="a"} 5
"""
    found = figures.passes(text)
    assert found == {"image": 7, "detector": 7} and found["recogniser"] == 0
    with pytest.raises(ValueError, match="no passes"):
        figures.passes("up 1\n")


# --- processes -----------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def asked(code: str, seconds: float = 30) -> Any:
    return processes.ask(python(code), {"n": 2}, processes.Clock(60), seconds, ROOT, os.environ)


def test_a_program_gets_its_job_and_answers_json():
    assert asked("import json, sys; print(json.load(sys.stdin)['n'] + 1)") == 3


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('no model here')", "ended with 1: no model here"),
        ("print('hello')", "not JSON"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_program_that_fails_says_why(code: str, said: str):
    with pytest.raises(processes.SideFailed, match=said):
        asked(code, 1 if "sleep" in code else 30)


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_waited_for_and_gone_afterwards():
    with processes.serving(
        lambda port: [*python(SERVER), str(port)], "/", processes.Clock(60), 30, ROOT, os.environ
    ) as port:
        assert processes.get(port, "/") == 200
    assert processes.get(port, "/") == 0


def test_a_server_that_ends_at_once_says_why():
    with pytest.raises(processes.SideFailed, match="ended with 1: no port"):
        with processes.serving(
            lambda port: python("raise SystemExit('no port')"), "/", processes.Clock(60), 30, ROOT, os.environ
        ):
            pass


def test_batches_are_measured_when_every_text_classifier_has_a_size():
    def series(component: str, model: str, value: int) -> str:
        return f'dichroic_batch_tokens{{component="{component}",model="{model}"}} {value}\n'

    idle = series("generator", "alpha-4o-mini", 0)
    assert processes.measured_batches(idle + series("text", "alpha-4o-mini", 512))
    assert not processes.measured_batches(series("text", "alpha-4o-mini", 512) + series("text", "beta-3-haiku", 0))
    assert processes.measured_batches(idle), "a server without a text classifier has nothing to measure"


def test_our_server_is_left_to_measure_its_batches_before_it_is_asked(monkeypatch, tmp_path):
    told: dict[str, str] = {}
    waited: list[int] = []

    @contextmanager
    def running(binary: str, root: Path, **settings: str) -> Iterator[Any]:
        told.update(settings)
        yield types.SimpleNamespace(port=7)

    monkeypatch.setattr(bench_, "running", running)
    monkeypatch.setattr(bench_, "settled", lambda port, clock, seconds: waited.append(port))
    bench = sides.Bench(tmp_path, tmp_path, tmp_path, tmp_path, None, None, processes.Clock(60), 2, True)
    with bench.server(tmp_path, ["a"]) as server:
        assert (server.port, waited) == (7, [7])
    assert "DICHROIC_BATCH_TOKENS" not in told


def test_a_clock_that_ran_out_starts_nothing():
    clock = processes.Clock(10, iter([0.0, 4.0, 4.0, 9.5]).__next__)
    assert clock.limit(100) == 6.0
    with pytest.raises(processes.OutOfTime):
        clock.limit(100)


# --- the same weights on both sides --------------------------------------------


def test_the_graph_for_genai_answers_as_ours(tmp_path):
    path = tiny_checkpoint.write(tmp_path / "tiny.gguf", "llama", seed=1)
    precision = {"linear": 8, "head": 8, "embedding": 8}
    decoder.write_graph(decoder.Checkpoint(path), 32, precision, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert material.for_genai(model, 320) == tiny_checkpoint.Tiny().heads
    ids = np.random.default_rng(1).integers(0, 320, (2, 9))
    cache = {f"past.{name}": np.zeros((2, 2, 32, 16), np.float32) for name in ("0.key", "0.value", "1.key", "1.value")}
    lengths = {"seqlens_k": np.full(2, 8, np.int32), "total_sequence_length": np.array(9, np.int32)}
    ours = ort.InferenceSession(tmp_path / "model.onnx").run(["logits"], {"input_ids": ids, **lengths, **cache})[0]
    session = ort.InferenceSession(model.SerializeToString())
    theirs = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **cache})[0]
    assert theirs.shape == (2, 1, 320) and np.array_equal(ours, theirs[:, 0])
    assert session.get_outputs()[0].shape[1] == 1, "genai takes logits of one place for the last only if it can see so"


def test_the_stock_graph_is_the_same_encoder():
    tensors = random_base(48, 96, 2, seed=3)
    random = np.random.default_rng(4)
    for head, width in (("harm", 96), ("expressibility", 48)):
        tensors |= {f"{head}.weight": random.standard_normal((5, width)), f"{head}.bias": random.standard_normal(5)}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    rows = [[101, 5, 6, 7, 102], [101, 9, 102]]
    ids, mask = np.zeros((2, 5), np.int64), np.zeros((2, 5), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    session = ort.InferenceSession(material.stock(tensors, 12, 1e-12).SerializeToString())
    harm = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})[0]
    for row, logits in zip(rows, harm):
        np.testing.assert_allclose(logits, forward(tensors, row)["harm"], atol=1e-4)


def test_the_products_are_those_of_a_layer():
    session = ort.InferenceSession(material.products(48, 96).SerializeToString())
    assert [tuple(given.shape[1:]) for given in session.get_inputs()] == [(48,), (96,)]
    assert [output.shape[1] for output in session.get_outputs()] == [144, 48, 96, 48]


def test_texts_differ_and_have_fifteen_words():
    texts = material.sentences(200)
    assert len(set(texts)) == 200 and {len(text.split()) for text in texts} == {15}


def test_a_batch_is_chosen_without_padding():
    rows = [[1], [1, 2], [3, 4], [5], [5, 6]]
    assert material.equally_long(rows, 2) == [[1, 2], [3, 4]]
    with pytest.raises(Exception, match="only 3 of 4"):
        material.equally_long(rows, 4)


def test_marked_pictures_differ_in_bytes_alone():
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "JPEG")
    one, two = (material.marked(buffer.getvalue(), number) for number in (1, 2))
    assert one != two and Image.open(io.BytesIO(one)).tobytes() == Image.open(io.BytesIO(two)).tobytes()


# --- the environment -----------------------------------------------------------


def test_every_peer_is_pinned_with_hashes():
    for lock in environment.LOCKS:
        pinned = re.split(r"^(?=[A-Za-z0-9][^\s=]*==)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        assert pinned and all("--hash=sha256:" in package for package in pinned), lock
    peers = environment.Peers(environment.Places.here())
    assert set(peers.versions()) == {
        "llama-cpp-python",
        "onnxruntime-genai",
        "onnxruntime",
        "fastapi",
        "uvicorn",
        "tokenizers",
    }
    assert peers.versions()["onnxruntime"] == "1.31.1", "the server's own version"


# --- the profile ---------------------------------------------------------------


def node(kind: str, start: int, microseconds: int, columns: int = 8) -> dict[str, Any]:
    shape = [{"float": [1, 1, columns]}]
    return {
        "cat": "Node",
        "name": f"{kind}_kernel_time",
        "ts": start,
        "dur": microseconds,
        "args": {"op_name": kind, "output_type_shape": shape},
    }


def test_a_profile_gives_each_kind_of_node_its_share_of_an_unwatched_pass():
    events = [
        {"cat": "Session", "name": "model_run", "ts": start * 100, "dur": 100} for start in range(step_profile.RUNS + 2)
    ]
    for start in range(step_profile.RUNS + 2):
        events += [
            node("MatMulNBits", start * 100, 40),
            node("MatMulNBits", start * 100 + 40, 30, 320),
            node("Mul", start * 100 + 70, 10),
        ]
    events.append(node("Mul", 5, 5000))  # of a warm-up pass
    found = dict(step_profile.by_part(events, 0.001, {320: "head"}))
    assert found == {
        "MatMulNBits": pytest.approx(0.4),
        "head": pytest.approx(0.3),
        "Mul": pytest.approx(0.1),
        "between nodes": pytest.approx(0.2),
    }
    with pytest.raises(ValueError, match="0 passes"):
        step_profile.by_part([], 0.001, {})


def test_histograms_are_summed_over_their_labels():
    text = """\
a_seconds_sum{model="x"} 1.5
a_seconds_count{model="x"} 3
a_seconds_bucket{model="y",le="1"} 1
a_seconds_sum{model="y"} 0.5
a_seconds_count{model="y"} 1
b_sum 2
b_count 8
"""
    assert step_profile.histograms(text) == {"a_seconds": (2.0, 4.0), "b": (2.0, 8.0)}


def test_a_table_adds_up_and_gathers_crumbs():
    text = step_profile.table("T", [("big", 9.9), ("crumb", 0.05), ("crumb too", 0.05)])
    assert (
        "| big | 9.90 | 99% |" in text
        and "| smaller ones together | 0.10 | 1% |" in text
        and "| **whole** | 10.00 | 100% |" in text
    )
    assert "crumb too" not in text


def test_benchmarks_are_held_beside_kept_medians(tmp_path: Path):
    for name, nanoseconds in (("a/1", 2000.0), ("a/8", 3000.0), ("b", 10_000.0), ("new", 1.0)):
        folder = tmp_path / name / "new"
        folder.mkdir(parents=True)
        (folder / "benchmark.json").write_text(json.dumps({"full_id": name}), encoding="utf-8")
        (folder / "estimates.json").write_text(json.dumps({"median": {"point_estimate": nanoseconds}}), encoding="utf-8")
    now = baseline.medians(tmp_path)
    assert now == {"a/1": 2000.0, "a/8": 3000.0, "b": 10_000.0, "new": 1.0}
    lines = baseline.table({"a/1": 1000.0, "a/8": 1500.0, "b": 1250.0, "gone": 5.0}, now)
    assert "common 2.00" in lines[0]
    assert lines[2:] == [
        "| a/1 | 1.0 | 2.0 | 2.00 | 1.00 |",
        "| a/8 | 1.5 | 3.0 | 2.00 | 1.00 |",
        "| b | 1.2 | 10.0 | 8.00 | 4.00 |",
        "| gone | 0.0 | — | — | — |",
        "| new | — | 0.0 | — | — |",
    ]


def test_two_profiles_of_a_pass_stand_side_by_side():
    before = [("MatMul", 6.0), ("Mul", 1.9), ("crumb", 0.01), ("between nodes", 2.09)]
    lines = step_profile.both("T", before, [("Ours", 3.0), ("Mul", 0.99), ("between nodes", 0.01)]).splitlines()
    assert lines[2:] == [
        "| MatMul | 6.00 ms, 60% | — |",
        "| Mul | 1.90 ms, 19% | 0.99 ms, 25% |",
        "| between nodes | 2.09 ms, 21% | 0.01 ms, 0% |",
        "| Ours | — | 3.00 ms, 75% |",
        "| smaller ones together | 0.01 ms, 0% | 0.00 ms, 0% |",
        "| **whole** | 10.00 ms, 100% | 4.00 ms, 100% |",
    ]


def test_only_what_is_between_the_marks_is_replaced():
    page_ = "head\n<!-- p:begin -->\nold\n<!-- p:end -->\ntail\n"
    assert step_profile.between(page_, "p", "new\n") == "head\n<!-- p:begin -->\nnew\n<!-- p:end -->\ntail\n"
    with pytest.raises(ValueError, match="no marks"):
        step_profile.between("nothing", "p", "new")


@pytest.mark.parametrize(("name", "mark"), [("performance.md", "profile"), ("operations.md", "resident")])
def test_the_pages_in_the_repository_have_their_marks(name: str, mark: str):
    step_profile.between((ROOT / "docs" / name).read_text(encoding="utf-8"), mark, "new")
