"""The playground in a real browser, against the running server: every panel
used by mouse and by keyboard, errors shown, nothing asked of anyone else.

Needs `playwright` (requirements.in) and a Chromium, which no wheel brings: the one
that scripts/deploy_tools provides, or the program that DICHROIC_TEST_BROWSER names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from running_server import MODELS, Running, start

from demo_support import photograph

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

DEFAULT = "alpha-4o-mini"
PROVIDED = Path(__file__).resolve().parents[2] / ".venv-deploy/bin/chromium"
BROWSER = os.environ.get("DICHROIC_TEST_BROWSER") or shutil.which(PROVIDED)
STATEMENT = "My doctor moved my appointment to Friday, so I can finally sleep in on Thursday."
THREAT = "I will hunt you down and kill you"
FORMULA = "3x + 5 = 20"
ANSWER_MS = 120_000

pytestmark = [
    pytest.mark.skipif(DEFAULT not in MODELS, reason=f"{DEFAULT} is not set up"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: scripts/deploy_tools provides one"),
]


@dataclass
class Visit:
    """A page in the browser, and what it did that a person does not see."""

    page: playwright.Page
    server: Running
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def text(self) -> playwright.Locator:
        return self.page.get_by_role("textbox", name="Text", exact=True)

    @property
    def image(self) -> playwright.Locator:
        return self.page.locator("input[type=file]")

    def ask(self) -> None:
        self.page.get_by_role("button", name="Ask", exact=True).click()

    def done(self, status: str | re.Pattern[str]) -> None:
        expect(self.page.locator("#status")).to_have_text(status, timeout=ANSWER_MS)

    def paths(self) -> list[str]:
        return [urlsplit(url).path for url in self.asked if url.startswith(self.server.url)]

    def refuse(self, path: str, status: int, error: dict[str, object], headers: dict[str, str] | None = None) -> None:
        """Puts an answer of the server's form in the place of its own."""
        body = json.dumps({"error": {"type": "x", "param": None, "request_id": "made-up", **error}})
        answer = {"status": status, "content_type": "application/json", "headers": headers or {}, "body": body}
        self.page.route(f"**{path}", lambda route: route.fulfill(**answer))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("server"), DICHROIC_MODELS=DEFAULT)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    # Chromium's sandbox does not start for root, who runs these tests in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=arguments)
        try:
            yield chromium
        finally:
            chromium.close()


@pytest.fixture
def visit(browser: playwright.Browser, server: Running) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    result = Visit(page, server)
    page.on("request", lambda request: result.asked.append(request.url))
    page.on("pageerror", lambda error: result.complaints.append(str(error)))
    page.on("console", lambda line: result.complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(server.url)
    page.get_by_label("API key").fill(server.key)
    yield result
    url = page.url
    context.close()
    assert url == f"{server.url}/", "nothing is put into the address"
    foreign = [url for url in result.asked if not url.startswith((f"{server.url}/", "blob:", "data:"))]
    assert not foreign
    # The browser itself reports answers that are errors; nothing else may be said.
    assert not [text for text in result.complaints if not text.startswith("Failed to load resource")]


def test_a_text_gets_all_three_answers(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(STATEMENT)
    expect(page.get_by_text(f"{len(STATEMENT)} of 500 characters")).to_be_visible()
    visit.ask()
    visit.done("All 3 answers are here.")
    expect(page.locator("#prism .bright .said")).not_to_be_empty()
    expect(page.locator("#prism .shade .said")).not_to_be_empty()
    boxes = [page.locator(f"#prism .{side}").bounding_box() for side in ("bright", "shade")]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"], "side by side"
    expect(page.locator("#sunshine .said")).not_to_be_empty()
    expect(page.locator("#scores .score")).to_have_text([re.compile(r"[01]\.\d{4}")] * 5)
    assert sorted(visit.paths()[1:]) == ["/v1/guardians/text", "/v1/prisms/text", "/v1/sunshines/text"]


def test_the_threshold_moves_the_verdict_without_asking(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(THREAT)
    page.get_by_role("checkbox", name="Both expressions").uncheck()
    page.get_by_role("checkbox", name="Reply").uncheck()
    visit.ask()
    visit.done("The answer is here.")
    expect(page.locator("#verdict")).to_contain_text("violence")
    asked = len(visit.asked)
    slider = page.get_by_role("slider", name="Threshold")
    row = page.locator("[data-category=violence]")
    slider.press("End")
    assert slider.input_value() == "1"
    score = float(row.locator(".score").inner_text())
    expect(page.locator("#verdict")).to_have_text(re.compile("Flagged" if score >= 1 else "Not flagged"))
    slider.press("Home")
    assert slider.input_value() == "0.1"
    expect(row.locator(".values .found")).to_have_text("found")
    # The thumb stands below the line.
    slider.evaluate("(input) => { input.value = 0.75; input.dispatchEvent(new Event('input')); }")
    track, range_, thumb = row.locator(".track").bounding_box(), slider.bounding_box(), 24
    middle = range_["x"] + thumb / 2 + (0.75 - 0.1) / 0.9 * (range_["width"] - thumb)
    assert middle == pytest.approx(track["x"] + 0.75 * track["width"], abs=1)
    assert len(visit.asked) == asked


def test_nothing_to_express_is_explained(visit: Visit) -> None:
    visit.text.fill(FORMULA)
    visit.page.get_by_role("checkbox", name="Reply").uncheck()
    visit.ask()
    visit.done("All 2 answers are here.")
    expect(visit.page.locator("#prism-answer")).to_contain_text("There is nothing to express here.")
    expect(visit.page.locator("#sunshine-answer")).to_have_text("Not asked for.")


def test_an_image_is_shown_and_judged(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("tab", name="Image").click()
    file = {"name": "hills.jpg", "mimeType": "image/jpeg", "buffer": photograph()}
    visit.image.set_input_files(file)
    expect(page.get_by_alt_text("The chosen image, hills.jpg")).to_be_visible()
    expect(page.locator("#image-note")).to_contain_text("640 × 480 pixels")
    visit.ask()
    visit.done("The answer is here.")
    expect(page.locator("#verdict")).to_have_text("Not flagged: every score is below the threshold")
    assert [path for path in visit.paths() if path.startswith("/v1/")] == ["/v1/guardians/image"]


def test_a_dropped_image_opens_its_panel(visit: Visit) -> None:
    page = visit.page
    transfer = page.evaluate_handle(
        """(bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "hills.jpg", { type: "image/jpeg" }));
            return transfer;
        }""",
        list(photograph()),
    )
    page.dispatch_event("#answers", "dragover", {"dataTransfer": transfer})
    page.dispatch_event("#answers", "drop", {"dataTransfer": transfer})
    expect(page.get_by_role("tab", name="Image")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_alt_text("The chosen image, hills.jpg")).to_be_visible()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "This file is empty."),
        (b"some text", "This is not a JPEG, PNG, WebP, GIF, BMP or TIFF image."),
        (b"\xff\xd8\xff" + bytes(10 << 20), "This file has 10,485,763 bytes"),
    ],
)
def test_a_wrong_file_is_refused_before_it_is_sent(visit: Visit, content: bytes, said: str) -> None:
    page = visit.page
    page.get_by_role("tab", name="Image").click()
    file = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": content}
    visit.image.set_input_files(file)
    expect(page.locator("#image-error")).to_contain_text(said)
    visit.ask()
    expect(visit.image).to_be_focused()
    assert visit.paths() == ["/"]


def test_the_limits_of_a_text_are_checked_before_it_is_sent(visit: Visit) -> None:
    page = visit.page
    text = visit.text
    # Each is one character, and two of JavaScript's units.
    text.fill("𝄞" * 500)
    expect(page.locator("#over")).to_be_empty()
    text.fill("𝄞" * 501)
    expect(page.locator("#over")).to_have_text("Too long")
    for wrong, said in (("𝄞" * 501, "1 character too long"), (" \n", "Write a text first.")):
        text.fill(wrong)
        visit.ask()
        expect(page.locator("#text-error")).to_contain_text(said)
        expect(text).to_be_focused()
    assert visit.paths() == ["/"]


def test_a_wrong_key_and_a_missing_model_are_said_once(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(STATEMENT)
    page.get_by_label("API key").fill("dk_00000000_wrong")
    visit.ask()
    visit.done(re.compile("^No answer"))
    expect(page.locator(".notice")).to_have_count(1)
    expect(page.locator("#notices")).to_contain_text("The API key was not accepted.")
    expect(page.locator(".notice code")).to_have_count(3)
    expect(page.get_by_label("API key")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("API key").fill(visit.server.key)
    page.get_by_role("combobox", name="Model").select_option("gamma-1.5-flash")
    visit.ask()
    expect(page.locator("#notices")).to_contain_text("This model is not installed", timeout=ANSWER_MS)
    expect(page.locator("#notices")).not_to_contain_text("The API key was not accepted.")


def test_every_other_error_is_said_plainly(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(STATEMENT)
    page.get_by_role("checkbox", name="Both expressions").uncheck()
    page.get_by_role("checkbox", name="Reply").uncheck()
    path = "/v1/guardians/text"
    long = {"code": "text_too_long", "message": "text must be at most 500 characters", "param": "text"}
    for status, error, headers, said in (
        (400, long, {}, "The server says: text must be at most 500 characters."),
        (401, {"code": "insufficient_scope", "message": "m"}, {}, "The API key does not cover this operation."),
        (404, {"code": "not_found", "message": "m"}, {}, "There is nothing at this address."),
        (429, {"code": "rate_limit_exceeded", "message": "m"}, {"Retry-After": "61"}, "Ask again in 6"),
        (429, {"code": "overloaded", "message": "m"}, {"Retry-After": "1"}, "You can ask again now."),
        (500, {"code": "internal_error", "message": "m"}, {}, "Something went wrong on the server."),
        (500, {"code": "internal_error", "message": "<img src=x>"}, {}, "The server says: <img src=x>."),
    ):
        visit.refuse(path, status, error, headers)
        visit.ask()
        expect(page.locator("#notices")).to_contain_text(said)
        expect(page.locator("#notices img")).to_have_count(0)
        page.unroute(f"**{path}")
    page.route(f"**{path}", lambda route: route.abort())
    visit.ask()
    expect(page.locator("#notices")).to_contain_text("The server cannot be reached.")
    page.unroute(f"**{path}")
    page.route(f"**{path}", lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad</h1>"))
    visit.ask()
    expect(page.locator("#notices")).to_contain_text("The server behind this address does not answer.")


def test_all_of_it_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("API key").focus()
    order = []
    for _ in range(13):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"{order[-1]} shows no focus"
    expected = ["show-key", "keep-key", "tab-text", "text", "want-prism", "want-sunshine", "want-guardian"]
    assert [name for name in order if name in expected] == expected
    assert order[-3:] == ["model", "go", "threshold"]
    page.locator("#tab-text").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-image"
    page.keyboard.press("ArrowLeft")
    page.locator("#text").focus()
    page.keyboard.type(FORMULA)
    page.keyboard.press("Control+Enter")
    visit.done("All 3 answers are here.")


def test_a_question_can_be_stopped(visit: Visit) -> None:
    page = visit.page
    page.route("**/v1/**", lambda route: None)
    visit.text.fill(STATEMENT)
    visit.ask()
    page.get_by_role("button", name="Stop").click()
    visit.done("Stopped.")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_focused()


def test_the_key_stays_in_memory_unless_the_box_is_ticked(visit: Visit) -> None:
    page = visit.page
    held = lambda: page.evaluate("[Object.values(sessionStorage), Object.values(localStorage)]")  # noqa: E731
    assert held() == [[], []]
    page.get_by_label("Keep the key").check()
    assert held() == [[visit.server.key], []]
    page.reload()
    expect(page.get_by_label("API key")).to_have_value(visit.server.key)
    page.get_by_label("Keep the key").uncheck()
    assert held() == [[], []]
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_small_screen(visit: Visit, scheme: str, tmp_path: Path) -> None:
    page = visit.page
    page.emulate_media(color_scheme=scheme)
    visit.text.fill("W" * 60 + " " + THREAT)
    visit.ask()
    visit.done("All 3 answers are here.")
    for width in (360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 384) == (scheme == "light")


def test_switched_off_it_is_not_there(tmp_path: Path) -> None:
    running = start(tmp_path, DICHROIC_MODELS=DEFAULT, DICHROIC_PLAYGROUND="false")
    try:
        answer = requests.get(running.url + "/", timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    finally:
        running.stop()
