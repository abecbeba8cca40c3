"""The official client of OpenAI against the running server: another address
and another key are all that it needs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Moderation
from running_server import MODELS, Running, start

from demo_support import lettering, photograph

HARMLESS = "The train leaves at nine and the tickets are on the table."
THREAT = "I will hunt you down and kill you"
CATEGORIES = ["sexual", "hate", "self-harm", "violence", "defamation"]
# What OpenAI's names stand for.
DEFAULT = "alpha-4o-mini"

pytestmark = pytest.mark.skipif(DEFAULT not in MODELS, reason=f"{DEFAULT} is not set up")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("server"), DICHROIC_MODELS=DEFAULT)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=120)


def image(picture: bytes) -> dict[str, Any]:
    url = f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def applied(result: Moderation) -> dict[str, list[str]]:
    return result.category_applied_input_types.to_dict()


def test_a_string_has_one_result(client: openai.OpenAI) -> None:
    answer = client.moderations.create(input=THREAT)
    assert answer.id.startswith("modr-") and answer.model == DEFAULT
    [result] = answer.results
    assert result.flagged is True
    assert result.categories.violence is True and result.category_scores.violence >= 0.5
    assert result.categories.self_harm is False and result.category_scores.self_harm < 0.5
    for found in (result.categories, result.category_scores, result.category_applied_input_types):
        assert sorted(found.to_dict()) == sorted(CATEGORIES)
    assert applied(result) == {category: ["text"] for category in CATEGORIES}


def test_a_list_has_a_result_for_each_string_in_its_place(client: openai.OpenAI) -> None:
    # One threat, where the first window has long ended.
    long = " ".join([HARMLESS] * 60 + [THREAT])
    answer = client.moderations.create(input=[HARMLESS, THREAT, HARMLESS, long], model="omni-moderation-latest")
    assert [result.flagged for result in answer.results] == [False, True, False, True]


def test_parts_have_one_result(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": HARMLESS}, image(photograph()), image(lettering("SALE TODAY"))]
    [result] = client.moderations.create(input=parts, model="omni-moderation-2024-09-26").results
    assert result.flagged is False
    assert applied(result) == {category: ["text", "image"] for category in CATEGORIES}
    [result] = client.moderations.create(input=[*parts, {"type": "text", "text": THREAT}]).results
    assert result.flagged is True and result.categories.violence is True


def test_our_own_field_goes_along(client: openai.OpenAI) -> None:
    [result] = client.moderations.create(input=THREAT, extra_body={"score_threshold": 1}).results
    assert result.flagged is (max(result.category_scores.to_dict().values()) >= 1)


def test_refusals_are_the_exceptions_that_clients_catch(client: openai.OpenAI) -> None:
    address = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    for wrong, code, param in (
        ({"input": [address]}, "unsupported_image_url", "input"),
        ({"input": []}, "input_empty", "input"),
        ({"input": "a", "model": "gpt-4o"}, "unknown_model", "model"),
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.moderations.create(**wrong)
        assert (refusal.value.code, refusal.value.param) == (code, param)
        assert refusal.value.type == "invalid_request_error"
        assert refusal.value.request_id
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="dk_none").moderations.create(input="a")
