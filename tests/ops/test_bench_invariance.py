"""The benchmark of batch invariance: what it counts, and a run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_metal import LLM, Completion  # isort: skip
from deployments.backend import TokenLogprob
from ops.bench.invariance.__main__ import WAYS, Count, Measured, measure, report
from tests.support.backend_metal import tiny_models

pytestmark = pytest.mark.serve


def answer(tokens: list[int], logprob: float = -1.0) -> Completion:
    return Completion(tokens, logprobs=[TokenLogprob(one, "", b"", logprob) for one in tokens])


@pytest.mark.parametrize(
    ("alone", "among", "alike"), [([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 4, 3], 1), ([], [], 0)]
)
def test_tokens_are_alike_up_to_the_first_that_differs(
    alone: list[int], among: list[int], alike: int
) -> None:
    count = Count()
    count.add(answer(alone), answer(among))
    assert (count.trials, count.tokens_alike) == (1, alike)
    assert count.differing == (alike < len(alone))
    assert count.differing_bits == 0


def test_a_bit_of_a_logprob_counts() -> None:
    count = Count()
    count.add(answer([1, 2], -1.0), answer([1, 2], -1.0000001))
    assert (count.differing, count.differing_bits) == (0, 1)


@pytest.mark.exhaustive
def test_a_request_has_the_same_tokens_alone_and_in_a_crowd(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    llms = {
        name: LLM(
            str(tmp_path),
            max_num_seqs=8,
            max_num_batched_tokens=9,
            num_kv_blocks=64,
            deterministic=name == "deterministic",
        )
        for name in ("as it is", "deterministic")
    }
    measured = measure(llms, 4, 6, 8)
    for one in measured.values():
        assert {way: (count.trials, count.differing) for way, count in one.counts.items()} == (
            dict.fromkeys(WAYS, (4, 0))
        )
    assert not any(one.differing_bits for one in measured["deterministic"].counts.values())


def test_a_report() -> None:
    count = Count(trials=4, differing=1, differing_bits=2, tokens_alike=30)
    measured = {"as it is": Measured({"greedy": count}, crowd_tokens=60, crowd_s=2.0)}
    assert "| as it is, greedy | 4 | 1 | 2 | 7.5 of 8 | 30.0 |" in report(measured, 6, 8)
