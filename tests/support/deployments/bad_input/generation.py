"""Fields that chats and completions share."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import CHAT, COMPLETIONS, BadInput


def token_fields(model: str) -> list[BadInput]:
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
        *field("add_special_tokens", True, "send false", paths=(CHAT,)),
        *field("add_special_tokens", False, "send true", paths=(COMPLETIONS,)),
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


def unsupported(model: str) -> list[BadInput]:
    def field(name: str, value: Any, path: str = CHAT) -> BadInput:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        if path == COMPLETIONS:
            prompt = {"prompt": "hi"}
        body = json.dumps({"model": model, **prompt, name: value}).encode()
        return BadInput(f"unsupported {path} {name}", path, body, name, ("not supported",))

    return [
        field("audio", {"voice": "alloy", "format": "wav"}),
        field("modalities", ["text", "audio"]),
        field("web_search_options", {}),
        field("use_beam_search", True),
        field("echo", True),
        field("best_of", 3, COMPLETIONS),
        field("max_completion_tokens", 5, COMPLETIONS),
    ]
