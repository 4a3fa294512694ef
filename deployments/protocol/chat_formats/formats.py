"""The forms in use, by the names that ``engine.chat_format`` knows."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.protocol.chat_formats.calls import JsonCalls, NamedCalls, TaggedCalls
from deployments.protocol.chat_formats.reader import ChatFormat

THINK = ("<think>", "</think>")


FORMATS: Mapping[str, ChatFormat] = {
    one.name: one
    for one in (
        ChatFormat("plain"),
        ChatFormat("thinking", thinking=THINK),
        ChatFormat("hermes", (JsonCalls("<tool_call>", "</tool_call>"),), THINK),
        ChatFormat(
            "qwen3_coder",
            (
                TaggedCalls(
                    start="<tool_call>",
                    name_start="<function=",
                    name_end=(">",),
                    key_start="<parameter=",
                    key_end=">",
                    value_end=("\n</parameter>", "</parameter>"),
                    call_end="</function>",
                    end="</tool_call>",
                ),
            ),
            THINK,
        ),
        ChatFormat(
            "glm4_moe",
            (
                TaggedCalls(
                    start="<tool_call>",
                    name_end=("\n", "<arg_key>", "</tool_call>"),
                    key_start="<arg_key>",
                    key_end="</arg_key>",
                    value_start="<arg_value>",
                    value_end=("</arg_value>",),
                    end="</tool_call>",
                ),
            ),
            THINK,
        ),
        ChatFormat(
            "minimax_m2",
            (
                TaggedCalls(
                    start='<invoke name="',
                    name_end=('">',),
                    key_start='<parameter name="',
                    key_end='">',
                    value_end=("</parameter>",),
                    end="</invoke>",
                ),
            ),
            THINK,
            ("<minimax:tool_call>", "</minimax:tool_call>"),
        ),
        ChatFormat(
            "mistral", (JsonCalls("[TOOL_CALLS]"),), ("[THINK]", "[/THINK]"), call_ids="short"
        ),
        ChatFormat(
            "mistral_v11",
            (NamedCalls("[TOOL_CALLS]", "[ARGS]"),),
            ("[THINK]", "[/THINK]"),
            call_ids="short",
        ),
        ChatFormat(
            "deepseek_v3",
            (
                NamedCalls(
                    "<｜tool▁call▁begin｜>",
                    "\n",
                    end="<｜tool▁call▁end｜>",
                    kind="function<｜tool▁sep｜>",
                    fence=("```json\n", "\n```"),
                ),
            ),
            THINK,
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        ChatFormat(
            "deepseek_v3_1",
            (NamedCalls("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", end="<｜tool▁call▁end｜>"),),
            THINK,
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        ChatFormat(
            "kimi_k2",
            (
                NamedCalls(
                    "<|tool_call_begin|>",
                    "<|tool_call_argument_begin|>",
                    end="<|tool_call_end|>",
                    prefix="functions.",
                    is_numbered=True,
                ),
            ),
            THINK,
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            "numbered",
        ),
    )
}
