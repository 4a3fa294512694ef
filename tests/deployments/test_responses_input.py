"""Bodies of the Responses API that anything may stand in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.errors import ApiError
from deployments.protocol import parse_request
from deployments.protocol.parsed import in_own_names
from deployments.protocol.responses.context import UnresolvedError
from deployments.protocol.responses.items import ITEMS
from deployments.protocol.responses.request import ResponsesRequest
from tests.support.fuzzing import fuzz

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KINDS = [*ITEMS, "custom", "function", "namespace", "grammar", "input_text", "allowed_tools"]
NAMES = [
    "type",
    "name",
    "role",
    "content",
    "call_id",
    "output",
    "arguments",
    "summary",
    "tools",
    "format",
    "text",
    "mode",
]
things = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from([*KINDS, "user", "x", "{}", [], [{"type": "input_text", "text": ""}]])
    | anything,
    max_size=5,
)
fields = st.sampled_from(
    sorted(ResponsesRequest.model_fields.keys() | ResponsesRequest.unsupported)
)


@fuzz(400)
@given(st.dictionaries(fields, anything | things | st.lists(things, max_size=3), max_size=3))
def test_any_fields_are_refused_by_name_or_read(given_fields: dict[str, Any]) -> None:
    body = {"model": "m", "input": "hi", **given_fields}
    error = refusal(body)
    if error is None:
        return
    assert error.status == 400
    assert error.param is not None
    assert error.param.partition(".")[0].partition("[")[0] in body
    assert error.param in error.message


def refusal(body: dict[str, Any]) -> ApiError | None:
    try:
        parse_request("/v1/responses", json.dumps(body).encode())
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": "hi"}, {"id": "msg_1"}]}, "input[1].id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
def test_what_is_not_looked_up_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal({"model": "m", "input": "hi"} | fields)
    assert isinstance(error, UnresolvedError)
    assert error.param == param
    assert "no response is kept" in error.message


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        ("tools[1].function.parameters.properties.x", "tools[1].tools[0].parameters.properties.x"),
        ("tools[0].function.name", "tools[0].name"),
        ("tools[2].function.parameters.properties.input", "tools[2].format.definition"),
        ("tools[2].function.parameters", "tools[2].format"),
        ("response_format.json_schema.schema.properties.x", "text.format.schema.properties.x"),
        ("response_format", "text.format"),
        ("messages[0].content", "instructions.content"),
        ("messages[1]", "input[0]"),
        ("messages", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
    ],
)
def test_what_an_engine_refuses_has_the_names_of_this_api(shared: str, own: str) -> None:
    body = {
        "model": "m",
        "input": "hi",
        "instructions": "x",
        "tools": [
            {"type": "function", "name": "f"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
            {"type": "custom", "name": "h"},
        ],
    }
    parsed = parse_request("/v1/responses", json.dumps(body).encode())
    told = in_own_names(ApiError(400, f"{shared} is odd.", param=shared), parsed.own_names)
    assert (told.param, told.message) == (own, f"{own} is odd.")
