"""What is read of a step: each row gets what it asked for, whoever is beside it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.engine.draws import StepDraws
from backend_metal.engine.sampling.batch import RowOptions, SamplingRow, build_sampling_batch
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.sampler import sample
from backend_metal.engine.schedule.step import TokenDraw
from deployments.backend import SamplingParams

VOCAB_SIZE = 50


def read(asked: list[int | None], logits: mx.array) -> list[TokenDraw]:
    params = [SamplingParams(temperature=0.0, logprobs=logprobs) for logprobs in asked]
    rows = RowOptions([SamplingRow(one, seed=0) for one in params], VOCAB_SIZE)
    sampled = sample(logits, build_sampling_batch(rows, np.arange(len(asked))), draw_by_graph)
    return StepDraws(rows, sampled, None, []).wait()


@pytest.mark.parametrize(
    "asked", [[None, None], [None, 2, None, 0, 3, None], [0, None], [None, 1], [4]]
)
def test_each_row_gets_the_logprobs_that_it_asked_for(asked: list[int | None]) -> None:
    values = np.random.default_rng(3).normal(0, 2, (len(asked), VOCAB_SIZE)).astype(np.float32)
    exact = values - np.log(np.exp(values.astype(np.float64)).sum(1, keepdims=True))
    for draw, logprobs, of_row in zip(read(asked, mx.array(values)), asked, exact, strict=True):
        best = np.argsort(-of_row)
        assert draw.token_id == best[0]
        if logprobs is None:
            assert (draw.logprob, draw.top) == (None, ())
        else:
            assert draw.logprob == pytest.approx(of_row[best[0]], abs=1e-5)
            assert [token for token, _ in draw.top] == best[:logprobs].tolist()
            told = [value for _, value in draw.top]
            assert told == pytest.approx(of_row[best[:logprobs]], abs=1e-5)
