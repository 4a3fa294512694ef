"""Which form a model writes in: told by its template and its tokens, or by the setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from deployments.backend import EngineConfig
from deployments.backend.config import ChatFormat
from deployments.protocol.chat_formats.detect import detect
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.formats import FORMATS

README = Path(__file__).parents[2] / "deployments" / "protocol" / "README.md"
LLAMA_3 = (
    "{{- '<|start_header_id|>' + role }}{{- 'Respond in the format {\"name\": function name, "
    '"parameters": dictionary of argument name and its value}.\' }}'
)
DSML = '{% set dsml_token = "｜DSML｜" %}'


@pytest.mark.parametrize(
    ("template", "tokens", "name"),
    [
        ("", (), "plain"),
        ("{{ message.content }}", ("<think>", "</think>"), "thinking"),
        ("<tool_call>\n{{ tool_call.name }}", (), "hermes"),
        ("<tool_call>\n<function={{ name }}>", (), "qwen3_coder"),
        ("{{ '<tool_call>\\n<function=' + name }}", (), "qwen3_coder"),
        ("<tool_call>{{ name }}<arg_key>", (), "glm4_moe"),
        ("<minimax:tool_call>", (), "minimax_m2"),
        ("<|tool_calls_section_begin|>", (), "kimi_k2"),
        ("[TOOL_CALLS][{}]", (), "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", (), "mistral_v11"),
        ("<｜tool▁sep｜>{{ name }}\n```json", (), "deepseek_v3"),
        ("<｜tool▁sep｜>", (), "deepseek_v3_1"),
        (DSML + "<{{ dsml_token }}function_calls>", (), "deepseek_v3_2"),
        (DSML + "<{{ dsml_token }}tool_calls>", (), "deepseek_v4"),
        (DSML + "<{{ dsml_token }} calls>", (), "deepseek_v4_1"),
        ("", ("｜DSML｜",), "deepseek_v3_2"),
        (LLAMA_3, (), "llama3_json"),
        (LLAMA_3.replace("start_header_id", "header_start"), (), "llama3_json"),
        ("<|header_start|>[func_name1(a=1), func_name2(...)]", (), "pythonic"),
        ("wrapped in <function_calls></function_calls> XML tags", (), "olmo3"),
        ("<|tool_list_start|>", (), "lfm2"),
        ("List of tools: ", ("<|tool_call_start|>", "<|tool_call_end|>"), "lfm2"),
        ("<|tool_call>call:{{ name }}<tool_call|>", (), "gemma4"),
        ("<start_function_call>", (), "function_gemma"),
        ("<|start_of_role|> respond with <|tool_call|> followed by a list", (), "granite"),
        ("<|start|>assistant<|channel|>final<|message|>", (), "harmony"),
    ],
)
def test_a_form_is_found(template: str, tokens: tuple[str, ...], name: str) -> None:
    assert detect(template, tokens) == name


def test_every_form_is_found_in_some_template() -> None:
    (found,) = (
        mark.args[1]
        for mark in test_a_form_is_found.pytestmark  # type: ignore[attr-defined]
    )
    assert {name for _, _, name in found} == set(FORMATS)


def test_the_setting_wins_over_what_is_found() -> None:
    template = "<tool_call>\n{{ tool_call.name }}<think>"
    added = {"<|tool_call>": 5, "<tool_call|>": 6}
    assert Dialect.of(template, added, set(added)).chat_format.name == "hermes"
    assert not Dialect.of(template, added, set(added), name="plain").reads
    assert Dialect.of(template, added, set(added)).can_think
    assert not Dialect.of("<tool_call>", {}, set()).can_think
    assert Dialect.of("", {}, set(), {"enable_thinking": set()}).can_think
    dialect = Dialect.of(template, added, set(added), name="gemma4")
    assert dialect.chat_format.name == "gemma4"
    assert dialect.special_tokens == added
    # A thought of which neither the template nor the tokens know is none.
    assert dialect.chat_format.thinking is None


def test_the_setting_knows_the_forms_and_no_others() -> None:
    assert set(get_args(ChatFormat)) == {"auto", *FORMATS}
    assert EngineConfig(chat_format="harmony").chat_format == "harmony"
    with pytest.raises(ValidationError, match=r"'plain', 'thinking', .*'qwen3_coder'"):
        EngineConfig.model_validate({"chat_format": "qwen"})


def test_the_documents_list_the_forms() -> None:
    (_, table) = README.read_text().split("| `engine.chat_format` |")
    rows = [row.split("|")[1] for row in table.split("\n\n")[0].splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(FORMATS)
