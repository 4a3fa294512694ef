"""What the document of fields calls honoured changes the answer of a real engine, or bounds it."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deployments.protocol import tokenization
from deployments.protocol.anthropic import token_count
from deployments.protocol.responses import token_count as input_tokens
from ops.api_reference import DOCUMENT
from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.honoured.objects import OBJECTS
from tests.support.e2e.honoured.requests import (
    FUNCTIONS,
    MESSAGES_TOOL,
    REQUESTS,
    THINKING_OF_MESSAGES,
    TOOL,
)
from tests.support.e2e.honoured.rows import Elsewhere, Kind, Shown, Table
from tests.support.e2e.shaped_model import streamed, told

ASYNC = pytest.mark.asyncio(loop_scope="module")
TESTS = Path(__file__).resolve().parent.parent
OWN = (
    "id",
    "created",
    "prompt_tokens_details",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "input_tokens",
    "input_tokens_details",
)
"""Differ between any two answers: what is cached depends on who came before."""
MADE = ("output", "usage", "status", "incomplete_details")
"""What a response has beside what was asked, told back."""
TABLES = {**REQUESTS, **OBJECTS}
COUNTED = {
    "TokenizeChat": (
        "/tokenize",
        "ChatCompletionRequest",
        {*tokenization.PROMPT_FIELDS},
        {
            "function_call": Shown("none", FUNCTIONS),
            "tool_choice": Shown("none", {"tools": [TOOL]}),
        },
    ),
    "InputTokensRequest": (
        "/v1/responses/input_tokens",
        "ResponsesRequest",
        {*input_tokens.PROMPT_FIELDS},
        {"tool_choice": Shown("none", {"tools": [{"type": "function", "name": "look"}]})},
    ),
    "CountTokensRequest": (
        "/v1/messages/count_tokens",
        "MessagesRequest",
        {*token_count.PROMPT_FIELDS},
        {
            "tool_choice": Shown({"type": "none"}, {"tools": [MESSAGES_TOOL]}),
            "output_config": THINKING_OF_MESSAGES,
        },
    ),
}
"""Tables of requests that are counted as others run: which, and the fields that they depend on."""


@cache
def honoured() -> dict[str, set[str]]:
    """The fields that the document calls so, by its tables."""
    found: dict[str, set[str]] = {}
    fields: set[str] = set()
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("### "):
            fields = found.setdefault(line.removeprefix("### "), set())
        elif "` | honoured |" in line:
            fields.add(line.split("`")[1])
    return {name: fields for name, fields in found.items() if fields}


def test_every_table_is_shown() -> None:
    assert honoured().keys() == TABLES.keys() | COUNTED.keys()


@pytest.mark.parametrize("name", TABLES)
def test_every_field_is_shown(name: str) -> None:
    shows = TABLES[name].shows
    assert shows.keys() == honoured()[name]
    for one in shows.values():
        if isinstance(one, Elsewhere):
            assert one.test in names_in(one.file), one


@pytest.mark.parametrize("name", COUNTED)
def test_every_field_that_counts_is_shown(name: str) -> None:
    _, _, prompt_fields, _ = COUNTED[name]
    assert honoured()[name] - {"return_token_strs"} == prompt_fields


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {
        one.name
        for one in tree.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")
    }


def timeless(value: Any) -> Any:
    """Without what differs between any two answers."""
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if name not in OWN}
    return [timeless(one) for one in value] if isinstance(value, list) else value


async def answer(running: Running, path: str, fields: dict[str, Any], member: str | None) -> Any:
    """``member``: of a response, the one to look at; None: what was made."""
    if fields.pop("stream", False):
        return timeless(await streamed(running.client, path, **fields))
    body = await told(running.client, path, **fields)
    if path == "/v1/responses":
        body = {name: body[name] for name in ((member,) if member else MADE)}
    return timeless(body)


def rows(kind: type[Shown] | type[Kind]) -> list[Any]:
    return [
        pytest.param(table, field, one, id=f"{name}.{field}")
        for name, table in TABLES.items()
        for field, one in table.shows.items()
        if isinstance(one, kind)
    ]


PLAIN: dict[str, Any] = {}
"""Answers to requests that several fields are compared with."""


@pytest.mark.parametrize(("table", "name", "shown"), rows(Shown))
@ASYNC
async def test_an_answer_with_it_is_another_one(
    shaped: Running, table: Table, name: str, shown: Shown
) -> None:
    async def asked(**fields: Any) -> Any:
        request = table.request(shown.beside, shown.around, **fields)
        return await answer(shaped, table.path, request, shown.told)

    key = json.dumps([table.path, shown.told, table.request(shown.beside, shown.around)])
    if key not in PLAIN:
        PLAIN[key] = await asked()
        # Otherwise any two would differ.
        assert await asked() == PLAIN[key]
    assert await asked(**{name: shown.value}) != PLAIN[key]


@pytest.mark.parametrize(("table", "name", "kind"), rows(Kind))
@ASYNC
async def test_another_kind_is_refused(
    shaped: Running, table: Table, name: str, kind: Kind
) -> None:
    request = table.request(kind.beside, {}, **{name: "another"})
    response = await shaped.client.post(table.path, json=request)
    assert response.status_code == 400
    assert name in response.text


@pytest.mark.parametrize("name", ["Function", "FunctionTool", "MessagesTool"])
@ASYNC
async def test_a_strict_tool_is_held_or_refused(shaped: Running, name: str) -> None:
    table = TABLES[name]
    field = "input_schema" if name == "MessagesTool" else "parameters"
    unheld = {field: {"type": "object", "properties": {"a": {"pattern": "(?=a)b"}}}}
    request = table.request(unheld, {})
    await answer(shaped, table.path, request, None)
    response = await shaped.client.post(table.path, json=table.request(unheld, {}, strict=True))
    assert response.status_code == 400
    assert "pattern" in response.text


@pytest.mark.parametrize(
    ("path", "table", "prompt_fields", "name", "shown"),
    [
        pytest.param(path, TABLES[like], prompt_fields, name, one, id=f"{path}.{name}")
        for path, like, prompt_fields, others in COUNTED.values()
        for name, one in {**TABLES[like].shows, **others}.items()
        if isinstance(one, Shown)
    ],
)
@ASYNC
async def test_tokens_of_a_chat_depend_on_its_prompt_alone(
    shaped: Running, path: str, table: Table, prompt_fields: set[str], name: str, shown: Shown
) -> None:
    plain = await told(shaped.client, path, **table.request(shown.beside, shown.around))
    with_it = await told(
        shaped.client, path, **table.request(shown.beside, shown.around, **{name: shown.value})
    )
    assert (with_it == plain) == (name not in prompt_fields)
