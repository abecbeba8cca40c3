"""The playground in a real browser, against the running server: every panel
used by mouse and by keyboard, errors shown, nothing asked of anyone else, and
axe-core finds no barrier. The reference at /docs/ is opened as well.

Needs `playwright` and axe-core (requirements.in) and a Chromium, which no wheel brings:
the program that DICHROIC_TEST_BROWSER names, else the one that scripts/deploy_tools provides.
Pictures of the page are left in target/playground.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api as playwright
from playwright.sync_api import expect
from running_server import MODELS, ROOT, Running, start
from stand_in import load_script

from demo_support import photograph

# The last is the smallest, and starts soonest.
MODEL, SMALL = (MODELS[0], MODELS[-1]) if MODELS else ("", "")
BROWSER = load_script("deploy_tools").browser()
STATEMENT = "My doctor moved my appointment to Friday, so I can finally sleep in on Thursday."
# An image that breaks off in the middle.
CUT = (ROOT / "tests/fixtures/images/cut-half.jpg").read_bytes()
THREAT = "I will hunt you down and kill you"
FORMULA = "3x + 5 = 20"
ANSWER_MS = 120_000
# As long as playwright waits for anything else: its five seconds are short on a busy machine.
expect.set_options(timeout=30_000)
PICTURES = ROOT / "target/playground"
# Level AA of the guidelines (WCAG 2.2), and what axe-core advises besides.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

pytestmark = [
    pytest.mark.skipif(not MODELS, reason="no model is set up that these tests know"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: scripts/deploy_tools provides one"),
]


@dataclass
class Visit:
    """A page in the browser, and what it did that a person does not see."""

    page: playwright.Page
    server: Running
    address: str = ""
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def text(self) -> playwright.Locator:
        return self.page.get_by_role("textbox", name="Text", exact=True)

    @property
    def image(self) -> playwright.Locator:
        return self.page.locator("input[type=file]")

    def go(self, path: str) -> None:
        self.address = self.server.url + path
        self.page.goto(self.address)

    def show(self, name: str, content: bytes) -> None:
        """Chooses a JPEG in the panel for images."""
        self.page.get_by_role("tab", name="Image").click()
        self.image.set_input_files({"name": name, "mimeType": "image/jpeg", "buffer": content})
        expect(self.page.locator("#image-note")).to_contain_text(name)

    def want_moderation_only(self) -> None:
        for name in ("Both expressions", "Reply"):
            self.page.get_by_role("checkbox", name=name).uncheck()

    def ask(self) -> None:
        self.page.get_by_role("button", name="Ask", exact=True).click()

    def done(self, status: str | re.Pattern[str]) -> None:
        expect(self.page.locator("#status")).to_have_text(status, timeout=ANSWER_MS)

    def paths(self) -> list[str]:
        """What the page asked for after a person's doing: which models are loaded it asks by itself."""
        asked = [urlsplit(url).path for url in self.asked if url.startswith(self.server.url)]
        return [path for path in asked if path != "/readyz"]

    def refuse(self, path: str, status: int, error: Mapping[str, str], headers: dict[str, str] | None = None) -> None:
        """Puts an answer of the server's form in the place of its own."""
        body = json.dumps({"error": {"type": "x", "param": None, "request_id": "made-up", **error}})
        answer = {"status": status, "content_type": "application/json", "headers": headers or {}, "body": body}
        self.page.route(f"**{path}", lambda route: route.fulfill(**answer))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("server"), DICHROIC_MODELS=MODEL)
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


@contextmanager
def visiting(browser: playwright.Browser, server: Running, model: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    result = Visit(page, server)
    page.on("request", lambda request: result.asked.append(request.url))
    page.on("pageerror", lambda error: result.complaints.append(str(error)))
    page.on("console", lambda line: result.complaints.append(line.text) if line.type in ("error", "warning") else None)
    result.go("/")
    page.get_by_label("API key").fill(server.key)
    # The one that is loaded, whichever is the default.
    expect(page.get_by_role("combobox", name="Model")).to_have_value(model)
    yield result
    url = page.url
    context.close()
    assert url == result.address, "nothing is put into the address"
    foreign = [url for url in result.asked if not url.startswith((f"{server.url}/", "blob:", "data:"))]
    assert not foreign
    # The browser itself reports answers that are errors; nothing else may be said.
    assert not [text for text in result.complaints if not text.startswith("Failed to load resource")]


@pytest.fixture
def visit(browser: playwright.Browser, server: Running) -> Iterator[Visit]:
    with visiting(browser, server, MODEL) as result:
        yield result


def box(element: playwright.Locator) -> playwright.FloatRect:
    found = element.bounding_box()
    assert found is not None, "it is not shown"
    return found


def states(visit: Visit) -> Iterator[str]:
    """Brings the page into each of its states, and says its name."""
    page = visit.page
    yield "start"
    visit.text.fill(STATEMENT)
    visit.ask()
    visit.done("All 3 answers are here.")
    page.get_by_text("Answer as JSON").first.click()
    yield "text"
    # What is written to a threat may be refused by the server's own moderation.
    visit.want_moderation_only()
    visit.text.fill("W" * 60 + " " + THREAT)
    visit.ask()
    visit.done("The answer is here.")
    yield "threat"
    visit.show("h" * 60 + ".jpg", photograph())
    visit.ask()
    visit.done("The answer is here.")
    yield "image"
    visit.show("c" * 60 + ".jpg", CUT)
    visit.ask()
    visit.done(re.compile("^No answer"))
    yield "error"
    page.get_by_role("tab", name="Text").click()
    page.get_by_label("API key").fill("")
    visit.text.fill("W" * 501)
    page.get_by_role("checkbox", name="Moderation scores").uncheck()
    visit.ask()
    expect(page.locator("#wanted-error")).to_be_visible()
    yield "fields"


def test_the_model_at_first_is_one_that_is_loaded(visit: Visit) -> None:
    page, select = visit.page, visit.page.get_by_role("combobox", name="Model")
    report = {"status": "not_ready", "models": [{"id": "gamma-1.5-flash", "ready": False}, {"id": "delta-3.1"}]}
    page.route("**/readyz", lambda route: route.fulfill(status=503, json=report))
    page.reload()
    expect(select).to_have_value("gamma-1.5-flash")
    # What a person has chosen before that is known stays.
    held: list[playwright.Route] = []
    page.unroute("**/readyz")
    page.route("**/readyz", lambda route: held.append(route))
    with page.expect_request("**/readyz"):
        page.reload()
    select.select_option("beta-3-haiku")
    with page.expect_response("**/readyz"):
        held[0].fulfill(json=report)
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(select).to_have_value("beta-3-haiku")
    # And where a proxy keeps it to itself, the default.
    page.unroute("**/readyz")
    page.route("**/readyz", lambda route: route.fulfill(status=404, body="<h1>Not here</h1>"))
    with page.expect_response("**/readyz"):
        page.reload()
    page.evaluate("new Promise((done) => setTimeout(done))")
    expect(select).to_have_value("alpha-4o-mini")


def test_a_text_gets_all_three_answers(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(STATEMENT)
    expect(page.get_by_text(f"{len(STATEMENT)} of 500 characters")).to_be_visible()
    visit.ask()
    visit.done("All 3 answers are here.")
    expect(page.locator("#prism .bright .said")).not_to_be_empty()
    expect(page.locator("#prism .shade .said")).not_to_be_empty()
    bright, shade = (box(page.locator(f"#prism .{side}")) for side in ("bright", "shade"))
    assert bright["y"] == shade["y"] and bright["x"] < shade["x"], "side by side"
    expect(page.locator("#sunshine .said")).not_to_be_empty()
    expect(page.locator("#scores .score")).to_have_text([re.compile(r"[01]\.\d{4}")] * 5)
    assert sorted(visit.paths()[1:]) == ["/v1/guardians/text", "/v1/prisms/text", "/v1/sunshines/text"]


def test_the_threshold_moves_the_verdict_without_asking(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(THREAT)
    visit.want_moderation_only()
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
    track, range_, thumb = box(row.locator(".track")), box(slider), 24
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
    visit.show("hills.jpg", photograph())
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
def test_a_wrong_file_is_refused_before_it_is_sent(visit: Visit, tmp_path: Path, content: bytes, said: str) -> None:
    page = visit.page
    page.get_by_role("tab", name="Image").click()
    # From the disk: ten mebibytes take seconds over the wire to the browser.
    file = tmp_path / "a.jpg"
    file.write_bytes(content)
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


def test_a_damaged_image_is_refused_at_its_field(visit: Visit) -> None:
    page = visit.page

    def turn_away(route: playwright.Route) -> None:
        page.get_by_role("tab", name="Text").click()
        route.continue_()

    visit.show("cut.jpg", CUT)
    expect(page.locator("#image-error")).to_be_empty()
    page.route("**/v1/guardians/image", turn_away)
    visit.ask()
    # What an image brought is not said of the texts.
    visit.done("Nothing has been asked yet.")
    expect(page.locator(".notice")).to_be_hidden()
    page.get_by_role("tab", name="Image").click()
    visit.done(re.compile("^No answer"))
    expect(page.locator(".notice")).to_be_visible()
    notices, said = page.locator("#notices"), "the image data are damaged or incomplete"
    expect(notices).to_contain_text("The server did not accept this request.")
    expect(notices).to_contain_text(f"The server says: {said}.")
    expect(notices).to_contain_text("Status 400 · corrupt_image · field image · request ")
    expect(page.locator("#image-error")).to_have_text(f"The server says: {said}.")
    expect(visit.image).to_have_attribute("aria-invalid", "true")
    visit.show("hills.jpg", photograph())
    expect(page.locator("#image-error")).to_be_empty()
    expect(visit.image).not_to_have_attribute("aria-invalid", "true")


def test_the_usage_limit_is_counted_down(browser: playwright.Browser, tmp_path: Path) -> None:
    running = start(tmp_path, DICHROIC_MODELS=SMALL, DICHROIC_USAGE_LIMIT="1")
    try:
        with visiting(browser, running, SMALL) as visit:
            page, now = visit.page, datetime(2030, 1, 1)
            # The page's clock stands still but where it is moved: a minute passes at once.
            page.clock.set_fixed_time(now)
            visit.text.fill(STATEMENT)
            visit.want_moderation_only()
            visit.ask()
            visit.done("The answer is here.")
            with page.expect_response("**/v1/guardians/text") as refused:
                visit.ask()
            visit.done(re.compile("^No answer"))
            assert refused.value.status == 429
            seconds = int(refused.value.headers["retry-after"])
            assert 1 <= seconds <= 60
            expect(page.locator("#notices")).to_contain_text("The usage limit of this API key is reached.")
            expect(page.locator("#notices")).to_contain_text("Status 429 · rate_limit_exceeded · request ")
            timer = page.get_by_role("timer")
            for left in (seconds, 1, 0):
                page.clock.set_fixed_time(now + timedelta(seconds=seconds - left))
                wait = f"Ask again in {left} second{'' if left == 1 else 's'}."
                expect(timer).to_have_text(wait if left else "You can ask again now.", timeout=ANSWER_MS)
    finally:
        running.stop()


def test_every_other_error_is_said_plainly(visit: Visit) -> None:
    page = visit.page
    visit.text.fill(STATEMENT)
    visit.want_moderation_only()
    path = "/v1/guardians/text"
    for status, error, headers, said in (
        (401, {"code": "insufficient_scope", "message": "m"}, {}, "The API key does not cover this operation."),
        (404, {"code": "not_found", "message": "m"}, {}, "There is nothing at this address."),
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


def controls(page: playwright.Page) -> list[str]:
    """Every control that is shown; of the two tabs the chosen one, from which arrows lead to the other."""
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
            .filter((one) => one.checkVisibility() && one.ariaSelected !== "false")
            .map((one) => one.id || one.textContent)"""
    )
    return found


def tabbed(page: playwright.Page, count: int) -> list[str]:
    """What the first presses of the tabulator reach, each with its focus to be seen."""
    page.locator(".skip").focus()
    order: list[str] = []
    while True:
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"{order[-1]} shows no focus"
        if len(order) == count:
            return order
        page.keyboard.press("Tab")


def test_all_of_it_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit.page
    hills: playwright.FilePayload = {"name": "hills.jpg", "mimeType": "image/jpeg", "buffer": photograph()}
    page.on("filechooser", lambda chooser: chooser.set_files(hills))
    reached = controls(page)
    wanted = ["key", "show-key", "keep-key", "tab-text", "text", "want-prism", "want-sunshine", "want-guardian"]
    assert [name for name in reached if name in wanted] == wanted
    assert reached[-3:] == ["model", "go", "threshold"]
    assert tabbed(page, len(reached)) == reached

    page.locator("#tab-text").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-image"
    page.keyboard.press("Tab")
    expect(visit.image).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_alt_text("The chosen image, hills.jpg")).to_be_visible()
    page.locator("#go").focus()
    page.keyboard.press("Enter")
    visit.done("The answer is here.")
    reached = controls(page)
    assert reached[-5:] == ["image", "model", "go", "threshold", "Answer as JSON"]
    assert tabbed(page, len(reached)) == reached

    page.locator("#tab-image").focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#text").focus()
    page.keyboard.type(STATEMENT)
    page.keyboard.press("Control+Enter")
    visit.done("All 3 answers are here.")
    reached = controls(page)
    assert reached.count("Answer as JSON") == 3
    assert tabbed(page, len(reached)) == reached


def test_a_question_can_be_stopped(visit: Visit) -> None:
    page = visit.page
    page.route("**/v1/**", lambda route: None)
    visit.text.fill(STATEMENT)
    visit.ask()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")
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


def barriers(page: playwright.Page) -> list[tuple[str, list[str]]]:
    """The rules of axe-core that the page breaks, each with where."""
    result = Axe().run(page, options={"runOnly": RULES}).response
    assert "color-contrast" in {rule["id"] for rule in result["passes"]}, "axe-core did not look"
    return [(rule["id"], [str(node["target"]) for node in rule["nodes"]]) for rule in result["violations"]]


def test_every_state_fits_every_screen_and_keeps_nobody_out(visit: Visit) -> None:
    page = visit.page
    PICTURES.mkdir(parents=True, exist_ok=True)
    for state in states(visit):
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 384) == (scheme == "light")
            for width in (360, 768, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{state}, {width}"
                page.screenshot(path=PICTURES / f"{state}-{width}-{scheme}.png", full_page=True)
            assert not barriers(page), f"{state}, {scheme}"


def test_the_reference_lists_every_operation(visit: Visit) -> None:
    document = requests.get(visit.server.url + "/openapi.json", timeout=30).json()
    offered = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    visit.go("/docs/")
    listed = visit.page.locator(".opblock")
    expect(listed).to_have_count(len(offered), timeout=ANSWER_MS)
    assert offered == {
        (each.locator(".opblock-summary-method").inner_text(), each.locator("[data-path]").get_attribute("data-path"))
        for each in listed.all()
    }
    path = "/v1/prisms/text"
    listed.filter(has_text=path).get_by_role("button").first.click()
    expect(listed.locator(".opblock-body")).to_contain_text("text_too_long", timeout=ANSWER_MS)
    one = document["paths"][path]["post"]
    visit.address += f"#/{one['tags'][0]}/{one['operationId']}"
    assert not visit.complaints, "not even of a file that is missing"


def test_switched_off_it_is_not_there(tmp_path: Path) -> None:
    running = start(tmp_path, DICHROIC_MODELS=SMALL, DICHROIC_PLAYGROUND="false")
    try:
        answer = requests.get(running.url + "/", timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    finally:
        running.stop()
