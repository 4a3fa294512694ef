"""The fields of Anthropic's Messages API that nothing here stands behind, by name, and what becomes
of each."""

from __future__ import annotations

from typing import Any, Literal

from deployments.protocol.field_rules import FieldRules, Refused, WithoutEffect

_TEXT_ALONE = "models here read and write text"
_NO_SERVER_TOOLS = "tools run where the client is"
_NO_BILL = "it names who pays, and nobody here does"
_CACHE_CONTROL = WithoutEffect(
    "prefixes are cached whatever is marked",
    'an object such as {"type": "ephemeral"}',
    dict[str, Any],
)

REQUEST_FIELDS: FieldRules = {
    "billing_policy": WithoutEffect(_NO_BILL, "an object", dict[str, Any]),
    "cache_control": _CACHE_CONTROL,
    "container": Refused(_NO_SERVER_TOOLS),
    "compaction": Refused("a client sums up what was said itself"),
    "diagnostics": WithoutEffect("no earlier message is known", "an object", dict[str, Any]),
    "fallback_credit_token": WithoutEffect(_NO_BILL, "a string or an object", str | dict[str, Any]),
    "fallbacks": WithoutEffect(
        "no request is declined over to another model",
        '"default" or an array of objects',
        Literal["default"] | list[dict[str, Any]],
    ),
    "inference_geo": Refused("hosts stand where they stand"),
    "mcp_servers": Refused(_NO_SERVER_TOOLS, ([],)),
    "service_tier": WithoutEffect(
        "there is one tier", '"auto" or "standard_only"', Literal["auto", "standard_only"]
    ),
    "speed": WithoutEffect(
        "there is one speed", '"standard" or "fast"', Literal["standard", "fast"]
    ),
    "thread": Refused("no earlier message is known", ({"type": "create"},)),
    "user_profile_id": WithoutEffect(_NO_BILL, "a string", str),
    "workspace_id": WithoutEffect(_NO_BILL, "a string", str),
}

MESSAGE_FIELDS: FieldRules = {
    "output_config": WithoutEffect(
        "the request's own says how hard to think", "an object", dict[str, Any]
    ),
}

OUTPUT_FIELDS: FieldRules = {
    "task_budget": WithoutEffect(
        "it is a hint, which no open model knows", "an object", dict[str, Any]
    ),
}

THINKING_FIELDS: FieldRules = {
    "block_binding": WithoutEffect("signatures are never checked", "an object", dict[str, Any]),
}

BLOCK_FIELDS: FieldRules = {
    "cache_control": _CACHE_CONTROL,
    "caller": Refused(_NO_SERVER_TOOLS, ({"type": "direct"},)),
    "citations": WithoutEffect(
        "they tell of the text what no template writes", "an array of objects", list[dict[str, Any]]
    ),
    "source": Refused(_TEXT_ALONE),
    "toolset_name": Refused(_NO_SERVER_TOOLS),
}

TOOL_FIELDS: FieldRules = {
    "allowed_callers": Refused(_NO_SERVER_TOOLS, (["direct"],)),
    "cache_control": _CACHE_CONTROL,
    "eager_input_streaming": WithoutEffect(
        "arguments are sent as they are drawn", "a boolean", bool
    ),
    "input_examples": WithoutEffect(
        "they are a hint, which no template writes", "an array of objects", list[dict[str, Any]]
    ),
}
