"""What the table of fields calls honoured changes the answer of a real engine, or bounds it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deployments.protocol import ChatCompletionRequest, CompletionRequest, tokenization
from deployments.protocol.anthropic import token_count
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.pooling import EmbeddingRequest, RerankRequest
from deployments.protocol.strict import StrictModel
from deployments.protocol.tokenization import DetokenizeRequest, TokenizeContent, TokenizePrompt
from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.shaped_model import BOS_ID, streamed, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
TESTS = Path(__file__).resolve().parent.parent
OWN = (
    "id",
    "created",
    "prompt_tokens_details",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "input_tokens",
)
"""Differ between any two answers: what is cached depends on who came before."""


@dataclass(frozen=True)
class Shown:
    """An answer with ``value`` for the field differs from one without it. ``beside``: fields of
    both requests."""

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Elsewhere:
    """By a test of that file and name, since it takes more than two answers of such a model."""

    file: str
    test: str


Shows = Mapping[str, Shown | Elsewhere]

GREEDY = {"temperature": 0.0, "max_tokens": 12}
LONG = {**GREEDY, "max_tokens": 40}
HOT = {"temperature": 2.0, "seed": 3, "max_tokens": 12}
TO_ITS_END = {**HOT, "max_tokens": 400}
REPEATS = {**GREEDY, "logit_bias": {"97": 100}}
"""Every token is an "a"."""
WRITES_A_MARKER = {**GREEDY, "logit_bias": {"258": 100}, "ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
MESSAGES_TOOL = {"name": "look", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
CALLS = {"tools": [TOOL], "tool_choice": "required", "temperature": 0.0, "max_tokens": 120}
CONTINUES = {
    **GREEDY,
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "It is"}],
    "add_generation_prompt": False,
}

GENERATION: Shows = {
    "model": Elsewhere(
        "deployments/test_gateway_http.py", "test_a_model_answers_to_its_other_names"
    ),
    "allowed_token_ids": Shown([65, 66], GREEDY),
    "bad_words": Shown(["a"], REPEATS),
    "cache_salt": Elsewhere("backend_metal/test_engine.py", "test_salts_keep_tenants_apart"),
    "frequency_penalty": Shown(2.0, LONG),
    "guided_choice": Shown(["abc"], GREEDY),
    "guided_grammar": Shown('root ::= "abc"', GREEDY),
    "guided_json": Shown({"const": "abc"}, GREEDY),
    "guided_regex": Shown("abc", GREEDY),
    "ignore_eos": Shown(True, TO_ITS_END),
    "include_stop_str_in_output": Shown(True, {**REPEATS, "stop": ["aa"]}),
    "logit_bias": Shown({"65": 100}, GREEDY),
    "max_tokens": Shown(3, {"temperature": 0.0}),
    "min_p": Shown(1.0, HOT),
    "min_tokens": Shown(400, TO_ITS_END),
    "n": Shown(2, GREEDY),
    "presence_penalty": Shown(2.0, LONG),
    "priority": Elsewhere(
        "backend_metal/test_scheduler.py", "test_lower_priority_numbers_run_first"
    ),
    "prompt_cache_key": Elsewhere(
        "deployments/test_routing_affinity.py", "test_a_prompt_cache_key_is_a_session"
    ),
    "prompt_logprobs": Shown(1, GREEDY),
    "repetition_penalty": Shown(10.0, LONG),
    "response_format": Shown({"type": "json_object"}, GREEDY),
    "return_token_ids": Shown(True, GREEDY),
    "seed": Shown(5, {"temperature": 2.0, "max_tokens": 12}),
    "skip_special_tokens": Shown(False, WRITES_A_MARKER),
    "stop": Shown(["aa"], REPEATS),
    "stop_token_ids": Shown([97], REPEATS),
    "stream": Shown(True, GREEDY),
    "stream_options": Shown({"include_usage": True}, {**GREEDY, "stream": True}),
    "structured_outputs": Shown({"regex": "abc"}, GREEDY),
    "temperature": Shown(0.0, {"seed": 3, "max_tokens": 12}),
    "top_k": Shown(1, HOT),
    "top_p": Shown(0.01, HOT),
    "truncate_prompt_tokens": Shown(4, GREEDY),
}
REASONING = "deployments/test_reasoning.py"
TEMPLATE_IS_TOLD = Elsewhere(REASONING, "test_what_the_template_is_told")
HAS_A_BUDGET = Elsewhere(REASONING, "test_thoughts_have_a_budget")
TABLE: Mapping[type[StrictModel], tuple[str, dict[str, Any], Shows]] = {
    ChatCompletionRequest: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}]},
        {
            **GENERATION,
            "add_generation_prompt": Shown(False, GREEDY),
            "chat_template_kwargs": TEMPLATE_IS_TOLD,
            "continue_final_message": Shown(True, CONTINUES),
            "enable_thinking": TEMPLATE_IS_TOLD,
            "include_reasoning": Elsewhere(
                "deployments/test_tool_calls.py", "test_thoughts_may_be_left_out"
            ),
            "logprobs": Shown(True, GREEDY),
            "max_completion_tokens": Shown(3, {"temperature": 0.0}),
            "messages": Shown([{"role": "user", "content": "Bye"}], GREEDY),
            "parallel_tool_calls": Shown(False, {**CALLS, "seed": 1, "temperature": 1.0}),
            "reasoning": TEMPLATE_IS_TOLD,
            "reasoning_effort": TEMPLATE_IS_TOLD,
            "return_tokens_as_token_ids": Shown(True, {**GREEDY, "logprobs": True}),
            "service_tier": Shown("default", GREEDY),
            "thinking": TEMPLATE_IS_TOLD,
            "thinking_budget": HAS_A_BUDGET,
            "thinking_token_budget": HAS_A_BUDGET,
            "tool_choice": Shown("required", {**CALLS, "tool_choice": None}),
            "tools": Shown([TOOL], GREEDY),
            "top_logprobs": Shown(2, {**GREEDY, "logprobs": True}),
        },
    ),
    CompletionRequest: (
        "/v1/completions",
        {"prompt": "Hello"},
        {
            **GENERATION,
            "echo": Shown(True, GREEDY),
            "logprobs": Shown(1, GREEDY),
            "prompt": Shown("Bye", GREEDY),
            "return_tokens_as_token_ids": Shown(True, {**GREEDY, "logprobs": 1}),
            "suffix": Elsewhere(
                "deployments/test_infill.py", "test_each_family_is_asked_in_its_own_way"
            ),
        },
    ),
    MessagesRequest: (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12},
        {
            "max_tokens": Shown(3, {"temperature": 0.0}),
            "messages": Shown([{"role": "user", "content": "Bye"}], {"temperature": 0.0}),
            "metadata": Elsewhere(
                "deployments/test_gateway_routing.py",
                "test_a_user_of_the_messages_api_is_a_session",
            ),
            "model": GENERATION["model"],
            "output_config": Shown(
                {"format": {"type": "json_schema", "schema": {"const": "abc"}}},
                {"temperature": 0.0},
            ),
            "stop_sequences": Shown(["7C"], {"temperature": 0.0}),
            "stream": Shown(True, {"temperature": 0.0}),
            "system": Shown("Be brief.", {"temperature": 0.0}),
            "temperature": Shown(0.0),
            "thinking": Elsewhere("deployments/test_messages.py", "test_how_much_it_thinks"),
            "tool_choice": Shown(
                {"type": "any"},
                {"tools": [MESSAGES_TOOL], "temperature": 0.0, "max_tokens": 120},
            ),
            "tools": Shown([MESSAGES_TOOL], {"temperature": 0.0}),
            "top_k": Shown(1),
            "top_p": Shown(0.01),
        },
    ),
    EmbeddingRequest: (
        "/v1/embeddings",
        {"input": "Hello there"},
        {
            "dimensions": Shown(3),
            "encoding_format": Shown("base64"),
            "input": Shown("Bye"),
            "model": GENERATION["model"],
            "priority": GENERATION["priority"],
            "truncate_prompt_tokens": Shown(4),
        },
    ),
    RerankRequest: (
        "/v1/rerank",
        {"query": "Hello", "documents": ["one", "another"]},
        {
            "documents": Shown(["one", "two", {"text": "three"}]),
            "model": GENERATION["model"],
            "priority": GENERATION["priority"],
            "query": Shown("Bye"),
            "return_documents": Shown(False),
            "top_n": Shown(1),
        },
    ),
    TokenizePrompt: (
        "/tokenize",
        {"prompt": "Hello"},
        {
            "add_special_tokens": Shown(False),
            "model": GENERATION["model"],
            "prompt": Shown("Bye"),
            "return_token_strs": Shown(True),
        },
    ),
    TokenizeContent: (
        "/tokenize",
        {"content": "Hello"},
        {
            "add_special": Shown(True),
            "content": Shown("Bye"),
            "model": GENERATION["model"],
            "with_pieces": Shown(True),
        },
    ),
    DetokenizeRequest: (
        "/detokenize",
        {"tokens": [72, 105]},
        {"model": GENERATION["model"], "tokens": Shown([BOS_ID, 66])},
    ),
}


@pytest.mark.parametrize("model", TABLE, ids=lambda model: model.__name__)
async def test_every_field_is_shown(model: type[StrictModel]) -> None:
    _, _, shows = TABLE[model]
    assert shows.keys() == model.wire_fields().keys() - model.only_checked.keys()
    for one in shows.values():
        if isinstance(one, Elsewhere):
            assert one.test in names_in(one.file), one


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


async def answer(running: Running, path: str, fields: dict[str, Any]) -> Any:
    fields = {"model": "demo", **fields}
    if fields.pop("stream", False):
        return timeless(await streamed(running.client, path, **fields))
    return timeless(await told(running.client, path, **fields))


CASES = [
    pytest.param(path, asked, name, one, id=f"{model.__name__}.{name}")
    for model, (path, asked, shows) in TABLE.items()
    for name, one in shows.items()
    if isinstance(one, Shown)
]


@pytest.mark.parametrize(("path", "asked", "name", "shown"), CASES)
async def test_an_answer_with_it_is_another_one(
    shaped: Running, path: str, asked: dict[str, Any], name: str, shown: Shown
) -> None:
    without = {**asked, **shown.beside}
    plain = await answer(shaped, path, without)
    # Otherwise any two would differ.
    assert await answer(shaped, path, without) == plain
    assert await answer(shaped, path, {**without, name: shown.value}) != plain


EFFORT = Elsewhere("deployments/test_messages.py", "test_how_much_it_thinks")
COUNTED = [
    pytest.param(path, prompt_fields, asked, name, one, id=f"{path}.{name}")
    for path, model, prompt_fields, others in (
        (
            "/tokenize",
            ChatCompletionRequest,
            tokenization.PROMPT_FIELDS,
            {"tool_choice": Shown("none", {"tools": [TOOL]})},
        ),
        (
            "/v1/messages/count_tokens",
            MessagesRequest,
            token_count.PROMPT_FIELDS,
            {"tool_choice": Shown({"type": "none"}, {"tools": [MESSAGES_TOOL]})}
            | {"output_config": EFFORT},
        ),
    )
    for _, asked, shows in [TABLE[model]]
    for name, one in ({**shows, **others}).items()
    if isinstance(one, Shown)
]


@pytest.mark.parametrize(("path", "prompt_fields", "asked", "name", "shown"), COUNTED)
async def test_tokens_of_a_chat_depend_on_its_prompt_alone(
    shaped: Running,
    path: str,
    prompt_fields: tuple[str, ...],
    asked: dict[str, Any],
    name: str,
    shown: Shown,
) -> None:
    without = {"model": "demo", **asked, **shown.beside}
    plain = await told(shaped.client, path, **without)
    same = await told(shaped.client, path, **{**without, name: shown.value}) == plain
    assert same == (name not in prompt_fields)
