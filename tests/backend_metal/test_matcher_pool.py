"""Matchers that take their tokens and fill their masks together are where each would be alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend_metal import LLM  # isort: skip
from backend_metal.engine.grammar.compiler import GrammarCompiler
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from deployments.backend import Grammar, InvalidRequestError, SamplingParams, Thoughts
from tests.support.backend_metal import tiny_models

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar("json_schema", json.dumps(SCHEMA)),
    Grammar("regex", "[a-z]{1,20}( [a-z]+)*"),
    Grammar("grammar", 'start: TEXT "<call>" /[0-9]+/\nTEXT: /[^<]*/'),
]
WIDTH = -(-tiny_models.VOCAB_SIZE // 32)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=256, max_num_seqs=8, max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def compiler(llm: LLM) -> GrammarCompiler:
    return llm.engine.grammars


def mask_of(matcher: GrammarMatcher) -> np.ndarray:
    # Of the tokenizer's tokens, without what may be behind them.
    return np.frombuffer(matcher.native.compute_bitmask(), np.int32)[:WIDTH]


def allowed(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("are_copies", [False, True])
def test_together_as_alone(compiler: GrammarCompiler, num_threads: int, are_copies: bool) -> None:
    pool = MatcherPool(num_threads)
    random = np.random.default_rng(0)
    one_of_each = [compiler.compile(grammar) for grammar in GRAMMARS]
    together = [
        one.copy() if are_copies else compiler.compile(grammar)
        for grammar, one in zip(GRAMMARS, one_of_each, strict=True)
        for _ in range(4)
    ]
    alone = [compiler.compile(grammar) for grammar in GRAMMARS for _ in range(4)]
    for _ in range(12):
        running = [row for row, one in enumerate(alone) if not one.is_complete]
        words = np.zeros((len(together), WIDTH), np.int32)
        pool.fill([(together[row], row) for row in running], words)
        drawn = []
        for row in running:
            assert np.array_equal(words[row], mask_of(alone[row]))
            drawn.append((row, int(random.choice(allowed(words[row])))))
        pool.take([(together[row], token_id) for row, token_id in drawn])
        for row, token_id in drawn:
            together[row].advance(token_id)
            alone[row].advance(token_id)
            assert together[row].is_complete == alone[row].is_complete
            assert together[row].forced() == alone[row].forced()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_one_that_can_not_take_its_token_fails_alone(
    compiler: GrammarCompiler, num_threads: int
) -> None:
    well, ill, other = (compiler.compile(GRAMMARS[1]) for _ in range(3))
    pool = MatcherPool(num_threads)
    pool.take([(well, ord("a")), (ill, ord("A")), (other, ord("b"))])
    well.advance(ord("a"))
    with pytest.raises(InvalidRequestError, match="can't be held to grammar"):
        ill.advance(ord("A"))
    other.advance(ord("b"))
    assert [one.has_failed for one in (well, ill, other)] == [False, True, False]


def test_what_was_taken_is_not_taken_twice(compiler: GrammarCompiler) -> None:
    digits = Grammar("regex", "12345")
    first, second = compiler.compile(digits), compiler.compile(digits)
    pool = MatcherPool(2)
    for token_id in b"1234":
        pool.take([(first, token_id), (second, token_id)])
        first.advance(token_id)
        second.advance(token_id)
    assert not first.is_complete
    first.advance(ord("5"))
    assert first.is_complete


def test_nothing_to_do_is_done() -> None:
    words = np.zeros((0, 9), np.int32)
    MatcherPool(3).take([])
    MatcherPool(3).fill([], words)
    MatcherPool()


WAYS: list[dict[str, Any]] = [
    {"grammar": GRAMMARS[0]},
    {"grammar": GRAMMARS[0], "logprobs": 1},
    {"grammar": GRAMMARS[1], "stop_token_ids": (ord("e"), ord("t"))},
    {"grammar": GRAMMARS[2], "logit_bias": {ord("<"): 3.0}},
    {"thoughts": Thoughts("<think>", "</think>", budget=3), "grammar": GRAMMARS[1]},
    {},
    {"bad_words": ("b",)},
]


def test_answers_are_those_of_a_pool_of_one_thread(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some end in the step in which others begin, jump, stop or are cut."""
    sampling = [
        SamplingParams(**{"max_tokens": 14 + seed, "seed": seed, **how})
        for seed in range(3)
        for how in WAYS
    ]
    prompts = [[*b"a: <think>"][: 1 + index % 10] for index in range(len(sampling))]
    drawn = []
    for num_threads in (1, 3):
        pool = MatcherPool(num_threads)
        monkeypatch.setattr(llm.engine, "_matchers", pool)
        monkeypatch.setattr(llm.engine._pipeline.runner._filler, "_pool", pool)  # type: ignore[attr-defined]
        answers = llm.generate(prompts, sampling, show_progress=False)
        drawn.append([(one.token_ids, one.text, one.finish_reason) for one in answers])
        llm.engine.check_integrity()
    assert drawn[0] == drawn[1]
    assert len({text for _, text, _ in drawn[0]}) > len(WAYS)
