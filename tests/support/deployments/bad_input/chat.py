"""Fields and messages of a chat."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import CHAT, BadInput


def chat_fields(model: str) -> list[BadInput]:
    def field(name: str, value: Any, *says: str, param: str | None = None, **more: Any) -> BadInput:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        body |= {name: value} | more
        label = f"{name}={json.dumps(value)[:40]}" + (f" {sorted(more)}" if more else "")
        return BadInput(label, CHAT, json.dumps(body).encode(), param or name, says)

    number = 'not "0.5"'
    return [
        field("model", None, "required"),
        field("model", 5, "string"),
        field("model", "", "non-empty string"),
        field("model", ["echo"], "string"),
        field("stream", "true", "boolean"),
        field("stream", 1, "boolean", "not 1"),
        field("stream_options", {"include_usage": True}, "stream is true"),
        field("stream_options", True, "object", stream=True),
        field("stream_options", {"include_usage": "yes"}, "boolean",
              param="stream_options.include_usage", stream=True),
        field("stream_options", {"include_usge": True}, "include_usage",
              param="stream_options.include_usge", stream=True),
        field("n", 0, "from 1 to 16", "not 0"),
        field("n", 17, "from 1 to 16"),
        field("n", 2.5, "integer"),
        field("n", "2", "integer", 'not "2"'),
        field("n", True, "integer", "not true"),
        field("temperature", "0.5", "from 0 to 2", number),
        field("temperature", True, "number"),
        field("temperature", -0.1, "from 0 to 2"),
        field("temperature", 2.1, "from 0 to 2"),
        field("temperature", 10**400, "from 0 to 2"),
        field("temperature", [1], "number"),
        field("top_p", 0, "more than 0"),
        field("top_p", 1.01, "at most 1"),
        field("top_k", -2, "at least -1"),
        field("top_k", 1.5, "integer"),
        field("min_p", 1.5, "from 0 to 1"),
        field("repetition_penalty", 0, "more than 0"),
        field("presence_penalty", 3, "from -2 to 2"),
        field("frequency_penalty", -3, "from -2 to 2"),
        field("frequency_penalty", {}, "from -2 to 2"),
        field("max_tokens", -5, "at least 0"),
        field("max_tokens", "100", "integer"),
        field("max_tokens", 1.0, "integer"),
        field("max_completion_tokens", -1, "at least 0"),
        field("max_completion_tokens", 5, "max_tokens", max_tokens=6),
        field("seed", 2**63, "64 bits"),
        field("seed", "1", "integer"),
        field("seed", 0.5, "integer"),
        field("stop", 5, "string", "or an array"),
        field("stop", "", "non-empty", param="stop[0]"),
        field("stop", ["a", ""], "non-empty", param="stop[1]"),
        field("stop", ["a", None], "null", param="stop[1]"),
        field("stop", ["x"] * 17, "at most 16"),
        field("stop", "x" * 1001, "at most 1000 characters", param="stop[0]"),
        field("stop", ["x", "y" * 1001], "at most 1000 characters", param="stop[1]"),
        field("stop_token_ids", [-1], "token ids", param="stop_token_ids[0]"),
        field("stop_token_ids", ["1"], "token ids", param="stop_token_ids[0]"),
        field("stop_token_ids", 7, "array of at most 1024 token ids"),
        field("stop_token_ids", [5] * 1025, "at most 1024 token ids"),
        field("ignore_eos", "no", "boolean"),
        field("logprobs", 5, "boolean"),
        field("top_logprobs", 2, "logprobs is true"),
        field("top_logprobs", 21, "from 0 to 20", logprobs=True),
        field("top_logprobs", -1, "from 0 to 20", logprobs=True),
        field("logit_bias", [1, 2], "object of at most 1024 token ids"),
        field("logit_bias", {str(token): 1 for token in range(1025)}, "at most 1024 token ids"),
        field("logit_bias", {"hello": 1}, "token ids as keys"),
        field("logit_bias", {"-1": 1}, "token ids as keys"),
        field("logit_bias", {"01": 1}, "token ids as keys"),
        field("logit_bias", {"50": 101}, "from -100 to 100", param="logit_bias.50"),
        field("logit_bias", {"50": "1"}, "from -100 to 100", param="logit_bias.50"),
        field("priority", "high", "integer"),
        field("cache_salt", 5, "string"),
        field("chat_template_kwargs", [], "object"),
        field("chat_template_kwargs", {"not a name": 1}, '"not a name"'),
        field("chat_template_kwargs", {"a": _nested(20)}, "levels deep"),
        field("chat_template_kwargs", {"a": [[0] * 64] * 64}, "at most 4096 values"),
        field("add_generation_prompt", "yes", "boolean"),
        field("temprature", 0.5, "not a known field", "temperature"),
        field("z" * 5000, 1, "not a known field", param="z" * 80 + "..."),
        field("Model", model, "not a known field"),
        field("prompt", "hi", "not a known field"),
        field("", 1, "not a known field"),
    ]  # fmt: skip


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def chat_messages(model: str) -> list[BadInput]:
    def messages(name: str, value: Any, param: str, *says: str) -> BadInput:
        body = json.dumps({"model": model, "messages": value}).encode()
        return BadInput(name, CHAT, body, param, says)

    def content(name: str, value: Any, param: str, *says: str) -> BadInput:
        return messages(
            name, [{"role": "user", "content": value}], f"messages[0].content{param}", *says
        )

    user = {"role": "user", "content": "hi"}
    return [
        messages("long name", [user | {"name": "x" * 257}], "messages[0].name", "at most 256"),
        messages("no messages", [], "messages", "non-empty array"),
        messages("too many messages", [user] * 4097, "messages", "at most 4096 messages"),
        messages("too many wrong messages", [0] * 9000, "messages[0]", "object"),
        messages("null messages", None, "messages", "required"),
        messages("messages as a string", "hi", "messages", "array of at most 4096 messages"),
        messages("messages as an object", user, "messages", "array of at most 4096 messages"),
        messages("message as a string", [user, "hi"], "messages[1]", "object"),
        messages("nested messages", [[user]], "messages[0]", "object"),
        messages("null message", [None], "messages[0]", "object"),
        messages("no role", [{"content": "hi"}], "messages[0].role", "required", '"user"'),
        messages("no content", [{"role": "user"}], "messages[0].content", "required"),
        messages(
            "null content", [user, {"role": "user", "content": None}], "messages[1].content"
        ),
        messages("bad role", [user | {"role": "robot"}], "messages[0].role", '"user"', '"robot"'),
        messages("role in capitals", [user | {"role": "User"}], "messages[0].role", '"user"'),
        messages("role as a number", [user | {"role": 1}], "messages[0].role", '"user"'),
        messages(
            "tool role", [user, user | {"role": "tool"}], "messages[1].tool_call_id", "required"
        ),
        messages(
            "tool_call_id of a user", [user | {"tool_call_id": "x"}], "messages[0].tool_call_id",
            'role "tool"',
        ),
        messages(
            "a user's reasoning", [user | {"reasoning": "x"}], "messages[0].reasoning",
            'role "assistant"',
        ),
        messages("unknown field", [user | {"colour": "red"}], "messages[0].colour", "not a known"),
        messages("refusal", [user | {"refusal": "no"}], "messages[0].refusal", "not supported"),
        messages("nothing said", [{"role": "assistant", "content": None, "reasoning": ""}],
                 "messages[0].content", "required"),
        messages("name as a number", [user | {"name": 5}], "messages[0].name", "string"),
        messages(
            "tool calls",
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}],
            "messages[0].tool_calls[0].function",
            "required",
        ),
        *(
            messages(
                f"arguments {arguments}",
                [user, {"role": "assistant", "tool_calls": [{"id": "x", "type": "function",
                 "function": {"name": "f", "arguments": arguments}}]}],
                "messages[1].tool_calls[0].function.arguments",
                "JSON object, as a string",
            )
            for arguments in ("{]", "[]", {}, "[" * 9000)
        ),
        content("content as a number", 5, "", "string", "array"),
        content("content as an object", {"text": "hi"}, "", "string", "array"),
        content("no parts", [], "", "non-empty"),
        content("many parts", [{"type": "text", "text": ""}] * 1025, "", "at most 1024 parts"),
        content("part as a string", ["hi"], "[0]", "object"),
        content("part without type", [{"text": "hi"}], "[0].type", "required"),
        content("part without text", [{"type": "text"}], "[0].text", "required"),
        content("part text as a number", [{"type": "text", "text": 5}], "[0].text", "string"),
        content(
            "image part",
            [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "[1].type",
            "this model reads text",
        ),
        content(
            "audio part", [{"type": "input_audio", "input_audio": {}}], "[0].input_audio",
            "not supported",
        ),
        content("unknown part", [{"type": "smell", "text": "x"}], "[0].type", '"text"', "smell"),
    ]  # fmt: skip
