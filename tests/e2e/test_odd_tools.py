"""What of a tool's schema is not enforced is named, by the header and by one line of the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from deployments.replica.asked import DROPPED_HEADER, MOST_DROPPED, MOST_DROPPED_CHARS
from tests.backend_metal.test_odd_schemas import asked
from tests.support.deployments.gateway_harness import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
ODD: dict[str, Any] = {
    "type": "OBJECT",
    "properties": {
        "when": {"type": "string", "pattern": "[a-z"},
        "é": {"type": "string", "enum": None},
        "to": {"$ref": "#/nowhere"},
    },
}
PLACES = "odd.properties._.enum, odd.properties.to.$ref, odd.properties.when.pattern"


async def answer(running: Running, path: str, schemas: dict[str, Any], **fields: Any) -> Any:
    body = asked(path, schemas) | {"model": "demo", "max_tokens": 4} | fields
    if path == "/v1/responses":
        body |= {"max_output_tokens": body.pop("max_tokens"), "store": False}
    return await running.client.post(path, json=body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_places_that_are_not_enforced_are_named(
    shaped: Running, path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "deployments.replica"):
        response = await answer(shaped, path, {"odd": ODD, "fine": {}}, stream=stream)
    assert response.status_code == 200, response.text
    assert response.headers[DROPPED_HEADER] == PLACES
    assert [line.count(PLACES) for line in caplog.messages].count(1) == 1
    response = await answer(shaped, path, {"odd": ODD}, tool_choice=none_of(path))
    assert DROPPED_HEADER not in response.headers


def none_of(path: str) -> Any:
    return {"type": "none"} if path == "/v1/messages" else "none"


async def test_there_is_an_end_to_the_names(shaped: Running) -> None:
    properties = {"x" * 200: None, **{f"{number}": None for number in range(40)}}
    response = await answer(shaped, PATHS[0], {"odd": {"properties": properties}})
    assert response.status_code == 200, response.text
    long, *others = response.headers[DROPPED_HEADER].split(", ")
    assert (len(long), len(others)) == (MOST_DROPPED_CHARS, MOST_DROPPED - 1)
    assert others[:2] == ["odd.properties.0", "odd.properties.1"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_strict_tool_is_refused_by_name_and_place(shaped: Running, path: str) -> None:
    for odd, place in (
        ({"when": {"type": "string", "pattern": "[a-z"}}, "properties.when"),
        ({"when": {"enum": None}}, "properties.when.enum"),
        ({"when": {"$ref": "#/nowhere"}}, "properties.when"),
    ):
        schema = {"type": "object", "properties": odd, "required": ["when"]}
        body = asked(path, {"fine": {}, "odd": schema}, strict=True) | {"model": "demo"}
        response = await shaped.client.post(path, json=body)
        assert response.status_code == 400, response.text
        message = response.json()["error"]["message"]
        assert message.startswith("tools[1].")
        assert place in message
