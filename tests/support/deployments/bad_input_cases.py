"""Requests that must be refused, and how: data for the parser, the replica and the whole system."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.deployments.bad_responses import BAD_FIELDS

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class BadInput:
    name: str
    path: str
    body: bytes
    param: str | None
    says: tuple[str, ...]
    """Parts of the message: the field and what is allowed."""
    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    parsing: bool = True
    """Whether the body alone shows the fault; otherwise the server has to."""


def bad_inputs(*, model: str, max_body_bytes: int, max_model_len: int) -> list[BadInput]:
    return [
        *_bodies(model, max_body_bytes),
        *_chat_fields(model),
        *_messages(model),
        *_completion_fields(model),
        *_tools(model),
        *_grammars(model),
        *_responses(model),
        *_token_fields(model),
        *_unsupported(model),
        *_only_the_server_knows(model, max_model_len),
    ]


def _bodies(model: str, max_body_bytes: int) -> list[BadInput]:
    start = f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]'.encode()

    def body(name: str, content: bytes, *says: str, path: str = CHAT) -> BadInput:
        return BadInput(name, path, content, None, says, code="invalid_json")

    return [
        body("empty body", b"", "empty"),
        body("empty body of a completion", b"", "empty", path=COMPLETIONS),
        body("cut JSON", start, "not valid JSON"),
        body("trailing comma", start + b",}", "not valid JSON"),
        body("two objects", start + b"}{}", "not valid JSON"),
        body("form data", b"model=x&prompt=y", "not valid JSON"),
        body("array", b"[]", "JSON object", "array"),
        body("null", b"null", "JSON object", "null"),
        body("string", b'"hello"', "JSON object", "string"),
        body("number", b"5", "JSON object", "number"),
        body("boolean", b"true", "JSON object", "boolean"),
        body("invalid UTF-8", b'{"model":"\xff\xfe"}', "UTF-8", "byte 10"),
        body("cut UTF-8 character", b'{"model":"\xe2\x82"}', "UTF-8"),
        body("UTF-16", '{"model":"x"}'.encode("utf-16"), "UTF-8"),
        body("lone surrogate", b'{"model":"\\ud800"}', "not valid JSON"),
        body("NaN", start + b',"temperature":NaN}', "NaN"),
        body("Infinity", start + b',"temperature":Infinity}', "Infinity"),
        body("minus Infinity", start + b',"top_p":-Infinity}', "-Infinity"),
        body("float overflow", start + b',"temperature":1e999}', "1e999"),
        body("integer of 5000 digits", start + b',"seed":' + b"9" * 5000 + b"}", "not valid JSON"),
        body("deep nesting", start + b',"user":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "deep"),
        body("key twice", start + b',"seed":1,"seed":2}', '"seed"', "twice"),
        body(
            "stream_options twice",
            start + b',"stream":true,"stream_options":{},"stream_options":{}}',
            '"stream_options"',
            "twice",
        ),
        BadInput(
            "huge body",
            CHAT,
            start + b',"user":"' + b"x" * max_body_bytes + b'"}',
            None,
            ("larger than", str(max_body_bytes)),
            status=413,
            code="body_too_large",
            parsing=False,
        ),
    ]


def _chat_fields(model: str) -> list[BadInput]:
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
        field("stream_options", {"include_obfuscation": 1}, "a boolean",
              param="stream_options.include_obfuscation", stream=True),
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
        field("user", 5, "string"),
        field("safety_identifier", ["me"], "string"),
        field("prompt_cache_key", 5, "string"),
        field("prompt_cache_retention", "1h", "24h"),
        field("metadata", "x", "object of at most 16 strings"),
        field("metadata", {"key": 1}, "object of at most 16 strings"),
        field("metadata", {str(key): "x" for key in range(17)}, "object of at most 16 strings"),
        field("service_tier", "priority", '"auto" or "default"'),
        field("verbosity", "loud", '"low", "medium" or "high"'),
        field("verbosity", 1, '"low", "medium" or "high"'),
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


def _messages(model: str) -> list[BadInput]:
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
        messages(
            "annotations", [user | {"annotations": [1]}], "messages[0].annotations",
            "array of objects",
        ),
        messages(
            "cache_control", [user | {"cache_control": "x"}], "messages[0].cache_control",
            "an object",
        ),
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
            for arguments in ("{", "[]", {}, "[" * 9000)
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
            "[1].image_url",
            "not supported",
        ),
        content(
            "audio part", [{"type": "input_audio", "input_audio": {}}], "[0].input_audio",
            "not supported",
        ),
        content(
            "cache_control of a part", [{"type": "text", "text": "x", "cache_control": []}],
            "[0].cache_control", "an object",
        ),
        content("unknown part", [{"type": "smell", "text": "x"}], "[0].type", '"text"', "smell"),
    ]  # fmt: skip


def _completion_fields(model: str) -> list[BadInput]:
    def field(name: str, value: Any, *says: str, param: str | None = None) -> BadInput:
        body = json.dumps({"model": model, "prompt": "hi"} | {name: value}).encode()
        label = f"completion {name}={json.dumps(value)[:40]}"
        return BadInput(label, COMPLETIONS, body, param or name, says)

    return [
        field("prompt", None, "required"),
        field("prompt", "", "non-empty"),
        field("prompt", [], "non-empty"),
        field("prompt", [[]], "non-empty", param="prompt[0]"),
        field("prompt", ["hi", ""], "non-empty", param="prompt[1]"),
        field("prompt", ["hi", 5], "string or array", param="prompt[1]"),
        field("prompt", [5, "hi"], "token id", param="prompt[1]"),
        field("prompt", [1, 2.5], "token id", param="prompt[1]"),
        field("prompt", [1, True], "token id", param="prompt[1]"),
        field("prompt", [1, -1], "token id", param="prompt[1]"),
        field("prompt", [[1], [2, "x"]], "token id", param="prompt[1][1]"),
        field("prompt", [[[1]]], "token id", param="prompt[0][0]"),
        field("prompt", [None], "string or array", param="prompt[0]"),
        field("prompt", {"text": "hi"}, "non-empty string"),
        field("prompt", 7, "non-empty string"),
        field("prompt", ["x"] * 257, "at most 256", "257"),
        field("logprobs", True, "from 0 to 20"),
        field("logprobs", 21, "from 0 to 20"),
        field("max_tokens", "16", "integer"),
        field("messages", [], "not a known field"),
        field("top_logprobs", 3, "not a known field"),
    ]


def _tools(model: str) -> list[BadInput]:
    def tools(name: str, value: Any, param: str, *says: str, **more: Any) -> BadInput:
        user = {"role": "user", "content": "hi"}
        fields = {"model": model, "messages": [user], "tools": value, **more}
        return BadInput(f"tools: {name}", CHAT, json.dumps(fields).encode(), param, says)

    def tool(**fields: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", **fields}}

    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    function = "tools[0].function"
    return [
        tools("no array", {}, "tools", "array of at most 256"),
        tools("no object", [1], "tools[0]", "object"),
        tools("too many", [tool()] * 257, "tools", "at most 256"),
        tools("kind", [{"type": "web search"}], "tools[0].type", '"function"'),
        tools("kind with a function", [tool() | {"type": "web_search"}], "tools[0].type",
              '"function"', "web_search"),
        tools("custom", [{"type": "custom", "custom": {"name": "f"}}], "tools[0].custom",
              "not supported"),
        tools("no function", [{"type": "function"}], "tools[0].function", "required"),
        tools("no kind", [{}], "tools[0].type", "required"),
        tools("cache_control", [tool() | {"cache_control": 1}], "tools[0].cache_control",
              "an object"),
        tools("choice of a dropped one", [{"type": "web_search"}], "tool_choice", '"auto"',
              tool_choice={"type": "web_search"}),
        tools("choice of dropped ones", [{"type": "web_search"}], "tool_choice", "no tools",
              tool_choice="required"),
        tools("no name", [{"type": "function", "function": {}}], f"{function}.name", "required"),
        tools("name", [tool(name="a b")], f"{function}.name", "letters, digits"),
        tools("twice", [tool(), tool()], "tools[1].function.name", "another tool's"),
        tools("parameters", [tool(parameters=[])], f"{function}.parameters", "JSON schema"),
        tools("array", [tool(parameters={"type": "array"})], f"{function}.parameters", "object"),
        tools("deep", [tool(parameters=deep)], f"{function}.parameters", "64 levels"),
        tools("strict", [tool(strict=1)], f"{function}.strict", "boolean"),
        tools("unknown field", [tool(parameter={})], f"{function}.parameter", "parameters?"),
        tools("choice", [tool()], "tool_choice", '"auto"', tool_choice="always"),
        tools("choice of none", [], "tool_choice", "no tools", tool_choice="required"),
        tools("choice of another", [tool()], "tool_choice", '"g"',
              tool_choice={"type": "function", "function": {"name": "g"}}),
        tools("choice with more", [tool()], "tool_choice", '"auto"',
              tool_choice={"type": "function", "function": {"name": "f", "x": 1}}),
        tools("subset", [tool()], "tool_choice", "allowed_tools.tools", tool_choice={
            "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1]}}),
        tools("parallel", [tool()], "parallel_tool_calls", "boolean", parallel_tool_calls="no"),
    ]  # fmt: skip


def _grammars(model: str) -> list[BadInput]:
    def field(where: str, value: Any, *says: str, param: str = "", path: str = CHAT) -> BadInput:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        if path == COMPLETIONS:
            prompt = {"prompt": "hi"}
        name, *inner = where.split(".")
        for key in reversed(inner):
            value = {key: value}
        body = json.dumps({"model": model, **prompt, name: value}).encode()
        told = ", ".join(says)[:20]
        return BadInput(f"{where} {str(value)[:60]} {told}", path, body, param or where, says)

    def schema(named: Any, *says: str, param: str) -> BadInput:
        wanted = {"type": "json_schema", "json_schema": named}
        return field("response_format", wanted, *says, param=f"response_format{param}")

    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    return [
        field("response_format", "json", "an object"),
        field("response_format", {}, "required", param="response_format.type"),
        field("response_format", {"type": "xml"}, '"json_schema"', param="response_format.type"),
        field("response_format", {"type": "text", "schema": {}}, "not a known field",
              param="response_format.schema"),
        field("response_format", {"type": "json_schema"}, "is required",
              param="response_format.json_schema"),
        field("response_format", {"type": "json_object", "json_schema": {"name": "a"}},
              "no other", param="response_format.json_schema"),
        schema({}, "required", param=".json_schema.name"),
        schema({"name": "a b"}, "letters, digits", param=".json_schema.name"),
        schema({"name": "a", "schema": True}, "an object", param=".json_schema.schema"),
        schema({"name": "a", "schema": deep}, "64 levels", param=".json_schema.schema"),
        schema({"name": "a", "strict": "yes"}, "boolean", param=".json_schema.strict"),
        schema({"name": "a", "shema": {}}, "Did you mean schema?", param=".json_schema.shema"),
        field("structured_outputs", [], "an object"),
        field("structured_outputs.json", 5, "a JSON schema", path=COMPLETIONS),
        field("structured_outputs.json", "{", "a JSON schema"),
        field("structured_outputs.json", "[" * 50_000, "a JSON schema"),
        field("structured_outputs.regex", "", "regular expression"),
        field("structured_outputs.choice", [], "non-empty array"),
        field("structured_outputs.choice", ["a", ""], param="structured_outputs.choice[1]"),
        field("structured_outputs.choice", ["a"] * 1025, "at most 1024"),
        field("structured_outputs.grammar", 1, "grammar"),
        field("structured_outputs", {"regex": "a", "choice": ["a"]}, "send one of them",
              param="structured_outputs.choice"),
        field("guided_json", [], "a JSON schema"),
        field("guided_choice", "a", "array"),
        field("guided_grammar", {}, "grammar", path=COMPLETIONS),
    ]  # fmt: skip


def _token_fields(model: str) -> list[BadInput]:
    """Of both endpoints, and of each."""

    def field(
        name: str, value: Any, *says: str, paths: tuple[str, ...] = (CHAT, COMPLETIONS), **more: Any
    ) -> list[BadInput]:
        param = more.pop("param", name)
        cases = []
        for path in paths:
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            if path == COMPLETIONS:
                body = {"model": model, "prompt": "hi"}
            body |= {name: value} | more
            label = f"{path} {name}={json.dumps(value)[:40]} {json.dumps(more)[:140]}"
            cases.append(BadInput(label, path, json.dumps(body).encode(), param, says))
        return cases

    def continued(*says: str, **more: Any) -> list[BadInput]:
        return field("continue_final_message", True, *says, paths=(CHAT,), **more)

    schema = {"response_format": {"type": "json_object"}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = {"role": "assistant", "content": "so"}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        *field("min_tokens", -1, "at least 0"),
        *field("min_tokens", "5", "integer"),
        *field("min_tokens", 5.0, "integer"),
        *field("min_tokens", 5, "4 tokens at most", max_tokens=4),
        *field("min_tokens", 17, "16 tokens at most", paths=(COMPLETIONS,)),
        *field("min_tokens", 2, "can't be combined with response_format", **schema),
        *field("min_tokens", 2, "combined with guided_regex", guided_regex="a"),
        *field("min_tokens", 2, "combined with tools", tools=tools, paths=(CHAT,)),
        *field("bad_words", "no", "array of at most 128 strings"),
        *field("bad_words", [""], "blank", param="bad_words[0]"),
        *field("bad_words", ["a", " "], "blank", param="bad_words[1]"),
        *field("bad_words", [1], "strings", param="bad_words[0]"),
        *field("bad_words", ["x" * 257], "at most 256", param="bad_words[0]"),
        *field("bad_words", ["x"] * 129, "at most 128"),
        *field("bad_words", ["x"], "can't be combined with guided_choice", guided_choice=["x"]),
        *field("bad_words", ["x"], "combined with tools", tools=tools, paths=(CHAT,)),
        *field("allowed_token_ids", [], "non-empty array"),
        *field("allowed_token_ids", 5, "non-empty array"),
        *field("allowed_token_ids", [-1], "token ids", param="allowed_token_ids[0]"),
        *field("allowed_token_ids", ["5"], "token ids", param="allowed_token_ids[0]"),
        *field("allowed_token_ids", [2**31], "token ids", param="allowed_token_ids[0]"),
        *field("allowed_token_ids", [1] * 16_385, "at most 16384"),
        *field("allowed_token_ids", [1], "can't be combined with response_format", **schema),
        *field("prompt_logprobs", -1, "from 0 to 20"),
        *field("prompt_logprobs", 21, "from 0 to 20"),
        *field("prompt_logprobs", True, "from 0 to 20"),
        *field("prompt_logprobs", 1, "without stream", stream=True),
        *field("suffix", 1, "a string", paths=(COMPLETIONS,)),
        *field("suffix", ["x"], "a string", paths=(COMPLETIONS,)),
        *field("suffix", "x", "prompts that are strings", paths=(COMPLETIONS,), prompt=[1, 2]),
        *field("suffix", "x", "prompts that are strings", paths=(COMPLETIONS,), prompt=["a", [1]]),
        *field("suffix", "x", "combined with echo", paths=(COMPLETIONS,), echo=True),
        *field("echo", "yes", "boolean", paths=(COMPLETIONS,)),
        *field("echo", 1, "boolean", paths=(COMPLETIONS,)),
        *field("return_token_ids", 1, "boolean"),
        *field("return_tokens_as_token_ids", "yes", "boolean"),
        *field("return_tokens_as_token_ids", True, "only allowed with logprobs"),
        *field("stream_options", {"continuous_usage_stats": 1}, "boolean", stream=True,
               param="stream_options.continuous_usage_stats"),
        *field("stream_options", {"continuous_usage_stats": True}, "stream is true"),
        *field("truncation_side", "right", "send", "left"),
        *field("stream_interval", 0, "at least 1"),
        *field("request_id", "mine", "not supported"),
        *field("add_special_tokens", True, "send false", paths=(CHAT,)),
        *field("add_special_tokens", False, "send true", paths=(COMPLETIONS,)),
        *field("session_id", 5, "a string"),
        *field("logprob_token_ids", [1], "not supported"),
        *field("include_stop_str_in_output", "yes", "boolean"),
        *field("skip_special_tokens", 0, "boolean"),
        *field("spaces_between_special_tokens", False, "not supported", "send true"),
        *field("truncate_prompt_tokens", 0, "at least one token"),
        *field("truncate_prompt_tokens", -2, "-1 for as many"),
        *field("truncate_prompt_tokens", "8", "number of tokens"),
        *field("truncate_prompt_tokens", 1.5, "number of tokens"),
        *field("continue_final_message", True, "not a known field", paths=(COMPLETIONS,)),
        *field("continue_final_message", "yes", "boolean", paths=(CHAT,)),
        *continued("add_generation_prompt false"),
        *continued("add_generation_prompt false", add_generation_prompt=True),
        *continued("ends with a text", add_generation_prompt=False,
                   messages=[answer | {"tool_calls": [call]}]),
        *continued("ends with a text", add_generation_prompt=False,
                   messages=[answer | {"content": ""}]),
        *field("max_tokens", -1, "at least 0"),
        *field("max_tokens", False, "integer"),
    ]  # fmt: skip


def _responses(model: str) -> list[BadInput]:
    cases = []
    for fields, param, says in BAD_FIELDS:
        body = json.dumps({"model": model, "input": "hi", **fields}).encode()
        label = f"response {param} {json.dumps(fields)[-50:]}"
        cases.append(BadInput(label, RESPONSES, body, param, (says,)))
    return cases


def _unsupported(model: str) -> list[BadInput]:
    def field(name: str, value: Any, path: str = CHAT) -> BadInput:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        if path == COMPLETIONS:
            prompt = {"prompt": "hi"}
        body = json.dumps({"model": model, **prompt, name: value}).encode()
        return BadInput(f"unsupported {path} {name}", path, body, name, ("not supported",))

    return [
        field("functions", [{"name": "f"}]),
        field("audio", {"voice": "alloy", "format": "wav"}),
        field("modalities", ["text", "audio"]),
        field("prediction", {"type": "content", "content": "x"}),
        field("web_search_options", {}),
        field("store", True),
        field("use_beam_search", True),
        field("echo", True),
        field("best_of", 3, COMPLETIONS),
        field("max_completion_tokens", 5, COMPLETIONS),
    ]


def _only_the_server_knows(model: str, max_model_len: int) -> list[BadInput]:
    other = json.dumps({"model": "no-such-model", "prompt": "hi"}).encode()
    long_name = json.dumps({"model": "x" * 5000, "prompt": "hi"}).encode()
    long_prompt = json.dumps({"model": model, "prompt": [1] * max_model_len}).encode()
    long_chat = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "x " * max_model_len}]}
    ).encode()
    too_long = {"status": 400, "code": "context_length_exceeded", "parsing": False}
    return [
        BadInput(
            "unknown model", COMPLETIONS, other, "model", ("no-such-model",),
            status=404, code="model_not_found", parsing=False,
        ),
        *(
            BadInput(f"reserved {name}", CHAT, body, "chat_template_kwargs", (name,), parsing=False)
            for name, body in _reserved_arguments(model).items()
        ),
        BadInput(
            "unknown model with a long name", COMPLETIONS, long_name, "model", ("xxx...",),
            status=404, code="model_not_found", parsing=False,
        ),
        BadInput(
            "too long prompt", COMPLETIONS, long_prompt, "prompt", (str(max_model_len),), **too_long
        ),
        BadInput(
            "too long chat", CHAT, long_chat, "messages", (str(max_model_len),), **too_long
        ),
    ]  # fmt: skip


def _reserved_arguments(model: str) -> dict[str, bytes]:
    chat = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    arguments = {"tokenize": False, "chat_template": "{{ x }}"}
    return {
        name: json.dumps({**chat, "chat_template_kwargs": {name: value}}).encode()
        for name, value in arguments.items()
    }
