"""Measuring the text reader: the same pictures for the same seed, errors counted
by hand, the talk with the binary and the server, and the report. Binary and
server are stand-ins.
"""

from __future__ import annotations

import io
import json
import stat
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from measure import MeasureError, ocr, pages  # noqa: E402
from measure.asking import Server  # noqa: E402
from measure.pages import Drawn  # noqa: E402
from measure.texts import CATEGORIES  # noqa: E402


@pytest.fixture
def server() -> Iterator[Server]:
    """Finds hate in every text with the word and in every picture of one byte."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = "hate" in body["text"] if "text" in body else body["image"] == "eA=="
            answer = json.dumps({"categories": {name: name == "hate" and found for name in CATEGORIES}}).encode()
            self.send_response(200 if self.headers["Authorization"] == "Bearer key" else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    fake = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    yield Server(f"http://127.0.0.1:{fake.server_port}", "key", "alpha-4o-mini")
    fake.shutdown()
    fake.server_close()


def drawn(text: str, kind: str = "plain", size: int = 20, png: bytes = b"xy") -> Drawn:
    return Drawn(kind, size, text, png)


def test_the_same_seed_draws_the_same_pictures() -> None:
    one, again, other = (pages.draw(7, seed, None) for seed in (3, 3, 4))
    assert [(page.text, page.png) for page in one] == [(page.text, page.png) for page in again]
    assert [page.png for page in one] != [page.png for page in other]
    assert [page.kind for page in one] == ["plain", "light on dark", "two columns", "turned", "meme", "screen", "large screen"]
    for page in one:
        with Image.open(io.BytesIO(page.png)) as picture:
            assert picture.mode == "RGB" and min(picture.size) > page.size * 2
            if page.kind in pages.SCREENS:
                assert picture.size == pages.SCREENS[page.kind] and page.size <= 20
        assert 12 <= page.size <= 48 and page.text.strip()


def test_lines_are_wrapped_without_losing_a_word() -> None:
    letters = pages.font((), 16, pages.random.Random(1))
    text = " ".join(pages.HARMLESS)
    lines = pages._by_words(text, letters, 200)
    assert len(lines) > 10 and " ".join(lines) == text
    assert all(letters.getlength(line) <= 200 or " " not in line for line in lines)
    assert "".join(pages._by_letters(text, letters, 200)) == text


def test_errors_are_counted() -> None:
    cases = [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2), ("same", "same", 0)]
    for one, other, expected in cases:
        assert ocr.distance(one, other) == expected
    assert ocr.plain(" ａｂ\n c\u3000") == "ab c"


def binary(folder: Path, body: str) -> str:
    path = folder / "reader"
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_every_picture_is_read_once_in_its_place(tmp_path: Path) -> None:
    reader = binary(
        tmp_path,
        "assert sys.argv[1:4] == ['read', '--model', 'm']\n"
        "for name in sys.argv[4:]: print(json.dumps({'file': name, 'text': open(name).read() * 2, 'pages': []}))",
    )
    found = ocr.read(reader, tmp_path, "m", [drawn("", png=b"a"), drawn("", png=b"b")])
    assert found == ["aa", "bb"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('dichroic: no bundle', file=sys.stderr); sys.exit(1)", "failed: dichroic: no bundle"),
        ("pass", "did not read every picture"),
        ("print(json.dumps({'file': 'x', 'error': 'damaged'}))", "did not read every picture"),
    ],
)
def test_a_reader_that_fails_is_told(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        ocr.read(binary(tmp_path, body), tmp_path, "m", [drawn("a")])
    with pytest.raises(MeasureError, match="run make build first"):
        ocr.read(str(tmp_path / "none"), tmp_path, "m", [drawn("a")])


def test_verdicts_are_compared(server: Server) -> None:
    asked = [drawn("hate", png=b"x"), drawn("calm"), drawn("hate"), drawn("x" * 501)]
    results = ocr.compare(asked, ["", "", "", ""], server)
    assert [result.agrees for result in results] == [True, True, False, None]
    assert [result.is_flagged for result in results] == [True, False, True, False]
    stranger = Server(server.url, "other", server.model)
    with pytest.raises(MeasureError, match="answered 401 for the text of picture 7"):
        ocr.verdicts(stranger, drawn("calm"), 7)


def test_the_report_weighs_characters_and_keeps_memes_apart(server: Server) -> None:
    pictures = [drawn("a" * 80), drawn("b" * 20, size=12), drawn("c" * 100, "meme", 40)]
    results = ocr.compare(pictures, ["a" * 76, "", "c" * 90 + "d" * 10], server)
    assert [result.errors for result in results] == [4, 20, 10]
    report = ocr.report(results, ocr.Run("alpha-4o-mini", "aa", "bb", 5, None))
    assert "| error rate, clean, 16 pixels and more | 1 | at most 5% | 5.00% |" in report
    assert "| error rate, memes | 1 | at most 15% | 10.00% |" in report
    assert "| equal verdicts | 3 | at least 95% | 100.0% |" in report
    assert "| plain | 12 to 15 | 1 | 100.00% | 0 | 100.0% |" in report
    assert "| equal verdicts, of texts that are flagged | 0 | | – |" in report
    assert "neither was measured" in report and "`aa`" in report and "`bb`" in report
    assert "Noto.ttc`" in ocr.report(results, ocr.Run("m", None, None, 5, "/fonts/Noto.ttc"))
