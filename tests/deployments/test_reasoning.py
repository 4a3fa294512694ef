"""How much a model is to think: the fields that say so, and what templates understand of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deployments.backend import (
    ChatPrompt,
    GenerationRequest,
    InvalidRequestError,
    SamplingParams,
    Thoughts,
)
from deployments.http.errors import ApiError
from deployments.protocol import ChatCompletionRequest, to_generation_requests
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.formats import FORMATS

LEVELS = frozenset[str]()
QWEN3 = {"messages": LEVELS, "enable_thinking": LEVELS}
DEEPSEEK = {"thinking": LEVELS}
GPT_OSS = {"reasoning_effort": frozenset({"medium"})}
MISTRAL = {"reasoning_effort": frozenset({"none", "high"})}
GLM_5 = {"enable_thinking": LEVELS, "reasoning_effort": frozenset({"high", "max"})}
R1: Mapping[str, Any] = {}
"""Its template begins a thought, and takes no orders."""


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return ChatCompletionRequest.parse(body)


def asked(
    variables: Mapping[str, Any], *, form: str = "thinking", **fields: Any
) -> GenerationRequest:
    dialect = Dialect(FORMATS[form], template_variables=variables)
    (request,) = to_generation_requests(chat(**fields), "r", SamplingParams(), dialect)
    return request


def told(variables: Mapping[str, Any], *, form: str = "thinking", **fields: Any) -> dict[str, Any]:
    """What the template gets to know."""
    request = asked(variables, form=form, **fields)
    assert isinstance(request.prompt, ChatPrompt)
    return dict(request.prompt.template_arguments)


@pytest.mark.parametrize(
    ("variables", "fields", "arguments"),
    [
        (QWEN3, {}, {}),
        (QWEN3, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (QWEN3, {"enable_thinking": False}, {"enable_thinking": False}),
        (QWEN3, {"enable_thinking": True}, {"enable_thinking": True}),
        (QWEN3, {"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        (QWEN3, {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (DEEPSEEK, {"thinking": {"type": "enabled"}}, {"thinking": True}),
        (
            GLM_5,
            {"thinking": {"type": "enabled", "clear_thinking": True}},
            {"enable_thinking": True},
        ),
        (QWEN3, {"reasoning_effort": "high"}, {"enable_thinking": True}),
        (DEEPSEEK, {"reasoning": {"effort": "high"}}, {"thinking": True}),
        (DEEPSEEK, {"reasoning_effort": "none"}, {"thinking": False}),
        (GPT_OSS, {}, {}),
        (GPT_OSS, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (GPT_OSS, {"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}),
        (GPT_OSS, {"reasoning_effort": "xhigh"}, {"reasoning_effort": "high"}),
        (GPT_OSS, {"enable_thinking": True}, {}),
        (MISTRAL, {"reasoning_effort": "none"}, {"reasoning_effort": "none"}),
        (MISTRAL, {"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
        (MISTRAL, {"enable_thinking": False}, {"reasoning_effort": "none"}),
        (GLM_5, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (
            GLM_5,
            {"reasoning_effort": "max"},
            {"enable_thinking": True, "reasoning_effort": "max"},
        ),
        (
            GLM_5,
            {"reasoning_effort": "medium"},
            {"enable_thinking": True, "reasoning_effort": "high"},
        ),
        # What a client says to the template itself wins over an effort, the same or not.
        (
            QWEN3,
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
        (
            QWEN3,
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
    ],
)
def test_what_the_template_is_told(
    variables: Mapping[str, Any], fields: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert told(variables, **fields) == arguments


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"reasoning_effort": "high"},
        {"enable_thinking": False},
        {"reasoning": {"effort": "low", "exclude": True}},
        {"include_reasoning": False},
        {"thinking_token_budget": 0},
    ],
)
def test_a_model_that_can_not_think_does_all_the_thinking_it_can(fields: dict[str, Any]) -> None:
    assert told({}, form="plain", **fields) == {}


@pytest.mark.parametrize(
    ("variables", "form", "fields", "param", "problem"),
    [
        ({}, "plain", {"enable_thinking": True}, "enable_thinking", "does not think"),
        ({}, "plain", {"reasoning": {"enabled": True}}, "reasoning.enabled", "does not think"),
        ({}, "plain", {"thinking": {"type": "enabled"}}, "thinking.type", "does not think"),
        (GPT_OSS, "plain", {"reasoning_effort": "none"}, "reasoning_effort", "always thinks"),
        (GPT_OSS, "plain", {"thinking_budget": 9}, "thinking_budget", "nobody can end"),
        (QWEN3, "plain", {"reasoning": {"max_tokens": 9}}, "reasoning.max_tokens", "nobody can"),
        (
            QWEN3,
            "thinking",
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs",
            "contradicts enable_thinking",
        ),
    ],
)
def test_what_a_model_can_not_be_made_to_do_is_refused(
    variables: Mapping[str, Any], form: str, fields: dict[str, Any], param: str, problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        told(variables, form=form, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"reasoning_effort": True}, "reasoning_effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"budget": 1}}, "reasoning.budget"),
        ({"reasoning": {"enabled": "yes"}}, "reasoning.enabled"),
        ({"enable_thinking": "true"}, "enable_thinking"),
        ({"include_reasoning": 1}, "include_reasoning"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_budget": 1.5}, "thinking_budget"),
        ({"reasoning": {"max_tokens": "9"}}, "reasoning.max_tokens"),
        ({"thinking_budget": 8, "thinking_token_budget": 9}, "thinking_budget"),
        ({"thinking_budget": 8, "reasoning": {"max_tokens": 9}}, "reasoning.max_tokens"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, "reasoning.enabled"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "auto"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, "thinking.clear_thinking"),
        ({"thinking": {"type": "enabled", "keep": "all"}}, "thinking.keep"),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, "thinking.type"),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "low"}, "reasoning_effort"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "thinking_budget": 8},
            "thinking.budget_tokens",
        ),
        ({"enable_thinking": False, "reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning": {"enabled": False, "effort": "low"}}, "reasoning.effort"),
        ({"include_reasoning": True, "reasoning": {"exclude": True}}, "reasoning.exclude"),
    ],
)
def test_what_says_nothing_or_two_things_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("variables", "fields", "budget"),
    [
        (QWEN3, {}, None),
        (QWEN3, {"thinking_token_budget": 7}, 7),
        (QWEN3, {"thinking_budget": 0}, 0),
        (QWEN3, {"reasoning": {"max_tokens": 9}}, 9),
        (QWEN3, {"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        (QWEN3, {"reasoning_effort": "minimal"}, 512),
        (QWEN3, {"reasoning_effort": "medium"}, 8192),
        (QWEN3, {"reasoning_effort": "high"}, None),
        (QWEN3, {"reasoning_effort": "low", "thinking_budget": 9}, 9),
        (GLM_5, {"reasoning_effort": "low"}, None),
        (GLM_5, {"reasoning_effort": "low", "thinking_budget": 9}, 9),
        (R1, {"enable_thinking": False}, 0),
        (R1, {"reasoning_effort": "none", "thinking_budget": 9}, 0),
        (R1, {"reasoning_effort": "low"}, 1024),
    ],
)
def test_thoughts_have_a_budget(
    variables: Mapping[str, Any], fields: dict[str, Any], budget: int | None
) -> None:
    request = asked(variables, **fields)
    assert request.sampling.thoughts == Thoughts("<think>", "</think>", budget)


JSON = {"response_format": {"type": "json_object"}}
CALL = {"tools": [{"type": "function", "function": {"name": "time"}}], "tool_choice": "required"}


@pytest.mark.parametrize("form", [JSON, CALL], ids=["json", "call"])
@pytest.mark.parametrize(
    ("variables", "fields", "may_think"),
    [
        (QWEN3, {}, True),
        (QWEN3, {"enable_thinking": True}, True),
        (QWEN3, {"enable_thinking": False}, False),
        (QWEN3, {"reasoning_effort": "none"}, False),
        (MISTRAL, {"reasoning_effort": "none"}, False),
        # The end of the thought that the prompt begins is written for it.
        (R1, {"enable_thinking": False}, True),
    ],
)
def test_whoever_is_not_to_think_is_not_let(
    variables: Mapping[str, Any], fields: dict[str, Any], form: dict[str, Any], may_think: bool
) -> None:
    grammar = asked(variables, form="hermes", **fields, **form).sampling.grammar
    assert grammar is not None
    assert ("<think>" in grammar.frame + grammar.text) == may_think


def test_messages_of_analysis_are_thoughts() -> None:
    marks = ("<|channel|>analysis<|message|>", "<|end|>")
    for fields, budget in (
        ({}, None),
        ({"thinking_budget": 9}, 9),
        ({"enable_thinking": False}, 0),
    ):
        request = asked(GPT_OSS, form="harmony", **fields)
        assert request.sampling.thoughts == Thoughts(*marks, budget)


def test_a_template_may_know_budgets_itself() -> None:
    arguments = told({"thinking_budget": LEVELS}, thinking_token_budget=100)
    assert arguments == {"thinking_budget": 100}


def test_nothing_is_a_thought_behind_a_call() -> None:
    tools = [{"type": "function", "function": {"name": "time"}}]
    for form, before in (
        ("hermes", ("<tool_call>",)),
        ("minimax_m2", ("<minimax:tool_call>", '<invoke name="')),
    ):
        request = asked(QWEN3, form=form, tools=tools)
        assert request.sampling.thoughts == Thoughts("<think>", "</think>", None, before)
        assert asked(QWEN3, form=form).sampling.thoughts == Thoughts("<think>", "</think>")
    assert asked(QWEN3, form="plain").sampling.thoughts is None


def test_the_same_said_twice_is_said() -> None:
    request = chat(
        reasoning_effort="low",
        enable_thinking=True,
        include_reasoning=False,
        reasoning={"effort": "low", "enabled": True, "exclude": True},
    )
    assert (request.effort, request.thinks, request.shows_reasoning) == ("low", True, False)
