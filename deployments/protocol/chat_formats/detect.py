"""Which form a model writes in, told by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Container

_IN_TEMPLATES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<arg_key>",), "glm4_moe"),
    (("<tool_call>\n<function=",), "qwen3_coder"),
    (("<tool_call>\\n<function=",), "qwen3_coder"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v3_1"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_v11"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>",), "hermes"),
)
"""What all must stand in a template, the more special before what it is special of."""


def detect(template: str | None, vocabulary: Container[str]) -> str:
    """The name of one of ``FORMATS``."""
    for texts, name in _IN_TEMPLATES:
        if all(text in (template or "") for text in texts):
            return name
    if "<think>" in vocabulary and "</think>" in vocabulary:
        return "thinking"
    return "plain"
