"""Calls as the chat template of each family writes them, with all calls of one message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import BaseLoader, Environment

_JSON = "{{ call.arguments | tojson }}"


def _each(text: str, between: str = "") -> str:
    between = "{% if not loop.last %}" + between + "{% endif %}" if between else ""
    return "{%- for call in calls -%}" + text + between + "{%- endfor -%}"


def _arguments(text: str, between: str = "", items: str = "items") -> str:
    between = "{% if not loop.last %}" + between + "{% endif %}" if between else ""
    loop = "{%- for key, value in call.arguments | " + items + " -%}"
    return loop + text + between + "{%- endfor -%}"


_QWEN_VALUE = (
    "{{ '<parameter=' ~ key ~ '>\\n' }}"
    "{%- if value is mapping or (value is sequence and value is not string) -%}"
    "{{ value | tojson }}{%- else -%}{{ value | string }}{%- endif -%}"
    "{{ '\\n</parameter>\\n' }}"
)
_QWEN_JSON = (
    "{{ '<parameter=' ~ key ~ '>\\n' }}{{ value if value is string else value | tojson }}"
    "{{ '\\n</parameter>\\n' }}"
)


def _qwen(value: str) -> str:
    return _each(
        "{{ '<tool_call>\\n<function=' ~ call.name ~ '>\\n' }}"
        + _arguments(value)
        + "{{ '</function>\\n</tool_call>' }}",
        "{{ '\\n' }}",
    )


def _glm(newline: str) -> str:
    return _each(
        "{{ '<tool_call>' ~ call.name ~ '"
        + newline
        + "' }}"
        + _arguments(
            "{{ '<arg_key>' ~ key ~ '</arg_key>" + newline + "<arg_value>' }}"
            "{{ value if value is string else value | tojson }}"
            "{{ '</arg_value>" + newline + "' }}"
        )
        + "{{ '</tool_call>' }}",
        "{{ '" + newline + "' }}",
    )


def _dsml(calls: str, blank: str = "") -> str:
    mark = "｜DSML｜" + blank
    return (
        "{{ '<"
        + mark
        + calls
        + ">\\n' }}"
        + _each(
            "{{ '<"
            + mark
            + "invoke name=\"' ~ call.name ~ '\">\\n' }}"
            + _arguments(
                "{{ '<" + mark + "parameter name=\"' ~ key ~ '\" string=\"' }}"
                "{{ 'true' if value is string else 'false' }}{{ '\">' }}"
                "{{ value if value is string else value | tojson }}"
                "{{ '</" + mark + "parameter>\\n' }}"
            )
            + "{{ '</"
            + mark
            + "invoke>\\n' }}"
        )
        + "{{ '</"
        + mark
        + calls
        + ">' }}"
    )


def _gemma(start: str, end: str, quote: str, null: str) -> str:
    return (
        "{%- macro written(value) -%}"
        "{%- if value is none -%}" + null + "{%- elif value is string -%}"
        "{{ '" + quote + "' ~ value ~ '" + quote + "' }}"
        "{%- elif value is boolean -%}{{ 'true' if value else 'false' }}"
        "{%- elif value is mapping -%}{{ '{' }}{%- for key, one in value | dictsort -%}"
        "{{ key ~ ':' ~ written(one) }}{% if not loop.last %},{% endif %}{%- endfor -%}{{ '}' }}"
        "{%- elif value is sequence -%}[{%- for one in value -%}{{ written(one) }}"
        "{% if not loop.last %},{% endif %}{%- endfor -%}]"
        "{%- else -%}{{ value }}{%- endif -%}{%- endmacro -%}"
        + _each(
            "{{ '"
            + start
            + "call:' ~ call.name ~ '{' }}"
            + _arguments("{{ key ~ ':' ~ written(value) }}", ",", "dictsort")
            + "{{ '}"
            + end
            + "' }}"
        )
    )


def _python(before: str, behind: str, between: str, value: str) -> str:
    return (
        "{%- macro written(value) -%}" + value + "{%- endmacro -%}"
        "{{ '"
        + before
        + "' }}"
        + _each(
            "{{ call.name ~ '(' }}" + _arguments("{{ key ~ '=' ~ written(value) }}", ", ") + ")",
            "{{ '" + between + "' }}",
        )
        + "{{ '"
        + behind
        + "' }}"
    )


_LFM_VALUE = (
    '{%- if value is string -%}{{ "\'" ~ value ~ "\'" }}{%- elif value is mapping -%}'
    "{{ value | tojson }}{%- else -%}{{ value | string }}{%- endif -%}"
)
_OBJECT = '{"name": "{{ call.name }}", "arguments": ' + _JSON + "}"
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "hermes": (_each("<tool_call>{{ '\\n' }}" + _OBJECT + "{{ '\\n' }}</tool_call>", "{{'\\n'}}"),),
    "qwen3_coder": (_qwen(_QWEN_VALUE), _qwen(_QWEN_JSON)),
    "glm4_moe": (_glm("\\n"), _glm("")),
    "minimax_m2": (
        "{{ '<minimax:tool_call>\\n' }}"
        + _each(
            "{{ '<invoke name=\"' ~ call.name ~ '\">\\n' }}"
            + _arguments(
                "{{ '<parameter name=\"' ~ key ~ '\">' }}"
                "{{ value if value is string else value | tojson }}{{ '</parameter>\\n' }}"
            )
            + "{{ '</invoke>\\n' }}"
        )
        + "</minimax:tool_call>",
    ),
    "mistral": (
        "[TOOL_CALLS]["
        + _each('{"name": "{{ call.name }}", "arguments": ' + _JSON + ', "id": "abcdefgh1"}', ", ")
        + "]",
    ),
    "mistral_v11": (_each("[TOOL_CALLS]{{ call.name }}[ARGS]" + _JSON),),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>"
        + _each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name ~ '\\n```json\\n' }}"
            + _JSON
            + "{{ '\\n```' }}<｜tool▁call▁end｜>",
            "{{ '\\n' }}",
        )
        + "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": (
        "<｜tool▁calls▁begin｜>"
        + _each(
            "<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>" + _JSON + "<｜tool▁call▁end｜>"
        )
        + "<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>"
        + _each(
            "<|tool_call_begin|>functions.{{ call.name }}:{{ loop.index0 }}"
            "<|tool_call_argument_begin|>" + _JSON + "<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
    ),
    "deepseek_v3_2": (_dsml("function_calls"),),
    "deepseek_v4": (_dsml("tool_calls"),),
    "deepseek_v4_1": (_dsml("calls", " "),),
    "llama3_json": (_each('{"name": "{{ call.name }}", "parameters": ' + _JSON + "}"),),
    "pythonic": (_python("[", "]", ", ", "{{ value | tojson }}"),),
    "olmo3": (
        _python("<function_calls>\\n", "\\n</function_calls>", "\\n", "{{ value | tojson }}"),
    ),
    "lfm2": (_python("<|tool_call_start|>[", "]<|tool_call_end|>", ", ", _LFM_VALUE),),
    "function_gemma": (
        _gemma("<start_function_call>", "<end_function_call>", "<escape>", "{{ value }}"),
    ),
    "gemma4": (
        _gemma("<|tool_call>", "<tool_call|>", '<|"|>', "null"),
        _gemma("<|tool_call>", "<tool_call|>", '<|"|>', "{{ value }}"),
    ),
    "granite": ("<|tool_call|>[" + _each(_OBJECT, ", ") + "]",),
    "harmony": (
        "<|channel|>commentary to=functions."
        + _each("{{ call.name }} <|constrain|>json<|message|>" + _JSON + "<|call|>"),
    ),
}


def _environment() -> Environment:
    environment = Environment(loader=BaseLoader())
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


_ENVIRONMENT = _environment()
FAMILIES = [(name, number) for name, texts in _TEMPLATES.items() for number in range(len(texts))]
"""Names of forms, and which of the templates that write them."""


def renderer(name: str, number: int) -> Callable[[list[dict[str, Any]]], str]:
    """Of calls, each with ``name`` and ``arguments``."""
    template = _ENVIRONMENT.from_string(_TEMPLATES[name][number])
    return lambda calls: template.render(calls=calls)
