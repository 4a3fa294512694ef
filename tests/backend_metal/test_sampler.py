"""The sampler against a float64 oracle, its distribution, and its independence of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.device import device_on
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import Draw, own_kernel
from backend_metal.engine.sampling.noise import draw_keys, gumbel
from backend_metal.engine.sampling.sampler import Sampled, sample
from backend_metal.engine.sampling.truncation import top_tokens
from deployments.backend import SamplingParams
from tests.support.backend_metal.draw_oracle import (
    Case,
    Row,
    batch_of,
    cases,
    check,
    check_broken,
    check_equals,
    make_logits,
    make_row,
    oracle_scores,
    params_strategy,
)
from tests.support.fuzzing import fuzz

CHUNKED_VOCAB = 9001


class Way:
    """To draw, that is tested just now."""

    draw: Draw


@pytest.fixture(params=["kernel", "graph"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> None:
    kernel = own_kernel(device_on(mx.default_device()))
    assert kernel is not None
    Way.draw = staticmethod(kernel if request.param == "kernel" else draw_by_graph)


def draw(logits: mx.array, rows: Sequence[Row]) -> list[int]:
    return list(sample_rows(logits, rows).token_ids.tolist())


def sample_rows(logits: mx.array, rows: Sequence[Row]) -> Sampled:
    return sample(logits, batch_of(rows, logits.shape[1]), Way.draw)


@fuzz(100)
@given(case=cases([40, 300, CHUNKED_VOCAB]))
def test_draws_match_the_oracle(case: Case) -> None:
    check(Way.draw, case)


def test_of_equal_logits_the_lowest_ids_are_kept() -> None:
    check_equals(Way.draw, 2000)


def test_logits_that_are_no_numbers_end_in_some_token() -> None:
    check_broken(Way.draw)


@pytest.mark.parametrize("top_k", [0, 50, 200], ids=["whole", "candidates", "large top_k"])
def test_frequencies_follow_the_probabilities(top_k: int) -> None:
    num_draws, vocab_size = 6000, 300
    params = SamplingParams(temperature=1.9, top_p=0.9, top_k=top_k, min_p=0.001)
    row = make_logits(1, vocab_size, seed=3)
    rows = [make_row(params, seed=11, position=i) for i in range(num_draws)]
    tokens = draw(mx.broadcast_to(row, (num_draws, vocab_size)), rows)

    z, before = oracle_scores(np.array(row, np.float64)[0], rows[0])
    probabilities = np.where(before < params.top_p, np.exp(z), 0.0)
    expected = num_draws * probabilities / probabilities.sum()
    observed = np.bincount(tokens, minlength=vocab_size)
    assert observed[expected == 0.0].sum() == 0
    likely = expected >= 5
    chi_square = ((observed - expected)[likely] ** 2 / expected[likely]).sum()
    degrees = likely.sum() - 1
    assert degrees > 10
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_noise_reaches_rare_tokens() -> None:
    """Float32 uniforms near 1 end at 2**-24; a naive Gumbel would never exceed 16.7."""
    u = mx.array([0.0, 2.0**-32, 1e-7, 1e-3, 0.5, 1.0 - 2.0**-24], mx.float32)
    exact = np.maximum(np.array(u, np.float64), 2.0**-33)
    np.testing.assert_allclose(np.array(gumbel(u)), -np.log(-np.log1p(-exact)), rtol=2e-6)


def test_streams_of_seeds_and_positions_differ() -> None:
    seeds, positions = np.meshgrid(np.arange(-50, 50), np.arange(100))
    keys = draw_keys(seeds.ravel(), positions.ravel())
    assert keys.dtype == np.uint32
    assert len(np.unique(keys, axis=0)) == 10_000
    # As bits, neighbours are unrelated: half of the 64 differ on average.
    bits = np.unpackbits(keys.view(np.uint8), axis=1).reshape(100, 100, 64).astype(np.int8)
    for axis in (0, 1):
        assert abs(np.diff(bits, axis=axis).astype(bool).mean() - 0.5) < 0.01


@fuzz(25)
@given(
    params=st.lists(
        st.one_of(params_strategy, st.just(SamplingParams(temperature=0.0))),
        min_size=2,
        max_size=8,
    ),
    vocab_size=st.sampled_from([40, 301, CHUNKED_VOCAB]),
    ties=st.booleans(),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_row_is_the_same_alone_and_in_any_batch(
    params: list[SamplingParams], vocab_size: int, ties: bool, shuffle: st.DataObject
) -> None:
    logits = make_logits(len(params), vocab_size, seed=5, ties=ties)
    rows = [make_row(p, 100 + i, i, [1, 2, 3], [3, 4, i]) for i, p in enumerate(params)]
    rows = [replace(row, params=replace(row.params, logprobs=i % 4)) for i, row in enumerate(rows)]
    together = sample_rows(logits, rows)
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    shuffled = sample_rows(logits[mx.array(order)], [rows[i] for i in order])
    for place, i in enumerate(order):
        alone = sample_rows(logits[i : i + 1], [rows[i]])
        k = rows[i].params.logprobs or 0
        assert bits(alone, 0, k) == bits(together, i, k) == bits(shuffled, place, k)


def bits(sampled: Sampled, row: int, k: int) -> tuple[object, ...]:
    assert sampled.logprobs is not None
    top: tuple[object, ...] = ()
    if k:
        assert sampled.top_token_ids is not None
        assert sampled.top_logprobs is not None
        top = (sampled.top_token_ids[row, :k].tolist(), sampled.top_logprobs[row, :k].tolist())
    return sampled.token_ids[row].item(), sampled.logprobs[row].item(), *top


def test_truncation_does_not_move_the_noise() -> None:
    """A token that wins among all still wins among the top k, if it is one of them."""
    logits = make_logits(1, CHUNKED_VOCAB, seed=7) * 1.5
    ranks = np.argsort(np.argsort(-np.array(logits)[0]))
    compared = 0
    for position in range(20):
        winner = draw(logits, [make_row(SamplingParams(), 3, position)])[0]
        for top_k in (4000, 128, 20):
            if ranks[winner] < top_k:
                row = make_row(SamplingParams(top_k=top_k), 3, position)
                assert draw(logits, [row]) == [winner]
                compared += 1
    assert compared > 30


def test_stages_that_are_off_change_no_bit() -> None:
    """Rows with every stage off, beside rows with every stage on, keep their bits."""
    logits = make_logits(4, 500, seed=9)
    off = make_row(SamplingParams(logprobs=2), 1, 1, [5], [6, 6])
    on = SamplingParams(
        temperature=0.5,
        top_p=0.5,
        top_k=400,
        min_p=0.01,
        repetition_penalty=1.7,
        presence_penalty=1.0,
        frequency_penalty=0.3,
        logit_bias={6: 4.0, 499: -9.0},
        logprobs=0,
    )
    mixed = [off, make_row(on, 2, 2, [5], [6]), off, make_row(replace(on, top_k=7), 3, 3, [5], [6])]
    together = sample_rows(logits, mixed)
    alone = sample_rows(logits, [off] * 4)
    for row in (0, 2):
        assert bits(together, row, 2) == bits(alone, row, 2)


def test_resuming_continues_with_the_same_tokens() -> None:
    """Logits are a function of the context, as a model's are; the draw follows (seed, position)."""
    vocab_size = 200
    params = SamplingParams(temperature=1.3, top_p=0.95, frequency_penalty=0.5)
    table = np.random.default_rng(1).normal(0, 2, (vocab_size, vocab_size)).astype(np.float32)

    def generate(context: list[int], num_prompt_tokens: int, total: int) -> list[int]:
        context = list(context)
        while len(context) < total:
            prompt, output = context[:num_prompt_tokens], context[num_prompt_tokens:]
            row = make_row(params, -77, len(context), prompt, output)
            context += draw(mx.array(table[context[-1]][None]), [row])
        return context

    whole = generate([3, 4], 2, 60)
    assert len(set(whole)) > 10
    for stop in (3, 17, 59):
        assert generate(whole[:stop], 2, 60) == whole


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_greedy_is_argmax_with_ties_to_the_lower_id(dtype: mx.Dtype) -> None:
    logits = mx.array([[0.0, 2.0, 2.0, 1.0], [5.0, -1.0, 5.0, 5.0]], dtype)
    for params in (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-9),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-60),
        SamplingParams(top_p=1e-60, top_k=3),
    ):
        assert draw(logits, [make_row(params)] * 2) == [1, 0]


def test_penalties_and_bias_apply_to_greedy_rows() -> None:
    logits = mx.array([[3.0, 2.0, 1.0, -1.0]] * 5)
    greedy = SamplingParams(temperature=0.0)
    rows = [
        make_row(replace(greedy, repetition_penalty=2.0), prompt=[0]),
        make_row(replace(greedy, presence_penalty=1.5), prompt=[0], output=[1]),
        make_row(replace(greedy, presence_penalty=1.5), prompt=[1], output=[0]),
        make_row(replace(greedy, frequency_penalty=0.8), output=[0, 0, 1]),
        make_row(replace(greedy, logit_bias={3: 4.5}), output=[0]),
    ]
    assert draw(logits, rows) == [1, 0, 1, 0, 3]
    rows[3] = make_row(replace(greedy, frequency_penalty=0.8), output=[0, 0])
    assert draw(logits, rows) == [1, 0, 1, 1, 3]


def test_token_ids_outside_the_vocabulary_have_no_effect() -> None:
    logits = make_logits(2, 50)
    params = SamplingParams(
        logit_bias={50: 100.0, 10**30: 100.0, -1: 100.0},
        repetition_penalty=1.5,
        presence_penalty=1.0,
    )
    rows = [make_row(params, 1, 1, [60], [50, 51]), make_row(params, 2, 2, [], [])]
    plain = [make_row(SamplingParams(), 1, 1), make_row(SamplingParams(), 2, 2)]
    assert draw(logits, rows) == draw(logits, plain)


def test_logprobs_are_the_models_own_of_the_rows_that_ask() -> None:
    vocab_size = CHUNKED_VOCAB
    logits = make_logits(4, vocab_size, seed=2).astype(mx.bfloat16)
    params = SamplingParams(temperature=0.3, top_k=3, logit_bias={7: 50.0}, logprobs=5)
    no_logprobs = make_row(SamplingParams())
    rows = [make_row(params), no_logprobs, make_row(replace(params, logprobs=20)), no_logprobs]
    sampled = sample_rows(logits, rows)
    asking = [0, 2]
    assert sampled.token_ids[mx.array(asking)].tolist() == [7, 7]
    assert sampled.logprobs is not None
    assert sampled.top_token_ids is not None
    assert sampled.top_logprobs is not None

    exact = np.array(logits.astype(mx.float32), np.float64)[asking]
    logprobs = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(np.array(sampled.top_token_ids), order)
    np.testing.assert_allclose(
        np.array(sampled.top_logprobs), np.take_along_axis(logprobs, order, 1), atol=1e-5
    )
    np.testing.assert_allclose(np.array(sampled.logprobs), logprobs[:, 7], atol=1e-5)


@pytest.mark.parametrize("logprobs", [None, 0])
def test_arrays_that_nobody_asked_for_are_none(logprobs: int | None) -> None:
    sampled = sample_rows(make_logits(1, 10), [make_row(SamplingParams(logprobs=logprobs))])
    assert (sampled.logprobs is None) == (logprobs is None)
    assert sampled.top_token_ids is None
    assert sampled.top_logprobs is None


@pytest.mark.parametrize("vocab_size", [100, 128 * 64 + 1, 128 * 96])
def test_top_tokens_break_ties_by_id(vocab_size: int) -> None:
    logits = make_logits(4, vocab_size, seed=8, ties=True)
    expected = np.argsort(-np.array(logits), axis=1, kind="stable")
    for count in (1, 20, 100):
        assert top_tokens(logits, count).tolist() == expected[:, :count].tolist()


def test_extreme_logits_still_give_a_token_that_is_allowed() -> None:
    logits = np.full((3, 5000), -np.inf, np.float32)
    logits[0, 4321] = 1e30
    logits[1, [17, 4000]] = -1e30
    logits[2] = 0.0
    for params in (
        SamplingParams(),
        SamplingParams(top_p=0.9, min_p=0.5),
        SamplingParams(top_k=100, top_p=0.9),
        SamplingParams(top_k=1000, temperature=1e-4),
    ):
        tokens = draw(mx.array(logits), [make_row(params, seed) for seed in range(3)])
        assert tokens[0] == 4321
        assert tokens[1] in (17, 4000)
        assert 0 <= tokens[2] < 5000


def test_wrong_shape_is_refused() -> None:
    batch = batch_of([make_row(SamplingParams())], 10)
    with pytest.raises(ValueError, match=r"logits must be \(1, 10\), not \(2, 10\)"):
        sample(mx.zeros((2, 10)), batch, Way.draw)
