"""Measuring image moderation: pictures found in tars and folders, which source is
harmful, the talk with the server, figures counted by hand, card and contact
sheet. The server is a stand-in that scores a picture by its bytes.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from stand_in import load_script, running

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "train")]

import image_heads  # noqa: E402
from measure import MeasureError, card, contact, drawings, images, pictures  # noqa: E402
from measure.asking import Course, Server  # noqa: E402
from measure.texts import CATEGORIES  # noqa: E402


evaluate = load_script("evaluate")

MODEL, KEY, SHA = "alpha-4o-mini", "dk_00000000_secret-of-the-test", "ef" * 32
CALM = dict.fromkeys(CATEGORIES, 0.1)


class Fake(ThreadingHTTPServer):
    """Scores a picture by the words in it, `violence=0.9`; takes none with `broken`; refuses the first `refuse`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[bytes] = []
        self.clients: set[Any] = set()
        self.refuse = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        series = f'dichroic_model_info{{component="image",device="cpu",model="{MODEL}",sha256="{SHA}"}} 1\n'
        self.answer(200, series.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = base64.b64decode(body["image"], validate=True)
        with self.server.lock:
            self.server.clients.add(self.client_address)
            refused = self.server.refuse > 0
            self.server.refuse -= refused
            if not refused:
                self.server.seen.append(data)
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, error("invalid_api_key"))
        elif self.path != "/v1/guardians/image" or body["model"] != MODEL or len(body) != 2:
            self.answer(400, error("unknown_model"))
        elif refused:
            self.answer(429, error("overloaded"))
        elif data.startswith(b"broken"):
            self.answer(400, error("corrupt_image"))
        elif data.startswith(b"fault"):
            self.answer(500, error("internal_error"))
        else:
            told = {name: float(score) for name, score in re.findall(rb"(\w+)=([\d.]+)", data[:60])}
            scores = {**CALM, **{name.decode(): score for name, score in told.items()}}
            self.answer(200, json.dumps({"category_scores": scores}).encode())

    def answer(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "it says so"}}).encode()


@pytest.fixture
def fake() -> Iterator[Fake]:
    with running(Fake()) as server:
        yield server


def tar(path: Path, **sources: list[str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for source, contents in sources.items():
            for n, content in enumerate(contents):
                entry = tarfile.TarInfo(f"{source}/{n}.jpg" if source else f"{n}.jpg")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))
    return path


# --- pictures ------------------------------------------------------------------


def test_a_source_is_the_folder_that_a_picture_lies_in(tmp_path: Path) -> None:
    folder = tmp_path / "holiday"
    for name in ("top.PNG", "deep/down/cats/1.webp", "dogs/2.tiff", "dogs/notes.txt", "dogs/._2.tiff"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    packed = tar(tmp_path / "more.v1.tar", dogs=["wolf"], **{"": ["loose"]})
    found = [(place.source, data.decode()) for place, data in pictures.read(pictures.find([folder, packed], None, 1))]
    assert found == [
        ("cats", "deep/down/cats/1.webp"), ("dogs", "dogs/2.tiff"), ("dogs", "wolf"), ("holiday", "top.PNG"),
        ("more", "loose"),
    ]


def test_some_of_each_source_are_taken_by_seed(tmp_path: Path) -> None:
    packed = tar(tmp_path / "x.tar", a=[f"a{n}" for n in range(50)], b=["b0", "b1"])
    one, again, other = (pictures.find([packed], 5, seed) for seed in (3, 3, 4))
    assert one == again != other
    assert [place.source for place in one] == ["a"] * 5 + ["b"] * 2
    assert len({place.name for place in one}) == 7
    assert len(pictures.find([packed], None, 3)) == 52


def test_what_holds_no_pictures_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("no tar")
    for path in (tmp_path / "x.tar", tmp_path / "none"):
        with pytest.raises(MeasureError, match=f"{path.name} cannot be read as a tar or a folder"):
            pictures.find([path], None, 1)
    gone = tar(tmp_path / "y.tar", a=["1"])
    places = pictures.find([gone], None, 1)
    gone.unlink()
    with pytest.raises(MeasureError, match="y.tar cannot be read"):
        list(pictures.read(places))


def test_known_sources_are_harmful_whether_or_not_a_head_is_to_find_them() -> None:
    # Of violence also what no head is for: what is not found is to be told.
    for source in (*image_heads.FIREARMS, *image_heads.UNSEEN_FIREARMS, *image_heads.OTHER_VIOLENCE):
        assert images.harms(source, {}) == {"violence"}
    for source in ("symbol-wall", "symbol-apart-wood", "symbol-photograph"):
        assert images.harms(source, {}) == {"hate"}
    calm = (*image_heads.CALM, *image_heads.UNSEEN_CALM, "alike-wall", "alike-apart-wood", "skin-desert", "mine")
    for source in calm:
        assert images.harms(source, {}) == set()


def test_a_run_names_further_harmful_sources_and_no_absent_ones() -> None:
    named = {"sexual": ["mine"], "violence": ["mine", "skin-face"]}
    labels = images.label(["mine", "skin-face", "cctv-fights"], named)
    assert labels == {"mine": {"sexual", "violence"}, "skin-face": {"violence"}, "cctv-fights": {"violence"}}
    with pytest.raises(MeasureError, match="--harmful hate=others names no source of these pictures: mine"):
        images.label(["mine"], {"hate": ["others"]})


# --- asking --------------------------------------------------------------------


def ask(fake: Fake, *contents: str, connections: int = 1, key: str = KEY, model: str = MODEL) -> list[images.Answer]:
    found = (("made", f"made:{n}", content.encode()) for n, content in enumerate(contents))
    return images.ask_all(Server(fake.url, key, model), found, len(contents), connections)[0]


def test_answers_keep_the_order_of_the_pictures_over_few_connections(fake: Fake) -> None:
    fake.refuse = 3
    contents = [f"violence=0.{n:02} picture {n}" for n in range(1, 60)]
    answers = ask(fake, *contents, connections=4)
    assert [answer.scores[CATEGORIES.index("violence")] for answer in answers] == [n / 100 for n in range(1, 60)]
    assert sorted(fake.seen) == sorted(content.encode() for content in contents)
    assert 1 < len(fake.clients) <= 4


def test_a_picture_that_is_not_taken_is_counted_by_its_code(fake: Fake) -> None:
    answers = ask(fake, "calm", "broken", "hate=1")
    assert [answer.code for answer in answers] == [None, "corrupt_image", None]
    assert answers[1].scores is None and answers[2].scores == (0.1, 1, 0.1, 0.1, 0.1)


def test_a_picture_above_the_limit_is_counted_and_not_sent(fake: Fake) -> None:
    answers = ask(fake, "calm", "x" * (images.MOST_BYTES + 1), "hate=1")
    assert [answer.code for answer in answers] == [None, "image_too_large", None]
    assert len(fake.seen) == 2


def test_what_would_fail_every_picture_ends_the_run(fake: Fake) -> None:
    with pytest.raises(MeasureError, match=r"answered 500 \(internal_error\) for made:1"):
        ask(fake, "calm", "fault", *["calm"] * 30, connections=2)
    with pytest.raises(MeasureError, match=r"does not accept the key"):
        ask(fake, "calm", key="wrong")
    with pytest.raises(MeasureError, match="knows no model zeta"):
        ask(fake, "calm", model="zeta")


def test_a_picture_that_cannot_be_read_ends_the_run(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for n in range(20):
        (tmp_path / "one" / f"{n:02}.png").write_text("calm")
    places = pictures.find([tmp_path], None, 1)
    (tmp_path / "one" / "07.png").unlink()
    found = ((place.source, str(place), data) for place, data in pictures.read(places))
    with pytest.raises(MeasureError, match="cannot be read as a tar or a folder"):
        images.ask_all(Server(fake.url, KEY, MODEL), found, len(places), 4)


# --- figures -------------------------------------------------------------------


def cells(report: str, name: str) -> list[str]:
    found = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith(f"| {name} |")]
    assert len(found) == 1, name
    return found[0]


def run_script(fake: Fake, tmp_path: Path, *more: str) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    knives = ["violence=0.9", "violence=0.5", "violence=0.49", "x"]
    weapons = tar(tmp_path / "weapons.tar", **{"knives-in-hand": knives})
    calm = tmp_path / "calm"
    for name, content in {
        "a|b/1.jpg": "violence=0.7", "a|b/2.jpg": "violence=0.2 sexual=0.31", "a|b/3.jpg": "broken",
        "own/1.png": "sexual=0.8", "own/2.png": "sexual=0.6 violence=0.6",
    }.items():
        (calm / name).parent.mkdir(parents=True, exist_ok=True)
        (calm / name).write_text(content)
    data = ["--data", str(weapons), str(calm)]
    evaluate.main(
        ["images", "--model", MODEL, *data, "--url", fake.url, "--key-file", str(tmp_path / "key"), *more], tmp_path
    )


def test_the_report_holds_every_share(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(fake, tmp_path, "--harmful", "sexual=own", "--concurrency", "2")
    out, err = capsys.readouterr()

    # From the highest score down, where h is harmful: h 0.9, 0.7, 0.6, h 0.5, h 0.49, 0.2, and both h and not at 0.1.
    auprc = (1 / 1 + 2 / 4 + 3 / 5 + 4 / 8) / 4
    highest = "0.70 a\\|b, 0.60 own, 0.20 a\\|b"
    expected = ["violence", "4", "50.0%", "4", "50.0%", "50.0%", "50.0% a\\|b", f"{auprc:.3f}", highest]
    assert cells(out, "violence") == expected
    assert cells(out, "sexual")[:8] == ["sexual", "2", "100.0%", "6", "0.0%", "0.0%", "0.0% a\\|b", "1.000"]
    assert cells(out, "hate")[1:3] == ["0", "–"] and cells(out, "hate")[7] == "–"
    assert cells(out, "knives-in-hand") == ["knives-in-hand", "4", "0.0%", "0.0%", "0.0%", "**50.0%**", "0.0%"]
    assert cells(out, "a\\|b") == ["a\\|b", "2", "0.0%", "0.0%", "0.0%", "50.0%", "0.0%"]
    assert cells(out, "own") == ["own", "2", "**100.0%**", "0.0%", "0.0%", "50.0%", "0.0%"]
    assert "9 pictures of 3 sources" in out and "in no figure: 1 `corrupt_image`" in out
    assert f"manifest SHA-256 `{SHA}`" in out and "`weapons.tar`, `calm`." in out
    assert "over 2 connections" in out and "p95" in out and "of this run only" in out
    assert len(fake.seen) == 9 and KEY not in out + err and "![" not in out


def answer(source: str, score: float | None, seconds: float = 0.1) -> images.Answer:
    scores = None if score is None else (score, 0, 0, 0, 0)
    return images.Answer(source, scores, None if scores else "corrupt_image", seconds)


def test_sources_weigh_the_same_in_their_mean_and_latencies_are_those_of_answers() -> None:
    large = [*[answer("large", 0)] * 18, *[answer("large", 0.9, 0.3)] * 2, answer("large", None, 9)]
    found = [*large, answer("small", 1, 0.5)]
    labels = dict.fromkeys(("large", "small"), ())
    run = images.Run(MODEL, None, "`x`", labels, 3, found, Course(2, 7))
    report = images.report(run)
    assert cells(report, "sexual")[3:7] == ["21", "14.3%", "55.0%", "100.0% small"]
    assert "latency in ms p50 100.0, p95 300.0, longest 500.0" in report and "(429) 7 times" in report
    with pytest.raises(MeasureError, match="took none of the pictures"):
        images.report(images.Run(MODEL, None, "`x`", labels, 3, [answer("large", None)], Course(2, 0)))


# --- card and sheet ------------------------------------------------------------


def test_the_sheet_is_small_and_shows_scores_that_flag_in_red() -> None:
    samples = drawings.samples()
    names = [sample.name for sample in samples]
    assert names[:13] == sorted(path.stem for path in (ROOT / "tests" / "golden" / "images").glob("*.png"))
    assert len([name for name in names if name.startswith("skin, ")]) == 10
    assert {"text, meme", "text, turned"} <= set(names)

    def reds(score: float) -> int:
        drawn = contact.sheet(samples, [(score,) * 5] * len(samples))
        assert len(drawn) <= 80 * 1024 and drawn == contact.sheet(samples, [(score,) * 5] * len(samples))
        with Image.open(io.BytesIO(drawn)) as image:
            assert image.format == "PNG" and image.width < 1000
            colours = image.convert("RGB").getcolors(256) or []
        # Of the drawings themselves none has so strong a red in quantity.
        return sum(count for count, (r, g, b) in colours if r > 150 and g < 60 and b < 60)

    assert reds(0.5) > reds(0.4999) + 1000


def test_the_card_shows_drawn_pictures_whatever_was_measured(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / MODEL
    folder.mkdir(parents=True)
    path = folder / "image-card.md"
    heads = "\n".join(image_heads.MARKS)
    path.write_text(f"# Card\n\nBy hand.\n\n{heads}\n")
    run_script(fake, tmp_path, "--card")
    once, sheet = path.read_text(), (folder / "plots" / "images.png").read_bytes()
    assert once.startswith(f"# Card\n\nBy hand.\n\n{heads}\n\n{card.BEGIN}\n## Image moderation of {MODEL}")
    assert "](plots/images.png)" in once and "### By source" in once
    measured = {data for data in fake.seen if not data.startswith(b"\x89PNG")}
    assert len(measured) == 9 and len(fake.seen) == 9 + len(drawings.samples())

    run_script(fake, tmp_path, "--card", "--most", "1")
    assert path.read_text().count(card.BEGIN) == path.read_text().count(card.END) == 1
    assert "3 pictures of 3 sources" in path.read_text() and "at most 1 of a source (seed 47)" in path.read_text()
    assert (folder / "plots" / "images.png").read_bytes() == sheet
    assert not list(tmp_path.rglob("*.partial"))


def test_out_takes_the_report_and_the_sheet(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(fake, tmp_path, "--out", str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["images.md", "images.png"]
    assert "](images.png)" in (tmp_path / "out" / "images.md").read_text() and capsys.readouterr().out == ""


def test_without_pictures_our_own_are_drawn(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text(KEY)
    evaluate.main(
        ["images", "--model", MODEL, "--most", "1", "--url", fake.url, "--key-file", str(tmp_path / "key")], tmp_path
    )
    out = capsys.readouterr().out
    assert "our own drawings, at most 1 of a source (seed 47)" in out
    # Ten kinds of skin's colours, six grounds each of both sets, a symbol and its look-alike on each.
    assert "34 pictures of 34 sources" in out
    assert cells(out, "symbol-apart-wood")[3] == "**0.0%**" and cells(out, "alike-wall")[3] == "0.0%"
    assert cells(out, "hate")[1:4] == ["12", "0.0%", "22"]


@pytest.mark.parametrize(
    "wrong",
    [["--most", "0"], ["--harmful", "violence"], ["--harmful", "cruelty=x"], ["--url", "u", "--binary", "b"]],
)
def test_arguments_that_make_no_sense_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        evaluate.main(["images", "--model", MODEL, *wrong])
    assert raised.value.code == 2


def test_nothing_is_asked_where_there_are_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there are no pictures in"):
        evaluate.main(["images", "--model", MODEL, "--data", str(tmp_path)], tmp_path)
