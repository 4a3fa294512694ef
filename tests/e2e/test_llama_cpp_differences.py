"""Where the suite of llama.cpp's server wants something else than is answered here, and who is
right: the documents of OpenAI, Anthropic and Jina, whose APIs these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.deployments.gateway_harness import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
HELLO = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
MESSAGE_WITH_IMAGE = {"role": "user", "content": [{"type": "image", "source": IMAGE}]}
OWN_FIELD = "no field of the API: what is not known is refused by its name"


@dataclass(frozen=True)
class Difference:
    theirs: int
    """The status that llama.cpp's suite wants."""
    path: str
    fields: dict[str, Any]
    ours: int
    says: str
    """Of the error: its param, or for Messages a part of its text."""
    because: str


def with_form(**form: Any) -> dict[str, Any]:
    return {"messages": HELLO, "response_format": form}


DIFFERENCES = [
    Difference(
        200,
        CHAT,
        with_form(type="json_object", schema={"const": "42"}),
        400,
        "response_format.schema",
        "OpenAI: a schema is for the type json_schema",
    ),
    Difference(
        200,
        CHAT,
        with_form(type="json_schema", json_schema={"schema": {"const": "x"}}),
        400,
        "response_format.json_schema.name",
        "OpenAI: a schema has a name",
    ),
    Difference(
        400,
        CHAT,
        {
            "messages": [*HELLO, *[{"role": "assistant", "content": "test"}] * 2],
            "max_tokens": 1,
        },
        200,
        "",
        "OpenAI: messages of one role may follow each other",
    ),
    Difference(200, CHAT, {"messages": HELLO, "json_schema": {}}, 400, "json_schema", OWN_FIELD),
    Difference(
        200, CHAT, {"messages": HELLO, "grammar": 'root ::= "a"'}, 400, "grammar", OWN_FIELD
    ),
    Difference(
        200,
        CHAT,
        {"messages": HELLO, "stream": True, "return_progress": True},
        400,
        "return_progress",
        f"{OWN_FIELD}; comments of a stream tell its progress without it",
    ),
    Difference(
        200,
        CHAT,
        {"messages": HELLO, "thinking_budget_tokens": 5},
        400,
        "thinking_budget_tokens",
        f"{OWN_FIELD}; vLLM's is thinking_token_budget",
    ),
    Difference(
        200,
        RESPONSES,
        {"input": "Hello", "stream": True, "return_progress": True},
        400,
        "return_progress",
        OWN_FIELD,
    ),
    Difference(
        200,
        MESSAGES,
        {"messages": [], "max_tokens": 1},
        400,
        "messages must be a non-empty array",
        "Anthropic: there is a message at least",
    ),
    Difference(
        500,
        MESSAGES,
        {"messages": [MESSAGE_WITH_IMAGE], "max_tokens": 1},
        400,
        "messages[0].content[0].type",
        "Anthropic: what a model can't read is the request's fault",
    ),
    Difference(
        200,
        MESSAGES,
        {
            "messages": HELLO,
            "max_tokens": 100,
            "thinking": {"type": "enabled", "budget_tokens": 50},
        },
        400,
        "this model does not think",
        "Anthropic: thinking is refused for a model without it",
    ),
    Difference(200, EMBEDDINGS, {"input": ""}, 400, "input", "OpenAI: never an empty string"),
    Difference(
        200,
        EMBEDDINGS,
        {"input": [12, 34, "string", 56]},
        400,
        "input[2]",
        "OpenAI: an array is of strings, or of tokens",
    ),
    Difference(
        200, EMBEDDINGS, {"input": {"prompt_string": "a"}}, 400, "input", "OpenAI: no objects"
    ),
    Difference(
        200,
        EMBEDDINGS,
        {"input": {"content": [{"type": "text", "text": "a"}]}},
        400,
        "input",
        "OpenAI: no objects",
    ),
    Difference(
        200,
        "/v1/rerank",
        {"query": "a", "documents": ["b"], "texts": ["b"]},
        400,
        "texts",
        "Jina: documents; texts are of TEI",
    ),
    Difference(
        200,
        "/apply-template",
        {"messages": HELLO},
        404,
        "",
        "no path of these APIs: /tokenize takes messages",
    ),
    Difference(200, "/embeddings", {"input": "a"}, 404, "", "OpenAI: /v1/embeddings"),
    Difference(200, "/completion", {"prompt": "a"}, 404, "", "OpenAI: /v1/completions"),
    Difference(
        200,
        "/infill",
        {"input_prefix": "a", "prompt": "b", "input_suffix": "c"},
        404,
        "",
        "OpenAI: /v1/completions with a suffix",
    ),
]

AGREED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, with_form(type="sound")),
    (CHAT, with_form(type="json_object", schema=123)),
    (CHAT, with_form(type="json_schema", json_schema={"name": "x", "schema": {"type": 123}})),
    (CHAT, with_form(type="json_schema", json_schema={"name": "x", "schema": {"type": "hiccup"}})),
    (CHAT, {"messages": None}),
    (CHAT, {"messages": "string"}),
    (CHAT, {"messages": [123]}),
    (CHAT, {"messages": [{}]}),
    (CHAT, {"messages": [{"role": 123}]}),
    (CHAT, {"messages": [{"role": "system", "content": 123}]}),
    (CHAT, {"messages": [{"role": "system", "content": "test"}, {}]}),
    (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema", "name": "test"}}}),
    (MESSAGES, {"max_tokens": 50}),
    (EMBEDDINGS, {"input": []}),
    (EMBEDDINGS, {"input": {"content": "string"}}),
    (EMBEDDINGS, {"input": "This is a test " * 512}),
    ("/rerank", {"query": "a", "documents": []}),
    ("/rerank", {"query": "a", "documents": None}),
    ("/rerank", {"query": "a", "documents": 123}),
    ("/rerank", {"query": "a", "documents": [1, 2, 3]}),
]
"""What both refuse."""


async def test_where_the_documents_say_something_else_they_are_followed(shaped: Running) -> None:
    for one in DIFFERENCES:
        response = await shaped.client.post(one.path, json={"model": "demo", **one.fields})
        assert response.status_code == one.ours != one.theirs, (one.path, one.fields)
        if one.ours == 400:
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error"
            told = error["message"] if one.path == MESSAGES else error["param"]
            assert one.says in told if one.path == MESSAGES else told == one.says, one.because


async def test_what_both_refuse_is_a_400_that_says_where(shaped: Running) -> None:
    for path, fields in AGREED:
        response = await shaped.client.post(path, json={"model": "demo", **fields})
        assert response.status_code == 400, (path, fields)
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert path == MESSAGES or error["param"], (path, fields)
