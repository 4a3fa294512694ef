"""The demo model's training text and tokenizer: repeatable, and without the held-out questions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer

from deployments.protocol.chat_formats.detect import detect
from deployments.protocol.chat_formats.events import Text
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.reader import AnswerReader
from ops.demo_model.corpus import Document, generate, normalise
from ops.demo_model.dataset import pack
from ops.demo_model.grammar import expand
from ops.demo_model.held_out import HELD_OUT
from ops.demo_model.phrasing import disguise
from ops.demo_model.tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    segments,
    train_tokenizer,
)
from ops.demo_model.train import TOKENIZER_DOCUMENTS
from ops.demo_model.writing import poem
from tests.support.deployments.chat_answers import parts_of
from tests.support.fuzzing import fuzz

pytestmark = pytest.mark.serve

DEMO = Path(__file__).parents[2] / "backend_metal" / "models" / "demo"
CORPUS_SHA256 = "476a4878d6399b8cb654ce9f3e0dce51cf914a5503bc6080993183bc52c6938f"


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(generate(TOKENIZER_DOCUMENTS))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def conversation(documents: list[Document]) -> Document:
    return max(documents[:200], key=lambda document: len(document.messages))


def test_the_seed_fixes_every_byte_of_the_corpus(documents: list[Document]) -> None:
    text = "\n".join(repr(asdict(document)) for document in documents[:2000])
    assert hashlib.sha256(text.encode()).hexdigest() == CORPUS_SHA256


def test_a_longer_corpus_begins_with_a_shorter_one(documents: list[Document]) -> None:
    assert list(generate(50)) == documents[:50]
    assert list(generate(50, seed=1)) != documents[:50]


def test_the_committed_tokenizer_is_the_one_that_the_corpus_gives(
    documents: list[Document],
) -> None:
    trained = train_tokenizer(documents).to_str(pretty=True)
    assert trained == (DEMO / "tokenizer.json").read_text(encoding="utf-8")


def test_held_out_questions_are_not_in_the_training_text(documents: list[Document]) -> None:
    held_out = {normalise(case.messages[-1]["content"]) for case in HELD_OUT}
    asked = {
        normalise(message["content"])
        for document in documents
        for message in document.messages
        if message["role"] == "user"
    } | {normalise(document.prompt) for document in documents}
    assert len(held_out) >= 60
    assert len(asked) > TOKENIZER_DOCUMENTS
    assert not held_out & asked


@fuzz(200)
@given(st.integers(0, 2**32))
def test_a_disguise_leaves_alone_what_the_answer_repeats(seed: int) -> None:
    rng = Random(seed)
    exchange = poem(rng)
    question = disguise(exchange, rng)
    assert all(words.lower() in question.lower() for words in exchange.verbatim)


def test_patterns_choose_and_fold_spaces() -> None:
    made = {expand("[a|the [big|] dog] [runs|], ok", Random(seed)) for seed in range(200)}
    assert made == {"a runs, ok", "a, ok"} | {
        f"the {dog}{runs}, ok" for dog in ("big dog", "dog") for runs in (" runs", "")
    }


def test_training_text_is_what_the_chat_template_makes(
    documents: list[Document], tokenizer: Tokenizer
) -> None:
    chat = load_tokenizer(DEMO)
    for document in documents[:100]:
        if not document.messages:
            continue
        pieces = segments(document)
        text = chat.apply_chat_template(list(document.messages), tokenize=False)
        assert "".join(piece for piece, _ in pieces) == text
        ids = [i for piece, _ in pieces for i in tokenizer.encode(piece).ids]
        assert ids == tokenizer.encode(text).ids == chat.encode(text)


def test_the_template_asks_for_an_answer_and_refuses_other_roles() -> None:
    chat = load_tokenizer(DEMO)
    hello = {"role": "user", "content": "Hello"}
    prompt = chat.apply_chat_template([hello], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(TemplateError, match=r"messages\[1\]\.role must be .* not 'critic'"):
        chat.apply_chat_template([hello, {"role": "critic", "content": "4"}], tokenize=False)


@pytest.mark.parametrize("system", ["Be kind.", None])
def test_the_template_writes_tools_calls_and_results_as_hermes_does(system: str | None) -> None:
    chat = load_tokenizer(DEMO)
    assert json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"] == (
        CHAT_TEMPLATE
    )
    assert detect(CHAT_TEMPLATE, {}) == "hermes"
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
    calls = [{"function": {"name": "f", "arguments": {"a": text}}} for text in ("é <b>", "2")]
    text = chat.apply_chat_template(
        [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Wait.", "tool_calls": calls[:1]},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "tool_calls": calls},
        ],
        tools=[{"type": "function", "function": function}],
        tokenize=False,
    )
    _, begin, _, wait, result, two = text.split("<|im_start|>")
    assert begin.startswith(f"system\n{system}\n\n# Tools" if system else "system\n# Tools")
    listed = begin.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert json.loads(listed)["function"] == function
    assert result == "user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
    for turn, said, written in ((wait, "Wait.", calls[:1]), (two, "", calls)):
        reader = AnswerReader(FORMATS["hermes"])
        answer = turn.removeprefix("assistant\n").removesuffix("<|im_end|>\n")
        found, texts = parts_of([*reader.feed(answer), *reader.finish()])
        assert texts[Text] == said
        assert [{"function": {"name": n, "arguments": json.loads(a)}} for n, a in found] == written


@fuzz(100)
@given(text=st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_model_learns_to_write_answers_and_their_end_alone(
    documents: list[Document], tokenizer: Tokenizer
) -> None:
    document = conversation(documents)
    rows = pack([document], tokenizer, 2048)
    learned = tokenizer.decode(rows.tokens[rows.targets].tolist(), skip_special_tokens=False)
    answers = [m["content"] for m in document.messages if m["role"] == "assistant"]
    assert len(answers) > 4
    assert learned == "".join(answer + IM_END for answer in answers)


def test_packing_keeps_documents_whole_and_apart(
    documents: list[Document], tokenizer: Tokenizer
) -> None:
    length = 256
    encoded = [
        [i for piece, _ in segments(document) for i in tokenizer.encode(piece).ids]
        for document in documents[:100]
    ]
    rows = pack(documents[:100], tokenizer, length)
    packed = [
        row[numbers == number].tolist()
        for row, numbers in zip(rows.tokens, rows.documents, strict=True)
        for number in range(1, numbers.max() + 1)
    ]
    assert packed == [ids for ids in encoded if len(ids) <= length]
    assert len(packed) < len(encoded)
    assert not rows.targets[rows.documents == 0].any()


def test_batches_repeat_cover_an_epoch_and_spoil_prompts_alone(
    documents: list[Document], tokenizer: Tokenizer
) -> None:
    rows = pack(documents[:300], tokenizer, 512)
    steps = len(rows.tokens)
    batches = list(rows.batches(1, steps, seed=3))
    again = list(rows.batches(1, steps, seed=3))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(batches, again, strict=True))
    targets = sorted(batch.targets[0].tobytes() for batch in batches)
    assert targets == sorted(row.tobytes() for row in rows.targets)
    spoiled = 0
    for batch in islice(batches, steps):
        row = next(
            i
            for i, numbers in enumerate(rows.documents)
            if np.array_equal(numbers, batch.documents[0])
            and np.array_equal(rows.targets[i], batch.targets[0])
        )
        changed = rows.tokens[row] != batch.tokens[0]
        assert not (changed & (rows.targets[row] | (rows.documents[row] == 0))).any()
        spoiled += int(changed.sum())
    assert spoiled > 0


def test_plain_text_ends_with_its_own_token(documents: list[Document]) -> None:
    plain = [document for document in documents if not document.messages]
    assert 0.1 < len(plain) / len(documents) < 0.2
    assert all(segments(document)[-1] == (document.text + END_OF_TEXT, True) for document in plain)
