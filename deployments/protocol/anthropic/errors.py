"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BY_CODE: Mapping[str, str] = {
    "body_too_large": "request_too_large",
    "invalid_api_key": "authentication_error",
    "model_not_found": "not_found_error",
    "timeout": "timeout_error",
    "unknown_url": "not_found_error",
}
BY_TYPE: Mapping[str, str] = {
    "invalid_request_error": "invalid_request_error",
    "permission_error": "permission_error",
    "rate_limit_error": "rate_limit_error",
    "service_unavailable": "overloaded_error",
}
OTHER = "api_error"
FIELDS: Mapping[str, str] = {
    "enable_thinking": "thinking.type",
    "continue_final_message": "messages",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""What the fields of the chat that runs are called here."""


def in_anthropics_shape(error: bytes, request_id: str | None = None) -> bytes:
    """``error``: the JSON of one in OpenAI's shape."""
    told = json.loads(error)["error"]
    kind = BY_CODE.get(told["code"] or "") or BY_TYPE.get(told["type"], OTHER)
    body: dict[str, Any] = {
        "type": "error",
        "error": {"type": kind, "message": told["message"]},
    }
    if request_id is not None:
        body["request_id"] = request_id
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def of_the_chat(error: bytes, request_id: str | None = None) -> bytes:
    """The same of one that names a field of the chat that was made of a request."""
    told = json.loads(error)["error"]
    told["message"] = in_own_words(told["message"], told["param"])
    return in_anthropics_shape(json.dumps({"error": told}).encode(), request_id)


def in_own_words(message: str, param: str | None) -> str:
    """``message``, which begins with ``param``, a field of the chat."""
    param = param or ""
    own = FIELDS.get(param, param.replace(".function.parameters", ".input_schema"))
    return message.replace(param, own) if param else message
