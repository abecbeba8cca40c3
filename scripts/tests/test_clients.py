"""The OpenAPI document and what is made from it: two readers find no fault, the
clients generated from it in Python and TypeScript work against the running
server, and schemathesis finds no answer that contradicts it. Run by
`make test-clients`, with the tools of scripts/clients.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import openapi_spec_validator
import pytest
import requests
from running_server import MODELS, ROOT, Running, start

ENVIRONMENT = ROOT / ".venv-clients"
TOOLS = ROOT / "scripts" / "clients"
# The small one: hundreds of requests are answered here.
MODEL = "beta-3-haiku"
TEXT = "My train is half an hour late again."
THREAT = "I will hunt you down and kill you"
CATEGORIES = ["sexual", "hate", "self_harm", "violence", "defamation"]
IMAGE = base64.b64encode((ROOT / "tests/golden/images/landscape.png").read_bytes()).decode()
# The tools would otherwise report their use, or look for newer versions of themselves.
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "NO_COLOR": "1"}

pytestmark = pytest.mark.skipif(MODEL not in MODELS, reason=f"{MODEL} was not asked for")


def run(*command: str | Path, seconds: int = 120, **variables: str) -> str:
    """Standard output of a tool that must succeed."""
    environment = {**os.environ, **QUIET, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    return done.stdout


def tool(name: str) -> Path:
    """A program of the Python packages, or else of the Node packages."""
    return next(
        path for folder in ("bin", "node_modules/.bin") if (path := ENVIRONMENT / folder / name).exists()
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # A limit that nobody reaches here: without one, its headers would be absent and stay unchecked.
    running = start(tmp_path_factory.mktemp("server"), DICHROIC_MODELS=MODEL, DICHROIC_USAGE_LIMIT="1000000")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def document(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(requests.get(f"{server.url}/openapi.json", timeout=10).content)
    return path


def test_the_document_is_valid(document: Path) -> None:
    openapi_spec_validator.validate(json.loads(document.read_text(encoding="utf-8")))


def test_the_linter_has_nothing_to_say(document: Path) -> None:
    said = run(tool("redocly"), "lint", document, "--config", TOOLS / "redocly.yaml", "--format=json")
    assert json.loads(said)["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}, said


# --- Python ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(document: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the generated package `dichroic_client` can be imported from."""
    folder = tmp_path_factory.mktemp("python")
    settings = folder / "settings.yaml"
    settings.write_text("post_hooks: []\n", encoding="utf-8")
    output = folder / "dichroic_client"
    generate = ["generate", "--path", document, "--meta", "none", "--output-path", output, "--config", settings]
    run(tool("openapi-python-client"), *generate, "--fail-on-warning")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def part(name: str) -> ModuleType:
    return importlib.import_module(f"dichroic_client.{name}")


def test_a_client_generated_in_python_works(server: Running, package: Path) -> None:
    models, api = part("models"), "api.moderation"
    client = part("client").AuthenticatedClient(base_url=server.url, token=server.key, timeout=120)

    def ask(operation: str, body: Any, by: Any = client) -> Any:
        return part(operation).sync_detailed(client=by, body=body)

    model = models.ModelId.BETA_3_HAIKU
    text = models.TextRequest(text=TEXT, model=model)
    prism = ask("api.expression.express_text", text)
    assert prism.status_code == 200 and prism.parsed.positive and prism.parsed.negative
    assert ask("api.expression.reply_to_text", text).parsed.text

    threat = models.TextModerationRequest(text=THREAT, model=model, score_threshold=0.1)
    verdict = ask(f"{api}.moderate_text", threat).parsed
    assert verdict.flagged and verdict.categories.violence and verdict.category_scores.violence >= 0.1
    assert sorted(verdict.category_scores.to_dict()) == sorted(CATEGORIES)
    picture = ask(f"{api}.moderate_image", models.ImageModerationRequest(image=IMAGE, model=model)).parsed
    assert picture.flagged is False and 0 <= picture.category_scores.sexual <= 1

    several = models.ModerationRequest(input_=[TEXT, THREAT], model=models.ModerationModelId.BETA_3_HAIKU)
    answer = ask(f"{api}.moderate", several).parsed
    assert answer.model == MODEL and [result.flagged for result in answer.results] == [False, True]

    blank = ask("api.expression.express_text", models.TextRequest(text=" ", model=model))
    assert blank.status_code == 400 and isinstance(blank.parsed, models.ErrorBody)
    assert (blank.parsed.error.code, blank.parsed.error.param) == ("text_blank", models.Param.TEXT)
    assert blank.parsed.error.request_id == blank.headers["x-request-id"]
    stranger = part("client").AuthenticatedClient(base_url=server.url, token="dk_none")
    refusal = ask("api.expression.express_text", text, stranger)
    assert refusal.status_code == 401 and refusal.parsed.error.code == "invalid_api_key"
    missing = models.TextRequest(text=TEXT, model=models.ModelId.GAMMA_1_5_FLASH)
    assert ask("api.expression.express_text", missing).parsed.error.code == "model_not_installed"

    public = part("client").Client(base_url=server.url)
    assert part("api.server.readyz").sync(client=public).status == models.ReadinessStatus.READY
    assert "dichroic_requests_total" in part("api.server.metrics").sync(client=public)


# --- TypeScript ------------------------------------------------------------------


def test_a_client_with_types_generated_in_typescript_works(server: Running, document: Path, tmp_path: Path) -> None:
    run(tool("openapi-typescript"), document, "--default-non-nullable=false", "--output", tmp_path / "schema.d.ts")
    for name in ("client.ts", "tsconfig.json"):
        shutil.copy(TOOLS / name, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(ENVIRONMENT / "node_modules")
    run(tool("tsc"), "--project", tmp_path)
    said = run("node", tmp_path / "client.js", CLIENT_URL=server.url, CLIENT_KEY=server.key, CLIENT_IMAGE=IMAGE)
    answers = json.loads(said)
    assert all(isinstance(text, str) and text for text in [*answers.pop("prism"), answers.pop("sunshine")])
    assert 0 <= answers.pop("self-harm") <= 1
    assert answers == {
        "violence": True,
        "found": CATEGORIES,
        "seen": False,
        "moderation": [False, True],
        "applied": ["text", "image"],
        "blank": [400, "text_blank", "text"],
        "stranger": [401, "invalid_api_key"],
        "ready": "ready",
    }


# --- every answer against the document ---------------------------------------------


def test_no_answer_contradicts_the_document(server: Running) -> None:
    credential = ["--header", f"Authorization: Bearer {server.key}"]
    settings = ["--config-file", TOOLS / "schemathesis.toml"]
    address = f"{server.url}/openapi.json"
    hooks = str(TOOLS / "hooks.py")
    run(tool("schemathesis"), *settings, "run", address, *credential, seconds=1500, SCHEMATHESIS_HOOKS=hooks)
