"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``"""

from __future__ import annotations

import json
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
