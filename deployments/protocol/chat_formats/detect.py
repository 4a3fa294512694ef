"""Which form a model writes in, told by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Container

_IN_TEMPLATES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<|tool_call>", "<tool_call|>"), "gemma4"),
    (("<start_function_call>",), "function_gemma"),
    (("<|start|>assistant", "<|channel|>", "<|message|>"), "harmony"),
    (("｜DSML｜", "function_calls>"), "deepseek_v3_2"),
    (("｜DSML｜", " calls>"), "deepseek_v4_1"),
    (("｜DSML｜",), "deepseek_v4"),
    (("<arg_key>",), "glm4_moe"),
    (("<tool_call>\n<function=",), "qwen3_coder"),
    (("<tool_call>\\n<function=",), "qwen3_coder"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v3_1"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_v11"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<function_calls>",), "olmo3"),
    (("<tool_call>",), "hermes"),
    (("<|tool_call|>", "<|start_of_role|>"), "granite"),
    (("[func_name1(",), "pythonic"),
    (("<|start_header_id|>", '"parameters": '), "llama3_json"),
    (("<|header_start|>", '"parameters": '), "llama3_json"),
)
"""What all must stand in a template, the more special before what it is special of."""
_IN_VOCABULARIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("｜DSML｜",), "deepseek_v3_2"),
    (("<|tool_call_start|>", "<|tool_call_end|>"), "lfm2"),
    (("<think>", "</think>"), "thinking"),
)
"""What all must be tokens of models whose template says nothing."""


def detect(template: str | None, vocabulary: Container[str]) -> str:
    """The name of one of ``FORMATS``."""
    for texts, name in _IN_TEMPLATES:
        if all(text in (template or "") for text in texts):
            return name
    for texts, name in _IN_VOCABULARIES:
        if all(text in vocabulary for text in texts):
            return name
    return "plain"
