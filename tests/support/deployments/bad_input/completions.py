"""Fields of a completion."""

from __future__ import annotations

import json
from typing import Any

from tests.support.deployments.bad_input.case import COMPLETIONS, BadInput


def completion_fields(model: str) -> list[BadInput]:
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
