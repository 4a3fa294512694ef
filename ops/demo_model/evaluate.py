"""Asks a trained folder questions and judges the greedy answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import batch_generate, load

from ops.demo_model.corpus import Message
from ops.demo_model.held_out import HELD_OUT, Case

_MAX_TOKENS = 400
_BATCH_SIZE = 32
_WHOLE = re.compile(r"[A-Z0-9].*[.!?]\"?", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    text: str
    finished: bool
    """The model ended the answer itself."""


def load_float32(directory: Path) -> tuple[Any, Any]:
    """The model and tokenizer of ``directory``, in the dtype that a CPU computes fastest."""
    model, tokenizer = load(str(directory))[:2]
    model.set_dtype(mx.float32)
    return model, tokenizer


def answers(model: Any, tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> list[Answer]:
    """The greedy answer to the last message of each conversation."""
    prompts = [
        tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=True)
        for messages in conversations
    ]
    return complete(model, tokenizer, prompts)


def complete(model: Any, tokenizer: Any, prompts: Sequence[list[int]]) -> list[Answer]:
    """The greedy continuation of each prompt of token ids."""
    response = batch_generate(
        model,
        tokenizer,
        list(prompts),
        max_tokens=_MAX_TOKENS,
        return_token_ids=True,
        completion_batch_size=_BATCH_SIZE,
    )
    return [
        Answer(text, len(ids) < _MAX_TOKENS)
        for text, ids in zip(response.texts, response.token_ids, strict=True)
    ]


def is_right(case: Case, answer: Answer) -> bool:
    """Whether ``answer`` says what it has to, in whole sentences, and ends."""
    return (
        answer.finished
        and _WHOLE.fullmatch(answer.text) is not None
        and all(re.search(expected, answer.text, re.IGNORECASE) for expected in case.expect)
    )


def evaluate(
    directory: Path, cases: Sequence[Case] = HELD_OUT
) -> tuple[int, list[tuple[Case, Answer]]]:
    """How many of ``cases`` the model answers rightly, and the others with its answers."""
    model, tokenizer = load_float32(directory)
    given = answers(model, tokenizer, [case.messages for case in cases])
    wrong = [
        (case, answer)
        for case, answer in zip(cases, given, strict=True)
        if not is_right(case, answer)
    ]
    return len(cases) - len(wrong), wrong
