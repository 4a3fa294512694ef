"""Prompts to token ids, and every way in which a prompt can be wrong."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from backend_metal.engine.text.prompt import MOST_CHARS_PER_TOKEN, PromptEncoder
from deployments.backend import (
    ChatPrompt,
    GenerationRequest,
    InvalidRequestError,
    Prompt,
    SamplingParams,
)
from deployments.backend.written import read_number
from tests.support.backend_metal import tokenizers_for_tests as tokenizers
from tests.support.backend_metal.tokenizers_for_tests import with_template

VOCAB, LONG = 1000, 100_000


def encode_prompt(tokenizer: Any, prompt: Prompt, vocab_size: int) -> list[int]:
    encoder = PromptEncoder(tokenizer, vocab_size=vocab_size, max_model_len=LONG)
    return encoder.encode(GenerationRequest("a", prompt, SamplingParams()))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(*messages: dict[str, Any], **arguments: Any) -> ChatPrompt:
    return ChatPrompt(tuple(messages), arguments)


def rendered(prompt: ChatPrompt, tokenizer: Any = None) -> str:
    tokenizer = tokenizer or tokenizers.byte_level()
    return str(tokenizer.decode(encode_prompt(tokenizer, prompt, VOCAB)))


def refused(tokenizer: Any, prompt: Any, vocab_size: int = VOCAB) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        encode_prompt(tokenizer, prompt, vocab_size)
    return caught.value


def test_a_string_gets_what_the_tokenizer_adds() -> None:
    plain, with_bos = tokenizers.byte_level(), tokenizers.byte_fallback()
    assert encode_prompt(plain, "the dog", VOCAB) == plain.encode("the dog")
    token_ids = encode_prompt(with_bos, "the dog", VOCAB)
    assert token_ids[0] == with_bos.bos_token_id
    assert encode_prompt(with_bos, "<s>the dog", VOCAB).count(with_bos.bos_token_id) == 1
    assert encode_prompt(with_bos, "", VOCAB) == [with_bos.bos_token_id]


def test_token_ids_pass_through() -> None:
    assert encode_prompt(tokenizers.byte_level(), (5, 0, 999), VOCAB) == [5, 0, 999]


@pytest.mark.parametrize(
    ("token_ids", "wrong"), [((1000, 5), "1000"), ((5, -1), "-1"), ((2**70,), str(2**70))]
)
def test_token_ids_outside_the_vocabulary(token_ids: tuple[int, ...], wrong: str) -> None:
    error = refused(tokenizers.byte_level(), token_ids)
    assert error.param == "prompt"
    assert str(error) == f"prompt has token id {wrong}; the model's are 0 to 999"


def test_a_token_that_only_the_tokenizer_knows() -> None:
    """A tokenizer may have added tokens for which the model has no embedding."""
    error = refused(tokenizers.byte_level(), "the dog", vocab_size=10)
    assert (error.param, "0 to 9" in str(error)) == ("prompt", True)


@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt(prompt: Any) -> None:
    assert refused(tokenizers.byte_level(), prompt).param == "prompt"


def test_unpaired_surrogates() -> None:
    assert refused(tokenizers.byte_level(), "a\ud800b").param == "prompt"
    error = refused(tokenizers.byte_level(), chat(user("a\udfffb")))
    assert error.param == "messages"
    assert "surrogate" in str(error)


def test_a_chat_is_rendered_with_a_generation_prompt() -> None:
    prompt = chat({"role": "system", "content": "Be kind."}, user("Hello"))
    assert rendered(prompt) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_of_a_template_are_tokens() -> None:
    tokenizer = tokenizers.byte_level()
    token_ids = encode_prompt(tokenizer, chat(user("Hello")), VOCAB)
    assert token_ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2


def test_bos_comes_from_the_template_alone() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = with_template(template, tokenizers.byte_fallback())
    token_ids = encode_prompt(tokenizer, chat(user("the dog")), VOCAB)
    assert token_ids.count(tokenizer.bos_token_id) == 1
    without = with_template(template.removeprefix("{{ bos_token }}"), tokenizers.byte_fallback())
    assert without.bos_token_id not in encode_prompt(without, chat(user("the dog")), VOCAB)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert rendered(chat(user(parts))) == rendered(chat(user("Hel\nlo")))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text"},
        {"type": "text", "text": 5},
        "text",
    ],
)
def test_parts_that_are_not_text(part: Any) -> None:
    error = refused(tokenizers.byte_level(), chat(user("x"), user([part])))
    assert error.param == "messages"
    assert "messages[1].content" in str(error)


def test_a_new_message_is_begun_after_the_last_one_unless_the_client_says_no() -> None:
    messages = (user("Hello"), {"role": "assistant", "content": "I am"})
    begun = rendered(chat(*messages))
    assert begun.endswith("I am<|im_end|>\n<|im_start|>assistant\n")
    ended = rendered(chat(*messages, add_generation_prompt=False))
    assert ended.endswith("I am<|im_end|>\n")


def test_template_arguments_reach_the_template() -> None:
    tokenizer = with_template("{{ mood }}{{ messages[0].content }}")
    assert rendered(chat(user("x"), mood="calm "), tokenizer) == "calm x"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "continue_final_message", "tools"])
def test_arguments_that_are_not_the_clients(name: str) -> None:
    error = refused(tokenizers.byte_level(), chat(user("x"), **{name: "y"}))
    assert error.param == "chat_template_kwargs"
    assert name in str(error)


@pytest.mark.parametrize(
    ("template", "message", "reason"),
    [
        (tokenizers.CHATML, {"role": "wizard", "content": "x"}, "unknown role wizard"),
        ("{{ messages[0].content + 5 }}", user("x"), "concatenate"),
        ("{{ messages[0].content.missing.deep }}", user("x"), "no attribute 'missing'"),
        ("{{ 1 / 0 }}", user("x"), "division by zero"),
        ("{{ messages[7].content }}", user("x"), "no element 7"),
    ],
)
def test_what_a_template_refuses(template: str, message: dict[str, Any], reason: str) -> None:
    error = refused(with_template(template), chat(message))
    assert error.param == "messages"
    assert reason in str(error)


def test_no_chat_template() -> None:
    for tokenizer in (with_template(None), with_template(None)._tokenizer):
        error = refused(tokenizer, chat(user("x")))
        assert error.param == "messages"
        assert "no chat template" in str(error)


def test_a_template_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"can't be read: .*; engine\.chat_template may"):
        PromptEncoder(with_template("{% if %}"), vocab_size=VOCAB, max_model_len=LONG)


def test_no_messages() -> None:
    assert refused(tokenizers.byte_level(), chat()).param == "messages"


def test_a_chat_that_renders_to_nothing() -> None:
    error = refused(with_template("{{ '' }}"), chat(user("x")))
    assert (error.param, str(error)) == ("messages", "messages must give at least one token")


@pytest.mark.parametrize("name", ["thinking", "reasoning_content"])
def test_templates_have_two_names_for_a_thought(name: str) -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": "so"}
    tokenizer = with_template(f"{{{{ messages[0].{name} }}}}")
    assert rendered(chat(message), tokenizer) == "so"


def test_the_request_is_not_changed() -> None:
    message = user([{"type": "text", "text": "Hello"}])
    prompt = chat(message, {"role": "assistant", "content": "I am"})
    encode_prompt(tokenizers.byte_level(), prompt, VOCAB)
    assert prompt.messages == (
        user([{"type": "text", "text": "Hello"}]),
        {"role": "assistant", "content": "I am"},
    )


def test_what_a_template_can_be_told_is_found_in_its_text() -> None:
    template = (
        "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{% endif %}"
        "{%- if reasoning_effort in ['none', 'high'] or reasoning_effort == 'low' %}.{% endif %}"
        "{% for message in messages %}{{ message.thinking }}{{ 'max' }}{% endfor %}"
        "{%- if enable_thinking is defined and enable_thinking is false %}<think>{% endif %}"
    )
    encoder = PromptEncoder(with_template(template), vocab_size=VOCAB, max_model_len=LONG)
    assert encoder.template.variables == {
        "messages": frozenset(),
        "enable_thinking": frozenset(),
        "reasoning_effort": frozenset({"none", "high", "low"}),
    }
    none = PromptEncoder(with_template(None), vocab_size=VOCAB, max_model_len=LONG)
    assert none.template.variables == {}


@pytest.mark.parametrize(("kept", "expected"), [(None, 6), (9, 6), (6, 6), (2, 2), (-1, 5)])
@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_prompt_is_cut_at_its_beginning(kept: int | None, expected: int, as_tokens: bool) -> None:
    tokenizer = tokenizers.byte_level()
    text = "\x01\x02\x03\x04\x05\x06"
    whole = tuple(tokenizer.encode(text, add_special_tokens=False))
    assert len(whole) == 6
    encoder = PromptEncoder(tokenizer, vocab_size=VOCAB, max_model_len=8)
    request = GenerationRequest(
        "a", whole if as_tokens else text, SamplingParams(max_tokens=3), truncate_prompt_tokens=kept
    )
    encoder.check_size(request)
    assert encoder.encode(request) == list(whole[-expected:])


def test_what_is_truncated_may_be_longer_than_the_context_but_not_without_end() -> None:
    tokenizer = tokenizers.byte_level()
    encoder = PromptEncoder(tokenizer, vocab_size=VOCAB, max_model_len=8)

    def encode(length: int) -> list[int]:
        prompts: tuple[Prompt, ...] = ("\x01" * length, (5,) * length)
        for prompt in prompts:
            request = GenerationRequest("a", prompt, SamplingParams(), truncate_prompt_tokens=3)
            encoder.check_size(request)
            kept = encoder.encode(request)
            assert len(kept) == 3
        return kept

    encode(8 * MOST_CHARS_PER_TOKEN)
    with pytest.raises(InvalidRequestError, match="at most 512 characters to be truncated"):
        encode(8 * MOST_CHARS_PER_TOKEN + 1)


CONTINUABLE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def continued(*messages: dict[str, Any]) -> ChatPrompt:
    return ChatPrompt(messages, {"add_generation_prompt": False}, continues_final_message=True)


@pytest.mark.parametrize(
    "content", ["so", "so far ", "</>", "a</>b", [{"type": "text", "text": "x"}]]
)
def test_the_final_message_goes_on_where_it_ends(content: Any) -> None:
    tokenizer = with_template(CONTINUABLE)
    prompt = continued(user("so"), {"role": "assistant", "content": content})
    text = content if isinstance(content, str) else "x"
    assert rendered(prompt, tokenizer) == f"<user>so</><assistant>{text}"


def test_a_template_that_changes_the_final_message_can_not_continue_it() -> None:
    for template in ("{{ messages[0].content }}", "{{ messages[-1].content | length }}"):
        error = refused(with_template(template), continued(user("a"), user("b")))
        assert error.param == "continue_final_message"


STRICT = """\
{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('not here') }}{% endif -%}
{{ '[' ~ m.role ~ ':' ~ m.content ~ ']' }}
{%- endfor -%}"""
FORGETFUL = """\
{%- for m in messages -%}
{%- if m.role != 'system' or loop.first %}{{ '[' ~ m.role ~ ':' ~ m.content ~ ']' }}{% endif -%}
{%- endfor -%}"""
WITHOUT = STRICT.replace("and not loop.first", "")


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize("template", [STRICT, FORGETFUL])
def test_system_messages_stand_where_the_template_takes_them(template: str) -> None:
    tokenizer = with_template(template)
    said = {"role": "assistant", "content": "x"}
    for messages, text in (
        ([system("a"), system("b"), user("c")], "[system:a\n\nb][user:c]"),
        ([user("a"), system("b")], "[user:a\n\nb]"),
        ([user("a"), said, system("b"), user("c")], "[user:a][assistant:x][user:b\n\nc]"),
        ([user("a"), user("b")], "[user:a][user:b]"),
        ([system("a"), user("b"), system("c"), user("d")], "[system:a][user:b\n\nc\n\nd]"),
    ):
        assert rendered(chat(*messages), tokenizer) == text


def test_a_template_without_system_messages_has_them_in_the_users_turn() -> None:
    tokenizer = with_template(WITHOUT)
    assert rendered(chat(system("a"), user("b")), tokenizer) == "[user:a\n\nb]"
    assert "not here" in str(refused(tokenizer, chat(system("a"))))


def test_system_messages_stay_where_a_template_writes_them() -> None:
    tokenizer = with_template("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert rendered(chat(user("a"), system(" b "), user("c")), tokenizer) == "[a][ b ][c]"


def test_numbers_of_a_history_are_rendered_as_they_were_written() -> None:
    template = "{{ messages[0].n | tojson }} {{ messages[0].n.a }} {{ messages[0].n | tojson(2) }}"
    tokenizer = with_template(template)
    numbers = json.loads('{"a": 1e5, "b": [1.50, 2, 0.5]}', parse_float=read_number)
    message = pickle.loads(pickle.dumps(user("") | {"n": numbers}))
    text = rendered(chat(message), tokenizer)
    assert text.startswith('{"a": 1e5, "b": [1.50, 2, 0.5]} 1e5 {')
