"""The fields of Anthropic's Messages API that nothing here stands behind, by name, and what becomes
of each."""

from __future__ import annotations

from typing import Any, Literal

from deployments.protocol.field_rules import FieldRules, Refused, WithoutEffect

_TEXT_ALONE = "models here read and write text"
_NO_SERVER_TOOLS = "tools run where the client is"
_CACHE_CONTROL = WithoutEffect(
    "prefixes are cached whatever is marked",
    'an object such as {"type": "ephemeral"}',
    dict[str, Any],
)

REQUEST_FIELDS: FieldRules = {
    "cache_control": _CACHE_CONTROL,
    "container": Refused(_NO_SERVER_TOOLS),
    "diagnostics": Refused("no earlier message is known"),
    "inference_geo": Refused("hosts stand where they stand"),
    "mcp_servers": Refused(_NO_SERVER_TOOLS, ([],)),
    "service_tier": WithoutEffect(
        "there is one tier", '"auto" or "standard_only"', Literal["auto", "standard_only"]
    ),
    "speed": Refused("there is one speed", ("standard",)),
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
    "defer_loading": WithoutEffect("the model is told of every tool", "a boolean", bool),
    "eager_input_streaming": WithoutEffect(
        "arguments are sent as they are drawn", "a boolean", bool
    ),
    "input_examples": WithoutEffect(
        "they are a hint, which no template writes", "an array of objects", list[dict[str, Any]]
    ),
}
