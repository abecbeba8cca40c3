"""Measuring moderation: reading and cutting of texts, the talk with a server,
figures counted by hand, cards and plots. The server is a stand-in that knows a
score for some texts.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
import xml.dom.minidom
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_in import load_script, running

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from measure import MeasureError, card, figures, plots, texts  # noqa: E402
from measure.asking import Server, ask_all, checked_url, digest  # noqa: E402
from measure.texts import CATEGORIES  # noqa: E402


evaluate = load_script("evaluate")

MODEL, KEY, SHA = "alpha-4o-mini", "dk_00000000_secret-of-the-test", "ab" * 32
SECRET = "Griselda"
CALM = dict.fromkeys(CATEGORIES, 0.1)
# By the first word of a text.
KNOWN = {"hateful": {"hate": 0.9}, "doubtful": {"hate": 0.5}, "violent": {"violence": 0.8, "hate": 0.2}}


class Fake(ThreadingHTTPServer):
    """Answers like the server; refuses the first `refuse` requests, then the texts named in `broken`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.texts: list[str] = []
        self.clients: set[Any] = set()
        self.refuse, self.retry_after = 0, "0"
        self.broken: dict[str, tuple[int, Any]] = {}
        self.hang_up_after = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        series = f'dichroic_model_info{{component="text",device="cpu",model="{MODEL}",sha256="{SHA}"}} 1\n'
        self.answer(200, series.encode() if self.path == "/metrics" else b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.clients.add(self.client_address)
            refused = self.server.refuse > 0
            self.server.refuse -= refused
            if not refused:
                self.server.texts.append(body["text"])
            told = len(self.server.texts)
        word = body["text"].split()[0]
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, error("invalid_api_key"))
        elif self.path != "/v1/guardians/text" or body["model"] != MODEL or len(body) != 2:
            self.answer(400, error("unknown_model"))
        elif refused:
            self.answer(429, error("overloaded"), {"Retry-After": self.server.retry_after})
        elif word in self.server.broken:
            status, answer = self.server.broken[word]
            self.answer(status, json.dumps(answer).encode())
        else:
            scores = {**CALM, **KNOWN.get(word, {})}
            self.answer(200, json.dumps({"category_scores": scores}).encode())
        if told == self.server.hang_up_after:
            # What an idle time-out does to a kept connection: no word of it before.
            self.close_connection = True

    def answer(self, status: int, raw: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": f"{SECRET} said so"}}).encode()


@pytest.fixture
def fake() -> Iterator[Fake]:
    with running(Fake()) as server:
        yield server


def row(text: str, source: str | None = None, **labels: int | None) -> dict[str, Any]:
    return {"text": text, "labels": labels, **({"source": source} if source else {})}


def harmless(text: str, source: str | None = None) -> dict[str, Any]:
    return row(text, source, **dict.fromkeys(CATEGORIES, 0))


def data(path: Path, *rows: Any) -> Path:
    raw = "\n".join(item if isinstance(item, str) else json.dumps(item) for item in rows).encode()
    path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(raw))
    return path


def given(*found: str, **labels: int | None) -> list[texts.Text]:
    judged = tuple(labels.get(category) for category in CATEGORIES)
    return [texts.Text(text, judged, "made", f"made:{i}") for i, text in enumerate(found, 1)]


def ask(fake: Fake, *found: str, connections: int = 1, windows: bool = False) -> Any:
    return ask_all(Server(fake.url, KEY, MODEL), given(*found, hate=0), windows, connections)


# --- texts ---------------------------------------------------------------------


def test_null_and_absent_labels_are_masked_and_a_source_is_the_files_stem(tmp_path: Path) -> None:
    first = data(tmp_path / "one.jsonl.gz", row("a", hate=1, violence=0, sexual=None), "", row("b", "named", hate=False))
    second = data(tmp_path / "two.jsonl", row("c\u2028d", self_harm=0), row("  \n", hate=1), row("e"), row("f", hate=None))
    read = texts.read([first, second])

    assert [text.labels for text in read.texts] == [(None, 1, None, 0, None), (None, 0, None, None, None), (None, None, 0, None, None)]
    assert [text.source for text in read.texts] == ["one", "named", "two"]
    assert [text.place for text in read.texts] == [f"{first}:1", f"{first}:3", f"{second}:1"]
    assert (read.blank, read.unjudged) == (1, 2)
    assert read.files[0] == texts.File("one.jsonl.gz", hashlib.sha256(first.read_bytes()).hexdigest(), 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{{"text": "{SECRET}', "is not JSON"),
        ({"text": SECRET}, "is not of the form"),
        ({"text": [SECRET], "labels": {"hate": 1}}, "is not of the form"),
        ([SECRET], "is not of the form"),
        (row(SECRET, hate=2), "neither 1, 0 nor null"),
        (row(SECRET, hate=1.0), "neither 1, 0 nor null"),
        (row(SECRET, **{f"{SECRET}-like": 1}), "1 categories other than"),
        (row("x", source=f"{SECRET}\n", hate=1), "a source that is no name"),
    ],
)
def test_a_bad_line_is_named_by_its_place_and_not_shown(tmp_path: Path, line: Any, said: str) -> None:
    path = data(tmp_path / "x.jsonl", row("fine", hate=1), line)
    with pytest.raises(MeasureError, match=re.escape(said)) as raised:
        texts.read([path])
    assert str(raised.value).startswith(f"{path}:2 ") and SECRET not in str(raised.value)


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(os.urandom(500))[:100])
    (tmp_path / "plain.jsonl.gz").write_bytes(b"{}")
    (tmp_path / "cut.jsonl.bz2").write_bytes(bz2.compress(os.urandom(500))[:100])
    (tmp_path / "latin.jsonl").write_bytes(b"\xe4")
    for name, said in (("cut.jsonl.gz", "gzip"), ("plain.jsonl.gz", "gzip"), ("cut.jsonl.bz2", "bzip2"), ("latin.jsonl", "UTF-8"), ("no", "be read")):
        with pytest.raises(MeasureError, match=said):
            texts.read([tmp_path / name])
    with pytest.raises(MeasureError, match="no text with a judged category"):
        texts.read([data(tmp_path / "empty.jsonl", row("x"))])


def test_a_limit_takes_texts_from_end_to_end(tmp_path: Path) -> None:
    read = texts.read([data(tmp_path / "x.jsonl", *(harmless(str(i)) for i in range(10)))], limit=4)
    assert [text.text for text in read.texts] == ["0", "2", "5", "7"] and read.beyond_limit == 6


def test_a_text_does_not_show_in_its_repr() -> None:
    assert SECRET not in repr(given(SECRET)[0])
    assert KEY not in repr(Server("http://x", KEY, MODEL))


def test_a_long_text_is_cut_at_500_characters() -> None:
    text = "😀" * 501
    assert texts.pieces(text, False) == ["😀" * 500]
    assert texts.pieces(text[:500], True) == texts.pieces(text[:500], False) == [text[:500]]


def test_windows_cover_a_long_text_and_begin_and_end_at_words() -> None:
    words = " ".join(f"word{i}" for i in range(300))
    found = texts.pieces(words, True)
    assert all(len(piece) <= 500 for piece in found)
    assert all(words[at - 1] == " " or at == 0 for at in map(words.index, found))
    assert all(piece.endswith(" ") for piece in found[:-1])
    end = 0
    for piece in found:
        at = words.index(piece)
        # Every pair of neighbours shares some words.
        assert at <= max(end - 100, 0)
        end = at + len(piece)
    assert end == len(words)

    unbroken = texts.pieces("好" * 1000, True)
    assert [len(piece) for piece in unbroken] == [500, 500, 250]
    assert texts.pieces("a" + " " * 1200 + "b", True) == ["a" + " " * 499, " " * (1201 - 2 * 375) + "b"]


# --- asking --------------------------------------------------------------------


def test_scores_come_back_in_the_order_of_the_texts_over_kept_connections(fake: Fake) -> None:
    found = [f"{('calm', 'hateful', 'violent')[i % 3]} {i}" for i in range(60)]
    answers = ask(fake, *found, connections=4)
    expected = [[{**CALM, **KNOWN.get(text.split()[0], {})}[c] for c in CATEGORIES] for text in found]
    assert answers.scores.tolist() == expected
    assert sorted(fake.texts) == sorted(found)
    assert len(fake.clients) <= 4 and answers.requests == 60 == len(answers.latencies)


def test_a_long_text_takes_the_highest_score_of_its_windows(fake: Fake) -> None:
    text = "violent " + "x" * 491 + " hateful " + "y" * 300
    assert max(ask(fake, text).scores[0]) == 0.8
    answers = ask(fake, text, windows=True)
    assert dict(zip(CATEGORIES, answers.scores[0])) == {**CALM, "violence": 0.8, "hate": 0.2}
    text = "violent " + "x" * 367 + " hateful " + "y" * 400
    answers = ask(fake, text, windows=True)
    assert dict(zip(CATEGORIES, answers.scores[0])) == {**CALM, "violence": 0.8, "hate": 0.9}
    assert answers.requests > 1 == len(answers.scores)


def test_429_is_waited_out_as_long_as_the_server_says(fake: Fake) -> None:
    fake.refuse, fake.retry_after = 1, "1"
    started = time.monotonic()
    answers = ask(fake, "hateful 1", "calm 2")
    assert time.monotonic() - started >= 1
    assert answers.scores[:, 1].tolist() == [0.9, 0.1] and answers.refusals == 1
    # Waiting is not the latency of an answer.
    assert answers.latencies.max() < 0.9


def test_429_is_not_waited_out_for_ever(fake: Fake) -> None:
    fake.refuse, fake.retry_after = 100, "301"
    with pytest.raises(MeasureError, match="--concurrency"):
        ask(fake, "calm", "calm", connections=2)


def test_a_connection_that_the_server_closed_is_opened_again(fake: Fake) -> None:
    fake.hang_up_after = 2
    assert ask(fake, *(f"calm {i}" for i in range(5))).requests == 5
    assert len(fake.clients) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, {"error": {"code": "internal_error", "message": SECRET}}), "the server answered 500 (internal_error) for made:2"),
        ((400, {"error": {"code": SECRET}}), "the server answered 400 (no code) for made:2"),
        ((501, {"error": {"code": "model_not_installed"}}), "no text moderation of alpha-4o-mini installed"),
        ((404, {}), "there is no /v1/guardians/text at http://127.0.0.1"),
        ((200, {"category_scores": {"hate": 1}}), "the answer for made:2 has no scores"),
        ((200, {"category_scores": {**CALM, "hate": float("nan")}}), "a score that is not in 0..1"),
        ((200, {"category_scores": {**CALM, "hate": "0.5"}}), "a score that is not in 0..1"),
    ],
)
def test_any_other_answer_is_an_error_without_the_text(fake: Fake, answer: tuple[int, Any], said: str) -> None:
    fake.broken[SECRET] = answer
    with pytest.raises(MeasureError, match=re.escape(said)) as raised:
        ask(fake, "calm", f"{SECRET} speaks", *(["calm"] * 50), connections=2)
    assert SECRET not in str(raised.value)


def test_a_wrong_key_model_or_address_is_named(fake: Fake) -> None:
    with pytest.raises(MeasureError, match=r"does not accept the key \(invalid_api_key\)"):
        ask_all(Server(fake.url, "wrong", MODEL), given("a"), False, 1)
    with pytest.raises(MeasureError, match="knows no model zeta"):
        ask_all(Server(fake.url, KEY, "zeta"), given("a"), False, 1)
    with pytest.raises(MeasureError, match="gives no answer"):
        ask_all(Server("http://127.0.0.1:1", KEY, MODEL), given("a"), False, 1)
    assert digest(Server(fake.url, KEY, MODEL)) == SHA
    assert digest(Server(fake.url, KEY, "zeta")) is digest(Server("http://127.0.0.1:1", KEY, MODEL)) is None
    assert checked_url("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    for url in ("127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://user:pass@x", "http://x/?key=1"):
        with pytest.raises(MeasureError, match="--url must look like"):
            checked_url(url)


# --- figures -------------------------------------------------------------------


def test_any_harm_is_known_only_where_harm_is_or_all_was_judged() -> None:
    n = np.nan
    labels = np.array([[0, 0, 0, 0, 0], [n, 1, n, n, n], [0, 0, 0, 0, n], [0, 1, 0, 0, 0.0]])
    assert figures.any_harm(labels).tolist()[:2] == [0, 1]
    assert np.isnan(figures.any_harm(labels)[2]) and figures.any_harm(labels)[3] == 1


def test_a_row_of_figures_counted_by_hand() -> None:
    # At 0.5 two of three harmful texts are flagged, and one of two harmless ones; one was not judged.
    labels = np.array([1, 1, 1, 0, 0, np.nan])
    scores = np.array([0.9, 0.5, 0.2, 0.7, 0.1, 0.99])
    auprc = (1 + 2 / 3 + 3 / 4) / 3
    ece = (0.1 + 0.5 + 0.8 + 0.7 + 0.1) / 5
    expected = f"| hate | 3/2 | {auprc:.3f} | 0.667 | 0.667 | 0.667 | 0.667 | 0.500 | {ece:.3f} | 2 | 1 | 1 | 1 |"
    assert figures.line("hate", labels, scores) == expected
    assert figures.line("x", labels[5:], scores[5:]) == "| x | 0/0 |" + " – |" * 7 + " 0 | 0 | 0 | 0 |"


def test_other_thresholds_keep_false_positives_below_a_rate() -> None:
    labels = np.array([1] * 4 + [0] * 100 + [np.nan])
    scores = np.array([0.9, 0.55, 0.42, 0.05] + [0.7, 0.42, 0.3] + [0.01] * 97 + [0.99])
    # Of a hundred harmless texts one may be flagged, then three: the first above 0.42, the other above 0.01, from 0.1 on.
    assert figures.thresholds("hate", labels, scores) == "| hate | 0.4201 | 0.500 | 0.667 | 0.10 | 0.750 | 0.500 |"
    assert figures.thresholds("x", labels[4:], scores[4:]) == "| x | – | – | – | – | – | – |"
    for rate in (0.0, 0.01, 0.02, 0.5, 1.0):
        found = figures.metrics.threshold_for(labels[:-1], scores[:-1], rate)
        assert figures.metrics.at_threshold(labels[:-1], scores[:-1], found)["fpr"] <= rate
    assert figures.metrics.threshold_for(np.array([1, 0]), np.array([1.0, 1.0]), 0.0) > 1


def cells(report: str, name: str) -> list[str]:
    found = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith(f"| {name} |")]
    figured = [row for row in found if len(row) == 13]
    assert len(figured) == 1, name
    return figured[0]


def run_script(fake: Fake, tmp_path: Path, *more: str, rows: list[Any] | None = None) -> str:
    (tmp_path / "key").write_text(KEY + "\n")
    rows = rows or [
        row(f"hateful {SECRET} 1", "one", hate=1),
        row(f"calm {SECRET} 2", "one", hate=1, violence=None),
        row(f"doubtful {SECRET} 3", "one", hate=0),
        harmless(f"calm {SECRET} 4", "a|b<"),
        row(f"violent {SECRET} 5 " + "x" * 600, "a|b<", violence=1, hate=0),
        row(f"{SECRET}", "one"),
    ]
    path = data(tmp_path / "set.jsonl", *rows)
    arguments = ["moderation", "--model", MODEL, "--data", str(path), "--url", fake.url, "--key-file", str(tmp_path / "key")]
    evaluate.main([*arguments, *more], tmp_path)
    return str(path)


def test_the_report_holds_every_count_and_no_text(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(fake, tmp_path, "--concurrency", "2")
    out, err = capsys.readouterr()

    assert cells(out, "hate")[1] == "2/3" and cells(out, "hate")[-4:] == ["1", "1", "1", "2"]
    assert cells(out, "hate, one")[-4:] == ["1", "1", "1", "0"]
    # Of this source no text was harmful, and none was flagged.
    assert "\nhate, nothing harmful and nothing flagged: a\\|b&lt; 2.\n" in out and "| hate, a" not in out
    assert cells(out, "violence")[-4:] == ["1", "0", "0", "1"]
    assert cells(out, "sexual")[1:3] == ["0/1", "–"] and cells(out, "sexual")[-4:] == ["0", "0", "0", "1"]
    # The third text was judged for hate alone: nobody knows whether it holds other harm.
    assert cells(out, "any harm")[1] == "3/1" and cells(out, "any harm")[-4:] == ["2", "0", "1", "1"]
    assert "5 texts, asked one by one" in out and "1 in which no category was judged" in out
    assert "1 texts of more than 500 characters: cut to their first 500" in out
    assert f"manifest SHA-256 `{SHA}`" in out and "of this run only" in out
    assert all(len(text) <= 500 for text in fake.texts)
    for secret in (SECRET, KEY, str(tmp_path)):
        assert secret not in out and secret not in err


def test_windows_and_limit_are_told(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(fake, tmp_path, "--long", "windows", "--limit", "3")
    out = capsys.readouterr().out
    assert "overlapping pieces of at most 500 (stride 375)" in out and "2 beyond the limit" in out


def test_the_cards_block_is_replaced_and_not_doubled(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "models" / MODEL
    folder.mkdir(parents=True)
    path = folder / "text-card.md"
    path.write_text("# Card\n\nWritten by hand.\n")
    run_script(fake, tmp_path, "--card")
    once = path.read_text()
    assert once.startswith("# Card\n\nWritten by hand.\n\n<!-- evaluation:begin -->\n## Text moderation")
    plots_once = {plot.name: plot.read_bytes() for plot in (folder / "plots").iterdir()}

    path.write_text(once + "\nA last word.\n")
    run_script(fake, tmp_path, "--card")
    twice = path.read_text()
    assert twice.count(card.BEGIN) == twice.count(card.END) == 1
    assert twice.count("### By category\n") == 1 and twice.endswith(f"{card.END}\n\nA last word.\n")
    assert "](plots/precision_recall.svg)" in twice and "](plots/reliability.svg)" in twice and SECRET not in twice
    assert {plot.name: plot.read_bytes() for plot in (folder / "plots").iterdir()} == plots_once
    assert set(plots_once) == {"precision_recall.svg", "reliability.svg"}
    assert not list(tmp_path.rglob("*.partial"))


def test_a_card_is_begun_where_there_is_none_and_a_broken_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "text-card.md"
    card.replace_block(path, "Title", "figures\n")
    assert path.read_text() == f"# Title\n\n{card.BEGIN}\nfigures\n{card.END}\n"
    for broken in (card.BEGIN, f"{card.END} {card.BEGIN}", f"{card.BEGIN} {card.BEGIN} {card.END}"):
        path.write_text(broken)
        with pytest.raises(MeasureError, match="mend the card"):
            card.replace_block(path, "Title", "figures")
        assert path.read_text() == broken


def test_out_takes_the_report_and_the_plots(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(fake, tmp_path, "--out", str(tmp_path / "new" / "out"))
    folder = tmp_path / "new" / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["moderation.md", "precision_recall.svg", "reliability.svg"]
    assert "](reliability.svg)" in (folder / "moderation.md").read_text()
    assert capsys.readouterr().out == ""


# --- plots ---------------------------------------------------------------------


def test_plots_are_small_whole_and_the_same_each_time() -> None:
    random_ = np.random.default_rng(0)
    scores = random_.uniform(size=(20_000, 5)).round(4)
    labels = (random_.uniform(size=scores.shape) < scores).astype(float)
    labels[::3, 1] = np.nan
    labels[:, 4] = np.nan
    for plot in (plots.precision_recall, plots.reliability):
        drawn = plot(labels, scores)
        assert drawn == plot(labels.copy(), scores.copy()) and len(drawn.encode()) < 60_000
        parsed = xml.dom.minidom.parseString(drawn)
        legend = [node.firstChild.data for node in parsed.getElementsByTagName("text")]
        assert [any(name.startswith(f"{category} ") for name in legend) for category in CATEGORIES] == [True] * 5
        assert "defamation –" in legend and "nan" not in drawn


def test_plots_of_hardly_anything_are_drawn() -> None:
    labels, scores = np.full((1, 5), np.nan), np.full((1, 5), 0.5)
    labels[0, 0] = 1
    for plot in (plots.precision_recall, plots.reliability):
        xml.dom.minidom.parseString(plot(labels, scores))


# --- the server of its own -----------------------------------------------------

SERVER = '''#!{python}
import http.server, json, os, signal, sys
assert os.environ["DICHROIC_MODELS"] == {model!r} and os.environ["DICHROIC_USAGE_LIMIT"] == "0"

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(200 if self.path == "/readyz" else 404)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        allowed = self.headers["Authorization"] == "Bearer " + os.environ["DICHROIC_API_KEY"]
        self.answer({status} if allowed else 401)
    def answer(self, status):
        raw = json.dumps({{"category_scores": {scores}}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *_):
        pass

assert sys.argv[1:3] == ["serve", "--listen"]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
host, port = sys.argv[3].split(":")
open({pid!r}, "w").write(str(os.getpid()))
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
'''


@pytest.mark.parametrize("status", [200, 500])
def test_a_server_of_its_own_is_stopped_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv("DICHROIC_MODELS", raising=False)
    binary, pid = tmp_path / "server", tmp_path / "pid"
    binary.write_text(SERVER.format(python=sys.executable, model=MODEL, status=status, scores=CALM, pid=str(pid)))
    binary.chmod(0o755)
    path = data(tmp_path / "x.jsonl", harmless(f"calm {SECRET}"), row("calm", violence=1))
    arguments = ["moderation", "--model", MODEL, "--data", str(path), "--binary", str(binary)]

    with pytest.raises(SystemExit, match="no text classifier of alpha-4o-mini is built here"):
        evaluate.main(arguments, tmp_path)
    built = tmp_path / "models" / MODEL / "build" / "text"
    built.mkdir(parents=True)
    (built / "manifest.json").write_text("{}")
    if status == 200:
        evaluate.main(arguments, tmp_path)
        assert cells(capsys.readouterr().out, "violence")[1] == "1/1"
    else:
        with pytest.raises(SystemExit, match=r"^evaluate: the server answered 500 \(no code\) for .*x\.jsonl:[12]\.$"):
            evaluate.main(arguments, tmp_path)
    assert SECRET not in "".join(capsys.readouterr())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--model", "../x"],
        ["--limit", "0"],
        ["--concurrency", "many"],
        ["--key-file", "k"],
        ["--url", "http://127.0.0.1:1", "--binary", "b"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        evaluate.main(["moderation", "--model", MODEL, "--data", "x", *wrong])
    assert raised.value.code == 2


def test_a_running_server_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DICHROIC_API_KEY", raising=False)
    path = data(tmp_path / "x.jsonl", harmless("calm"))
    (tmp_path / "key").write_text("two words")
    arguments = ["moderation", "--model", MODEL, "--data", str(path), "--url", "http://127.0.0.1:1"]
    for more in ([], ["--key-file", str(tmp_path / "key")], ["--key-file", str(tmp_path / "none")]):
        with pytest.raises(SystemExit, match="key"):
            evaluate.main([*arguments, *more], tmp_path)
