"""``min_tokens``, ``bad_words`` and ``allowed_token_ids``, in every way of drawing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM  # isort: skip
from backend_metal.engine.grammar.restrictions import TokenRestrictions, restrictions_of
from deployments.backend import (
    Delta,
    GenerationRequest,
    InvalidRequestError,
    Prefill,
    SamplingParams,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal import tokenizers_for_tests as tokenizers
from tests.support.fuzzing import fuzz

PROMPT = list(range(1, 21))
HOW = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "truncated": {"temperature": 0.9, "top_p": 0.7},
    "candidates": {"temperature": 1.2, "top_k": 20, "min_p": 0.01},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.5, "presence_penalty": 1.0},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=128, max_num_seqs=8, max_num_batched_tokens=64)


def tokens(llm: LLM, **sampling: Any) -> list[int]:
    params = SamplingParams(**{"ignore_eos": True, "seed": 3, "max_tokens": 24} | sampling)
    (completion,) = llm.generate([PROMPT], params, show_progress=False)
    return completion.token_ids


def has(word: Sequence[int], within: Sequence[int]) -> bool:
    return any(tuple(within[at : at + len(word)]) == tuple(word) for at in range(len(within)))


@pytest.mark.parametrize("how", HOW)
def test_no_other_tokens_come(llm: LLM, how: str) -> None:
    allowed = tuple(range(60, 120, 7))
    assert not {*tokens(llm, **HOW[how])} <= {*allowed}
    drawn = tokens(llm, **HOW[how], allowed_token_ids=allowed, logprobs=5)
    assert len(drawn) == 24
    assert {*drawn} <= {*allowed}


@pytest.mark.parametrize("how", HOW)
def test_bad_words_never_come_and_nothing_changes_before_they_would(llm: LLM, how: str) -> None:
    # Whatever comes is as likely as the other tokens of a few, so that words of two are often due.
    few = {"allowed_token_ids": (65, 66, 67)}
    free = tokens(llm, **HOW[how], **few)
    word = free[4:6]
    drawn = tokens(llm, **HOW[how], **few, bad_words=(bytes(word).decode(),))
    assert not has(word, drawn)
    first = next(at for at in range(23) if free[at : at + 2] == word)
    assert drawn[: first + 1] == free[: first + 1]
    never = tokens(llm, **HOW[how], **few, bad_words=("xyz", "AX"))
    assert never == free


@pytest.mark.parametrize("how", HOW)
def test_nothing_ends_an_answer_before_its_least(llm: LLM, how: str) -> None:
    free = tokens(llm, **HOW[how])
    ends = {"stop_token_ids": tuple({*free})}
    assert len(tokens(llm, **HOW[how], **ends)) == 1
    drawn = tokens(llm, **HOW[how], **ends, min_tokens=7)
    assert len(drawn) >= 8
    assert not {*drawn[:7]} & {*free}
    assert drawn[-1] in free or len(drawn) == 24


def test_a_restricted_request_changes_no_other_and_is_the_same_beside_others(llm: LLM) -> None:
    base = {"seed": 3, "max_tokens": 24, "ignore_eos": True}
    params = [
        SamplingParams(**base, **HOW[how], **lists)
        for how in HOW
        for lists in ({}, {"allowed_token_ids": (65, 66, 70)}, {"bad_words": ("A", "BC")})
    ]
    together = llm.generate([PROMPT] * len(params), params, show_progress=False)
    for one, completion in zip(params, together, strict=True):
        (alone,) = llm.generate([PROMPT], one, show_progress=False)
        assert completion.token_ids == alone.token_ids


def test_where_no_token_is_left_one_request_ends_and_others_do_not(llm: LLM) -> None:
    engine = llm.engine
    hopeless = SamplingParams(
        max_tokens=9, allowed_token_ids=(65, 66), bad_words=("AA", "AB", "BA", "BB"), seed=1
    )
    fine = SamplingParams(max_tokens=9, ignore_eos=True, seed=1)
    for name, params in (("hopeless", hopeless), ("fine", fine)):
        request = GenerationRequest(name, tuple(PROMPT), params)
        engine.add_request(request, PROMPT)
    ended: dict[str, Any] = {}
    while engine.has_work:
        for output in engine.step():
            if not isinstance(output.item, Prefill):
                ended[output.request_id] = output.item
        engine.check_integrity()
    assert isinstance(ended["hopeless"], InvalidRequestError)
    assert "leave no token" in str(ended["hopeless"])
    assert isinstance(ended["fine"], Delta)
    assert ended["fine"].finish_reason == "length"


@pytest.mark.parametrize("how", ["greedy", "plain"])
def test_an_answer_of_no_tokens_is_its_prompt_computed(llm: LLM, how: str) -> None:
    llm.reset_prefix_cache()
    before = llm.stats()
    (none,) = llm.generate([PROMPT], SamplingParams(**HOW[how], max_tokens=0), show_progress=False)
    assert (none.token_ids, none.text, none.finish_reason) == ([], "", "length")
    assert none.num_prompt_tokens == len(PROMPT)
    after = llm.stats()
    assert after.generation_tokens == before.generation_tokens
    assert after.prompt_tokens == before.prompt_tokens + len(PROMPT)
    (cached,) = llm.generate([PROMPT], SamplingParams(max_tokens=1), show_progress=False)
    assert cached.num_cached_tokens == 16


def test_without_lists_there_is_nothing_to_do() -> None:
    sampling = SamplingParams(stop_token_ids=(1,))
    assert restrictions_of(sampling, list, vocab_size=9, end_token_ids={1}) is None


def test_words_are_told_apart_by_how_they_begin_a_text_and_follow_a_blank() -> None:
    tokenizer = tokenizers.byte_level()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    vocab_size = len(tokenizer)
    restrictions = restrictions_of(
        SamplingParams(bad_words=(" the",)), encode, vocab_size=vocab_size, end_token_ids=()
    )
    assert restrictions is not None
    for text in ("the", " the"):
        ids = encode(text)
        row = np.full(-(-vocab_size // 32), -1, np.int32)
        restrictions.restrict(row, np.array(ids[:-1], np.int32))
        assert ids[-1] not in allowed_by(row, vocab_size), text


VOCAB = 70
ids = st.integers(0, VOCAB - 1)


def allowed_by(row: np.ndarray, vocab_size: int) -> set[int]:
    words = row.view(np.uint32).tolist()
    return {i for i in range(vocab_size) if words[i // 32] >> (i % 32) & 1}


@fuzz(300)
@given(
    allowed=st.none() | st.sets(ids, min_size=1),
    bad_words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=5),
    min_tokens=st.integers(0, 4),
    ends=st.sets(ids, max_size=3),
    output=st.lists(st.integers(0, 2), max_size=6),
)
def test_masks_leave_what_the_lists_say(
    allowed: set[int] | None,
    bad_words: list[tuple[int, ...]],
    min_tokens: int,
    ends: set[int],
    output: list[int],
) -> None:
    restrictions = TokenRestrictions(
        vocab_size=VOCAB,
        allowed=allowed,
        bad_words=bad_words,
        min_tokens=min_tokens,
        end_token_ids=ends,
    )
    left = {
        token
        for token in range(VOCAB)
        if (allowed is None or token in allowed)
        and not (token in ends and len(output) < min_tokens)
        and not any((*output, token)[-len(word) :] == word for word in bad_words)
    }
    row = np.full(-(-VOCAB // 32), -1, np.int32)
    so_far = np.array(output, np.int32)
    restrictions.restrict(row, so_far)
    assert allowed_by(row, VOCAB) == left
    for token in range(VOCAB):
        if token in left:
            restrictions.check(token, so_far)
        else:
            with pytest.raises(InvalidRequestError):
                restrictions.check(token, so_far)
