"""What of a chat's prompt is still there when the conversation has gone on."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.text.history import common_length
from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import ChatPrompt, GenerationRequest, SamplingParams
from tests.support.backend_metal import tokenizers_for_tests as tokenizers
from tests.support.backend_metal.tokenizers_for_tests import with_template
from tests.support.fuzzing import fuzz

# As Qwen3's: an answer loses its thought once the user has said something more.
DROPS_THOUGHTS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
# As Mistral's: tools stand before the last message of the user.
TOOLS_BEFORE_THE_LAST = (
    "{% for m in messages %}{% if m.role == 'user' and loop.last %}[TOOLS]{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
# As Gemma's.
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
Message = dict[str, Any]


@cache
def encoder(template: str) -> PromptEncoder:
    return PromptEncoder(with_template(template), vocab_size=1000, max_model_len=100_000)


def encode(one: PromptEncoder, messages: list[Message], **fields: Any) -> tuple[list[int], int]:
    prompt = ChatPrompt(tuple(messages), continues_final_message=fields.pop("continues", False))
    request = GenerationRequest("a", prompt, SamplingParams(), **fields)
    token_ids, num_history_tokens = one.encode_with_history(request)
    assert token_ids == one.encode(request)
    return token_ids, num_history_tokens


def says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


@fuzz(50)
@pytest.mark.parametrize("template", [DROPS_THOUGHTS, TOOLS_BEFORE_THE_LAST, ALTERNATES])
@given(
    questions=st.lists(st.text(max_size=12), min_size=1, max_size=4),
    answers=st.lists(st.text(max_size=12), min_size=4, max_size=4),
    following=st.text(max_size=12),
)
def test_the_history_is_what_the_next_turn_begins_with(
    template: str, questions: list[str], answers: list[str], following: str
) -> None:
    one = encoder(template)
    messages: list[Message] = []
    for question, answer in zip(questions, answers, strict=False):
        messages += [says("user", question), says("assistant", f"hm</think>{answer}")]
    token_ids, history = encode(one, messages[:-1])
    going_on, _ = encode(one, [*messages, says("user", following)])
    assert going_on[:history] == token_ids[:history]
    asked_otherwise, _ = encode(one, [*messages[:-2], says("user", following)])
    assert asked_otherwise[:history] == token_ids[:history]


def test_it_ends_right_before_the_last_message_of_the_user() -> None:
    one = encoder(DROPS_THOUGHTS)
    system, question = says("system", "You are kind. " * 20), says("user", "How are you today?")
    token_ids, history = encode(one, [system, question])
    with_tools, later = encode(
        one, [system, question, says("assistant", "<think>x"), says("tool", "y" * 400)]
    )
    text = str(tokenizers.byte_level().decode(token_ids[:history]))
    assert text.startswith("<|im_start|>system\nYou are kind. ")
    assert 0 <= text.count("kind. ") - 19 <= 1
    assert "<|im_start|>user\n".startswith(text.rpartition("<|im_end|>\n")[2])
    assert later == history
    assert with_tools[:history] == token_ids[:history]


def test_where_it_is_not_known() -> None:
    assert encode(encoder(DROPS_THOUGHTS), [says("system", "a" * 50)])[1] == 0
    assert encode(encoder("{{ messages[0].content }}"), [says("user", "a" * 50)])[1] == 0
    refuses = "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}a b c d e f g"
    assert encode(encoder(refuses), [says("user", "a")])[1] == 0
    assert encode(encoder(DROPS_THOUGHTS), [says("user", "a")], truncate_prompt_tokens=2)[1] == 0


def test_control_tokens_in_messages_count_as_they_are_read() -> None:
    one = encoder(DROPS_THOUGHTS)
    spelled = says("system", "<|im_end|> and <|im_start|> " * 10)
    token_ids, history = encode(one, [spelled, says("user", "<|im_end|>")])
    going_on, _ = encode(
        one, [spelled, says("user", "<|im_end|>"), says("assistant", "b"), says("user", "c")]
    )
    assert going_on[:history] == token_ids[:history]
    assert history > len(token_ids) / 2


@given(common=st.text(), one=st.text(), other=st.text())
def test_common_length(common: str, one: str, other: str) -> None:
    first, second = common + one, common + other
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == len(first)
