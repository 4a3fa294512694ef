"""Nothing that an agent repeats with each request ends its session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.backend import ContextLengthError
from deployments.http.errors import ApiError, api_error_from
from deployments.protocol import ChatCompletionRequest, ParsedRequest, parse_request
from deployments.protocol.anthropic.errors import in_anthropics_shape

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def parsed(path: str, **fields: Any) -> ParsedRequest:
    return parse_request(path, json.dumps({"model": "m", **fields}).encode())


def message(*content: Any, role: str = "user", **fields: Any) -> ParsedRequest:
    messages = [{"role": role, "content": [*content]}, {"role": "user", "content": "Go on."}]
    return parsed(MESSAGES, **{"max_tokens": 9, "messages": messages, **fields})


def told(one: ParsedRequest) -> tuple[list[Any], list[str]]:
    """The messages of its prompt, and the tools."""
    assert isinstance(one.form, ChatCompletionRequest)
    messages = [message.for_template() for message in one.form.messages]
    return messages, [tool.name for tool in one.form.usable_tools]


def result(*content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": [*content]}


SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}}
TIME = {"name": "time", "input_schema": SCHEMA, "defer_loading": True}
SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object"}}
PLACEHOLDER = {"name": "DeferredToolPlaceholder", "defer_loading": True}
TOOLS = [SEARCH, TIME, PLACEHOLDER]
REFERENCE = {"type": "tool_reference", "tool_name": "time"}


def test_a_deferred_tool_is_told_once_it_was_referred_to() -> None:
    assert told(message(tools=TOOLS))[1] == ["ToolSearch"]
    messages, tools = told(message(result(REFERENCE), tools=TOOLS))
    assert tools == ["ToolSearch", "time"]
    written = json.loads(messages[0]["content"])
    assert (written["name"], written["parameters"]) == ("time", SCHEMA)


def test_a_reference_to_no_tool_is_its_name() -> None:
    (first, _), _ = told(message(result(REFERENCE)))
    assert first["content"] == "time"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [*TOOLS, {"type": "tool_search_tool_bm25_20251119", "name": "search"}]},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "time"}},
        {
            "tools": TOOLS,
            "messages": [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "time", "input": {}}],
                },
                {"role": "user", "content": [result()]},
            ],
        },
    ],
    ids=["nobody runs the search", "it is to be called", "it was called"],
)
def test_a_deferred_tool_that_nothing_else_would_find_is_told(fields: dict[str, Any]) -> None:
    assert "time" in told(message(**fields))[1]


def test_a_fault_of_a_tool_is_told_by_its_own_place() -> None:
    tools = [PLACEHOLDER, SEARCH | {"strict": True}]
    assert message(tools=tools).own_names["tools[0].function"] == "tools[1]"


FOUND = {"type": "search_result", "title": "T", "source": "S"}


def test_what_a_search_found_is_text() -> None:
    found = FOUND | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    messages, _ = told(message(found))
    assert messages[0]["content"] == "T\nS\na\nb\nGo on."
    messages, _ = told(message(result(found)))
    assert messages[0]["content"] == "T\nS\na\nb"


def test_a_function_s_result_is_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    called = {"role": "assistant", "function_call": {"name": "time", "arguments": '{"zone": '}}
    result = {"role": "function", "name": "time", "content": [image]}
    (call, found), _ = told(parsed(CHAT, messages=[called, result]))
    assert call["tool_calls"][0]["function"]["arguments"] == {}
    assert found["content"] == "[image left out: this model reads text]"


def with_result(path: str, part: dict[str, Any]) -> ParsedRequest:
    match path:
        case "/v1/messages":
            return message(result(part))
        case "/v1/responses":
            item = {"type": "function_call_output", "call_id": "c", "output": [part]}
            return parsed(path, input=[item])
    return parsed(path, messages=[{"role": "tool", "tool_call_id": "c", "content": [part]}])


def asking(path: str, part: dict[str, Any]) -> ParsedRequest:
    messages = [{"role": "user", "content": [part]}]
    return parsed(path, **{"input" if path == RESPONSES else "messages": messages}, **MOST[path])


MOST: dict[str, dict[str, Any]] = {CHAT: {}, MESSAGES: {"max_tokens": 9}, RESPONSES: {}}
IMAGES = [
    (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}),
    (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}),
]
STRANGE = [(path, {"type": "browser_state", "tabs": []}) for path in MOST]


@pytest.mark.parametrize(("path", "part"), [*IMAGES, *STRANGE])
def test_a_result_that_is_no_text_is_a_line_that_names_it(path: str, part: dict[str, Any]) -> None:
    kind = "image" if "image" in part["type"] else part["type"]
    one = with_result(path, part)
    messages, _ = told(one)
    assert messages[0]["content"] == f"[{kind} left out: this model reads text]"
    assert one.dropped == (kind,)


@pytest.mark.parametrize("path", MOST)
def test_no_kind_of_part_gets_into_a_header_that_has_no_room_for_it(path: str) -> None:
    with pytest.raises(ApiError):
        with_result(path, {"type": "a\r\nSet-Cookie: b"})


@pytest.mark.parametrize(("path", "part"), IMAGES)
def test_an_image_of_the_users_is_refused_in_the_words_that_agents_know(
    path: str, part: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        asking(path, part)
    place = f"{'input' if path == RESPONSES else 'messages'}[0].content[0].type"
    assert refused.value.message == (
        f'Could not process image: {place} is "{part["type"]}", but this model reads text.'
    )
    assert (refused.value.status, refused.value.param) == (400, place)


@pytest.mark.parametrize(
    ("path", "fields", "dropped"),
    [
        (CHAT, {"service_tier": "flex"}, "service_tier"),
        (CHAT, {"verbosity": "loud"}, "verbosity"),
        (CHAT, {"prompt_cache_key": 7}, "prompt_cache_key"),
        (MESSAGES, {"thinking": {"type": "adaptive", "display": "drawn"}}, "display"),
        (MESSAGES, {"cache_control": "always"}, "cache_control"),
        (MESSAGES, {"metadata": {"user_id": "u" * 600}}, "user_id"),
        (MESSAGES, {"metadata": {"session": "s"}}, "metadata"),
        (MESSAGES, {"context_management": {"edits": [{"type": "new"}]}}, "edits"),
        (RESPONSES, {"include": ["reasoning.encrypted_content", "new"]}, "include"),
        (RESPONSES, {"text": {"verbosity": "loud"}}, "verbosity"),
        (RESPONSES, {"metadata": {"a": 1}}, "metadata"),
    ],
)
def test_a_hint_that_says_nothing_here_is_dropped_by_name(
    path: str, fields: dict[str, Any], dropped: str
) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]}
    asked = ({"input": "hi"} if path == RESPONSES else said) | MOST[path]
    assert parsed(path, **asked, **fields).dropped == (dropped,)


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "adaptive", "display": "updates"}},
        {"thinking": {"type": "between_tools"}},
        {"thread": {"type": "create"}, "fallbacks": "default", "speed": "fast"},
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        {"billing_policy": {"type": "billing_policy"}, "fallback_credit_token": "t"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_asks_for_nothing_is_no_loss(fields: dict[str, Any]) -> None:
    assert message(**fields).dropped == ()


def test_what_a_vendor_ran_is_left_out_of_a_history() -> None:
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text = {"type": "text", "text": "So."}
    one = message(call, found, text, {"type": "compaction", "content": "Sum."}, role="assistant")
    assert told(one)[0][0] == {"role": "assistant", "content": "So.\nSum."}
    assert one.dropped == ("server_tool_use", "web_search_tool_result")


def test_what_the_system_said_for_one_turn_is_told_in_that_turn() -> None:
    reminder = {"role": "system", "content": "Now.", "clear_at": "next_user_message"}
    kept = {"role": "system", "content": "Ever."}
    asked = {"role": "user", "content": "Hi."}
    empty = {"role": "system", "output_config": {"effort": "low"}}
    messages, _ = told(message(messages=[asked, reminder, kept, asked, empty, reminder]))
    assert [one["content"] for one in messages] == ["Hi.", "Ever.", "Hi.", "Now."]


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ({"content": None}, ""),
        ({}, ""),
        ({"content": None, "refusal": "I won't."}, "I won't."),
        ({"content": [{"type": "refusal", "refusal": "I won't."}]}, "I won't."),
    ],
)
def test_an_answer_that_said_nothing_or_no_can_be_sent_back(
    answer: dict[str, Any], content: str
) -> None:
    asked = {"role": "user", "content": "hi"}
    one = parsed(CHAT, messages=[asked, {"role": "assistant", **answer}, asked])
    assert told(one)[0][1] == {"role": "assistant", "content": content}


def test_a_response_that_said_no_can_be_sent_back() -> None:
    said = [{"type": "refusal", "refusal": "I won't."}]
    items = [{"role": "assistant", "content": said}, {"role": "user", "content": "hi"}]
    assert told(parsed(RESPONSES, input=items))[0][0]["content"] == "I won't."


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"store": True, "keep_alive": "5m", "cache_prompt": True}, None),
        ({"n_predict": -1, "mirostat": 0, "typical_p": 1.0, "options": {}}, None),
        ({"mirostat": 2}, "mirostat"),
        ({"n_predict": 9}, "n_predict"),
        ({"options": {"num_ctx": 9}}, "options"),
    ],
)
def test_what_other_servers_know_is_taken_where_it_changes_nothing(
    fields: dict[str, Any], refused: str | None
) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], **fields}
    if refused is None:
        assert parsed(CHAT, **asked).dropped == ()
    else:
        with pytest.raises(ApiError, match=f"{refused} is not supported"):
            parsed(CHAT, **asked)


@pytest.mark.parametrize(("or_more", "least"), [(False, ""), (True, "at least ")])
def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_know(
    or_more: bool, least: str
) -> None:
    error = ContextLengthError(100, prompt=120, completion=9, param="messages", or_more=or_more)
    told = json.loads(in_anthropics_shape(api_error_from(error).json()))
    assert told["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {least}120 tokens > 99 maximum",
    }
