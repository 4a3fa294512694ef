"""What a valid request means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.backend import (
    ChatPrompt,
    GenerationRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
)
from deployments.http.errors import ApiError
from deployments.protocol import (
    CHAT_COMPLETIONS_PATH,
    COMPLETIONS_PATH,
    ChatCompletionRequest,
    CompletionRequest,
    parse_request,
    to_generation_requests,
)
from deployments.protocol.chat import MAX_TEMPLATE_ARGUMENT_CHARS
from deployments.protocol.common import MOST_NEW_TOKENS_ESTIMATE
from deployments.protocol.field_rules import WithoutEffect
from deployments.protocol.messages import Message
from deployments.protocol.strict import StrictModel, models_in
from deployments.protocol.structured_output import MAX_GRAMMAR_CHARS
from deployments.protocol.tools import Tool

OPENAI = SamplingParams()


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = parse_request(CHAT_COMPLETIONS_PATH, json.dumps(body).encode()).form
    assert isinstance(request, ChatCompletionRequest)
    return request


def completion(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "prompt": "hi", **fields}
    request = parse_request(COMPLETIONS_PATH, json.dumps(body).encode()).form
    assert isinstance(request, CompletionRequest)
    return request


def converted(
    request: ChatCompletionRequest | CompletionRequest,
    request_id: str,
    default: SamplingParams = OPENAI,
) -> list[GenerationRequest]:
    return to_generation_requests(request, request_id, default)


def only(requests: list[GenerationRequest]) -> GenerationRequest:
    (request,) = requests
    return request


def test_defaults_of_a_chat() -> None:
    request = chat()
    assert (request.stream, request.include_usage) == (False, False)
    run = only(converted(request, "r"))
    assert run == GenerationRequest(
        request_id="r-0",
        prompt=ChatPrompt(({"role": "user", "content": "hi"},)),
        sampling=SamplingParams(max_tokens=None),
        group="r",
    )


def test_defaults_of_a_completion() -> None:
    run = only(converted(completion(), "r"))
    assert run == GenerationRequest(
        request_id="r-0", prompt="hi", sampling=SamplingParams(max_tokens=16), group="r"
    )


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_a_share(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be more than 0 and finite"):
        GenerationRequest("a", "hi", SamplingParams(), weight=weight)


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "seed": -3,
        "stop_token_ids": [2, 3],
        "ignore_eos": True,
        "min_tokens": 4,
        "bad_words": ["no"],
        "allowed_token_ids": [7, 8],
        "skip_special_tokens": False,
    }
    more: dict[str, Any] = {"include_stop_str_in_output": True, "stop": ["a", "b"]}
    more |= {"logit_bias": {"5": -100, "6": 1.5}}
    expected = SamplingParams(
        **{
            **fields,
            "stop_token_ids": (2, 3),
            "bad_words": ("no",),
            "allowed_token_ids": (7, 8),
        },
        include_stop=True,
        stop=("a", "b"),
        logit_bias={5: -100.0, 6: 1.5},
        logprobs=4,
    )
    asked_chat = chat(**fields, **more, logprobs=True, top_logprobs=4)
    asked_completion = completion(**fields, **more, logprobs=4)
    assert only(converted(asked_chat, "r")).sampling == expected
    assert only(converted(asked_completion, "r")).sampling == expected


DRAWN = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.05,
}


@pytest.mark.parametrize("make", [chat, completion])
def test_what_a_request_leaves_out_is_as_the_model_says(make: Callable[..., Any]) -> None:
    default = SamplingParams(**DRAWN)
    request = make(seed=1, top_p=None)
    sampling = only(converted(request, "r", default)).sampling
    assert sampling == replace(default, seed=1, max_tokens=request.max_new_tokens)


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"top_p": 1},
        {"top_k": 0},
        {"min_p": 0},
        {"repetition_penalty": 1},
    ],
)
def test_what_a_request_says_wins_though_it_be_nothing(own: dict[str, Any]) -> None:
    sampling = only(converted(chat(**own), "r", SamplingParams(**DRAWN))).sampling
    assert sampling == SamplingParams(**DRAWN | own)


@pytest.mark.parametrize("make", [chat, completion])
def test_an_answer_may_have_no_tokens(make: Callable[..., Any]) -> None:
    request = make(max_tokens=0)
    assert only(converted(request, "r")).sampling.max_tokens == 0
    assert request.max_new_tokens_estimate() == 0


@pytest.mark.parametrize("make", [chat, completion])
def test_prompts_are_truncated(make: Callable[..., Any]) -> None:
    assert only(converted(make(), "r")).truncate_prompt_tokens is None
    request = make(truncate_prompt_tokens=3)
    assert only(converted(request, "r")).truncate_prompt_tokens == 3
    assert max(request.prompt_sizes()[0]) <= 3
    whole = make(truncate_prompt_tokens=-1)
    assert only(converted(whole, "r")).truncate_prompt_tokens == -1
    assert whole.prompt_sizes() == make().prompt_sizes()


def test_the_final_message_is_continued() -> None:
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    prompt = only(converted(chat(**fields, messages=messages), "r")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.continues_final_message
    assert prompt.template_arguments == {"add_generation_prompt": False}


def test_fields_of_the_request_itself_arrive() -> None:
    run = only(converted(chat(n=3, priority=-2, cache_salt="tenant"), "id"))
    assert (run.n, run.priority, run.cache_salt, run.request_id) == (3, -2, "tenant", "id-0")


@pytest.mark.parametrize(("given", "meant"), [(-1, 0), (0, 0), (5, 5)])
def test_top_k_has_two_ways_to_be_off(given: int, meant: int) -> None:
    assert only(converted(chat(top_k=given), "r")).sampling.top_k == meant


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_of_a_chat(fields: dict[str, Any], logprobs: int | None) -> None:
    assert only(converted(chat(**fields), "r")).sampling.logprobs == logprobs


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        (["a", [1]], ["a", (1,)]),
    ],
)
def test_shapes_of_a_prompt(prompt: Any, prompts: list[Any]) -> None:
    runs = converted(completion(prompt=prompt), "r")
    assert [run.prompt for run in runs] == prompts
    assert [run.request_id for run in runs] == [f"r-{i}" for i in range(len(prompts))]


@pytest.mark.parametrize(
    "names", [("max_tokens",), ("max_completion_tokens",), ("max_tokens", "max_completion_tokens")]
)
def test_both_names_of_the_token_limit(names: tuple[str, ...]) -> None:
    request = chat(**dict.fromkeys(names, 9))
    assert only(converted(request, "r")).sampling.max_tokens == 9


def test_one_stop_string_needs_no_array() -> None:
    assert only(converted(chat(stop="\n"), "r")).sampling.stop == ("\n",)


def test_messages_as_templates_know_them() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]},
            {"role": "assistant", "content": "c", "name": "bot"},
        ]
    )
    prompt = only(converted(request, "r")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "name": "bot"},
    )


def test_template_arguments_hold_so_much_text() -> None:
    most = "x" * (MAX_TEMPLATE_ARGUMENT_CHARS - 2)
    assert chat(chat_template_kwargs={"ab": most}).chat_template_kwargs == {"ab": most}
    with pytest.raises(ApiError, match=f"at most {MAX_TEMPLATE_ARGUMENT_CHARS} characters"):
        chat(chat_template_kwargs={"ab": [most, {"c": 1}]})


LONG = "x" * MAX_GRAMMAR_CHARS
LONG_TOOL = {"type": "function", "function": {"name": "f", "description": LONG}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [LONG_TOOL]},
        {"guided_regex": LONG + "x"},
        {"guided_json": {"const": LONG}},
        {"structured_outputs": {"choice": [LONG]}},
    ],
)
def test_a_grammar_has_so_many_characters(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=f"at most {MAX_GRAMMAR_CHARS} characters") as caught:
        chat(**fields)
    assert caught.value.param.startswith(next(iter(fields)))


def test_template_arguments() -> None:
    request = chat(chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    prompt = only(converted(request, "r")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == {"enable_thinking": False, "add_generation_prompt": False}


NEUTRAL_IN_CHAT: list[dict[str, Any]] = [
    {"tools": None, "tool_choice": None, "functions": []},
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
    {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
    {"store": False, "metadata": None, "service_tier": "auto", "verbosity": "medium"},
    {"user": "me", "safety_identifier": "me", "prompt_cache_key": "k"},
    {"metadata": {"trace": "x"}, "service_tier": "default", "verbosity": "low"},
    {
        "prompt_cache_retention": "24h",
        "stream": True,
        "stream_options": {"include_obfuscation": True},
    },
    {"tools": [{"type": "web_search"}, {"type": "code_interpreter", "container": {"x": [1]}}]},
    {"temperature": None, "top_p": None, "n": None, "stop": None, "seed": None, "stream": None},
    {"max_tokens": None, "logit_bias": None, "logprobs": None, "stream_options": None},
    {"stop": [], "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0},
    {"skip_special_tokens": True, "min_tokens": 0, "use_beam_search": False},
    {"add_special_tokens": False, "truncation_side": "left", "watermarking": False},
    {"session_id": "s", "stream_interval": 4, "vllm_xargs": {}},
]


@pytest.mark.parametrize("fields", NEUTRAL_IN_CHAT)
def test_values_that_ask_for_nothing_change_nothing(fields: dict[str, Any]) -> None:
    assert converted(chat(**fields), "r") == converted(chat(), "r")


SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
SCHEMA_TEXT = '{"type": "object", "properties": {"é": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        (
            {"response_format": {"type": "json_object"}},
            "json_schema",
            '{"type": "object"}',
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a-1", "schema": SCHEMA, "strict": False},
                }
            },
            "json_schema",
            SCHEMA_TEXT,
            "response_format.json_schema.schema",
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA_TEXT, "guided_json"),
        ({"guided_json": SCHEMA_TEXT}, "json_schema", SCHEMA_TEXT, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a", "é"]}, "choice", '["a", "é"]', "guided_choice"),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"', "guided_grammar"),
        (
            {"structured_outputs": {"json": SCHEMA}},
            "json_schema",
            SCHEMA_TEXT,
            "structured_outputs.json",
        ),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs.regex"),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": False}},
            "json_schema",
            '{"type": "object"}',
            "structured_outputs.json_object",
        ),
        (
            {"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "text"}},
            "choice",
            '["a"]',
            "structured_outputs.choice",
        ),
    ],
)
def test_what_an_answer_must_match(
    fields: dict[str, Any], kind: GrammarKind, text: str, param: str
) -> None:
    expected = Grammar(kind, text, param)
    for request in (chat(**fields), completion(**fields)):
        assert only(converted(request, "r")).sampling.grammar == expected


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    prompt = only(converted(chat(messages=[answer]), "r")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == ({"role": "assistant", "content": "hello"},)


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def test_what_a_cache_is_told_changes_no_prompt() -> None:
    function = {"name": "f", "parameters": {"$schema": "http://json-schema.org/draft-07/schema#"}}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "annotations": []},
    ]
    marked: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a", **EPHEMERAL}], **EPHEMERAL},
        {"role": "assistant", "content": "b", "annotations": [{"type": "url_citation"}]},
    ]
    plain = chat(messages=said, tools=[{"type": "function", "function": function}])
    tool = {"type": "function", "function": {**function, **EPHEMERAL}, **EPHEMERAL}
    request = chat(messages=marked, tools=[tool, {"type": "web_search"}, {"type": "web_search"}])
    assert [*request.prompt_parts()] == [*plain.prompt_parts()]
    assert request.usable_tools == plain.usable_tools
    assert (request.dropped_tools, plain.dropped_tools) == (["web_search"], [])


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_answer_may_be_nothing_but_a_thought(content: dict[str, Any], name: str) -> None:
    answer = {"role": "assistant", name: "hm", **content}
    prompt = only(converted(chat(messages=[answer]), "r")).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == ({"role": "assistant", "content": "", "reasoning_content": "hm"},)


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_no_field_has_two_fates(model: type[StrictModel]) -> None:
    for one in {model, *_models_within(model)}:
        assert not one.wire_fields().keys() & one.unsupported.keys()
        for name, rule in one.unsupported.items():
            assert rule.why, f"{one.__name__}.{name}"
            # Which is the type of none.
            told = rule.knows(0.5) if isinstance(rule, WithoutEffect) else not rule.problem(0.5)
            assert not told, f"{one.__name__}.{name}"


def _models_within(model: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for field in model.model_fields.values():
        for one in models_in(field.annotation):
            yield one
            yield from _models_within(one)


def test_values_that_ask_for_nothing_in_a_completion() -> None:
    fields: dict[str, Any] = {
        "echo": False,
        "suffix": None,
        "best_of": 1,
        "logprobs": None,
        "service_tier": "auto",
        "metadata": {},
        "user": "me",
        "add_special_tokens": True,
    }
    assert converted(completion(**fields), "r") == converted(completion(), "r")


def test_usage_is_sent_only_when_asked_for() -> None:
    assert not chat(stream=True).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


def test_sizes_for_routing() -> None:
    long = chat(messages=[{"role": "user", "content": "x" * 400}], max_tokens=10, n=2)
    assert 100 <= long.prompt_size_estimate() <= 110
    assert long.max_new_tokens_estimate() == 20
    many = completion(prompt=[[1] * 50, [2] * 30], n=2, max_tokens=5)
    assert (many.prompt_size_estimate(), many.max_new_tokens_estimate()) == (80, 20)
    agents = [make(max_tokens=32_000, n=2).max_new_tokens_estimate() for make in (chat, completion)]
    assert agents == [2 * MOST_NEW_TOKENS_ESTIMATE] * 2


def test_characters_beyond_the_basic_plane_survive_either_encoding() -> None:
    for body in (
        b'{"model":"m","prompt":"\\ud83c\\udf4e"}',
        '{"model":"m","prompt":"🍎"}'.encode(),
    ):
        request = parse_request(COMPLETIONS_PATH, body).form
        assert only(converted(request, "r")).prompt == "🍎"


def test_a_history_is_taken_as_it_was_sent() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": 1e5, "b": "hel'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    result = {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "text", "text": "r"}, image],
    }
    messages = [{"role": "assistant", "tool_calls": [call]}, result]
    said, told = (Message.model_validate(one).for_template() for one in messages)
    assert said["tool_calls"][0]["function"]["arguments"] == {"a": 100000.0, "b": "hel"}
    assert told["content"] == "r\n[image left out: this model reads text]"
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "content": [image]})


def test_tools_reach_templates_in_one_order() -> None:
    function = {"parameters": {"type": "object"}, "description": "d", "name": "f", "strict": True}
    tool = Tool.model_validate({"function": function, "type": "function"})
    assert tool.function is not None
    assert json.dumps(tool.function.for_template()) == (
        '{"type": "function", "function": {"name": "f", "description": "d", '
        '"parameters": {"type": "object"}}}'
    )
