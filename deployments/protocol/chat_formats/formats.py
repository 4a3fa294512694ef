"""The forms in use, by the names that ``engine.chat_format`` knows."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.protocol.chat_formats.json_calls import JsonCalls, NamedCalls
from deployments.protocol.chat_formats.literal import BARE_KEY, PYTHON, Notation
from deployments.protocol.chat_formats.literal_calls import LiteralCalls
from deployments.protocol.chat_formats.reader import ChatFormat
from deployments.protocol.chat_formats.tagged_calls import TaggedCalls

THINK = ("<think>", "</think>")


def _dsml(calls: str, blank: str = "") -> tuple[tuple[TaggedCalls], tuple[str, str]]:
    """DeepSeek's markup, whose versions differ in the name of what is around calls and in a
    blank: the form, and what is around calls."""
    mark = f"｜DSML｜{blank}"
    form = TaggedCalls(
        start=f'<{mark}invoke name="',
        name_end=('">',),
        key_start=f'<{mark}parameter name="',
        key_end='"',
        kinds=(' string="true">', ' string="false">'),
        value_end=(f"</{mark}parameter>",),
        end=f"</{mark}invoke>",
    )
    return (form,), (f"<{mark}{calls}>", f"</{mark}{calls}>")


def _gemma(start: str, end: str, quote: str) -> LiteralCalls:
    return LiteralCalls(
        start,
        end,
        notation=Notation((quote, '"'), {"None": "null"}, keys=BARE_KEY, is_sorted=True),
        brackets=("{", "}"),
        separator=":",
        prefix="call:",
        group=None,
    )


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
                    words=PYTHON.words,
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
            "mistral",
            (JsonCalls("[TOOL_CALLS]", is_list=True, has_ids=True),),
            ("[THINK]", "[/THINK]"),
            call_ids="short",
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
            call_ids="numbered",
        ),
        ChatFormat("deepseek_v3_2", _dsml("function_calls")[0], THINK, _dsml("function_calls")[1]),
        ChatFormat("deepseek_v4", _dsml("tool_calls")[0], THINK, _dsml("tool_calls")[1]),
        ChatFormat("deepseek_v4_1", _dsml("calls", " ")[0], THINK, _dsml("calls", " ")[1]),
        ChatFormat(
            "llama3_json", (JsonCalls("<|python_tag|>", arguments="parameters", is_bare=True),)
        ),
        ChatFormat(
            "pythonic",
            (LiteralCalls("<|python_start|>", "<|python_end|>", is_bare=True),),
        ),
        ChatFormat(
            "olmo3",
            (LiteralCalls("<function_calls>", "</function_calls>", group=("\n", "\n", "\n")),),
            THINK,
        ),
        ChatFormat("lfm2", (LiteralCalls("<|tool_call_start|>", "<|tool_call_end|>"),), THINK),
        ChatFormat(
            "function_gemma",
            (_gemma("<start_function_call>", "<end_function_call>", "<escape>"),),
        ),
        ChatFormat(
            "gemma4",
            (_gemma("<|tool_call>", "<tool_call|>", '<|"|>'),),
            ("<|channel>thought", "<channel|>"),
        ),
        ChatFormat(
            "granite",
            (JsonCalls("<|tool_call|>", is_list=True),),
            THINK,
            answer=("<response>", "</response>"),
        ),
        ChatFormat("harmony", has_messages=True),
    )
}
