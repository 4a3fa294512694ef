"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BY_CODE: Mapping[str, str] = {
    "body_too_large": "request_too_large",
    "head_too_large": "request_too_large",
    "invalid_api_key": "authentication_error",
    "model_not_found": "not_found_error",
    "request_too_slow": "timeout_error",
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
_TOO_LONG = re.compile(r"context length is (\d+) tokens.*\((\d+)( or more)? in the messages")


def in_anthropics_shape(error: bytes, request_id: str | None = None) -> bytes:
    """``error``: the JSON of one in OpenAI's shape."""
    told = json.loads(error)["error"]
    kind = BY_CODE.get(told["code"] or "") or BY_TYPE.get(told["type"], OTHER)
    message = told["message"]
    if told["code"] == "context_length_exceeded" and (found := _TOO_LONG.search(message)):
        # Agents read the two numbers, and make room for as much. A token is left for the answer.
        longest, tokens, more = found.groups()
        least = "at least " if more else ""
        message = f"prompt is too long: {least}{tokens} tokens > {int(longest) - 1} maximum"
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    if request_id is not None:
        body["request_id"] = request_id
    return json.dumps(body, separators=(",", ":")).encode("ascii")
