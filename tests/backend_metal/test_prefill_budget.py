"""Prompts share what a step can compute: nobody's short prompt waits for another's long one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.engine.schedule.prefill_budget import divide
from backend_metal.engine.schedule.sequence import Sequence, Status
from deployments.backend import SamplingParams
from tests.support.backend_metal.scheduler_harness import Harness, output, scheduled
from tests.support.backend_metal.stub_runner import expected_tokens
from tests.support.fuzzing import fuzz

LONG = list(range(50)) * 40


def made(**settings: Any) -> Harness:
    return Harness(**{"num_blocks": 4096, "max_num_batched_tokens": 64, **settings})


@pytest.mark.parametrize("num_long", [1, 8, 20])
@pytest.mark.parametrize("tenant", ["long", "short"], ids=["one key", "two keys"])
def test_a_short_prompt_waits_for_no_long_one(tenant: str, num_long: int) -> None:
    harness = made(max_num_seqs=32, checks=False)
    for number in range(num_long):
        harness.add([number, *LONG], tenant="long")
    for _ in range(3):
        harness.step()
    short = harness.add([7] * 20, tenant=tenant)
    harness.step()
    assert short.num_output_tokens == 1
    harness.run()
    assert output(short) == expected_tokens([7] * 20, 4, 50)


def test_a_step_of_a_few_tokens_is_shared_as_well() -> None:
    harness = made(max_num_seqs=4, max_num_batched_tokens=5)
    harness.add(LONG, tenant="long")
    harness.step()
    short = harness.add([7] * 5, tenant="short")
    for _ in range(3):
        harness.step()
    assert short.num_output_tokens == 1


def test_weights_divide_what_two_tenants_both_want() -> None:
    harness = made()
    light, heavy = harness.add(LONG, tenant="a"), harness.add(LONG[::-1], tenant="b", weight=3.0)
    assert scheduled(harness.step()) == [(light, 16), (heavy, 48)]


def test_prompts_of_one_request_count_together() -> None:
    harness = made()
    first = harness.add(LONG, group="two prompts")
    second = harness.add([1, *LONG[:99]], group="two prompts")
    other = harness.add(LONG[:500])
    assert scheduled(harness.step()) == [(first, 8), (other, 56)]
    assert second.status is Status.WAITING


def test_equal_prompts_are_computed_one_after_another() -> None:
    harness = made(max_num_seqs=32)
    prompts = [harness.add([number] * 80, max_tokens=1) for number in range(10)]
    finished: list[Sequence] = []
    while harness.scheduler.has_work:
        parts = [count for _, count in scheduled(harness.step())]
        assert len(parts) <= 2
        assert sum(parts) == 64 or not harness.scheduler.has_work
        finished += [p for p in prompts if p.status is Status.FINISHED and p not in finished]
    assert finished == prompts


def test_a_long_prompt_goes_on_however_many_short_ones_come() -> None:
    harness = made(max_num_seqs=16)
    long = harness.add(LONG, tenant="a")
    harness.step()
    for number in range(20):
        for place in range(4):
            harness.add([number, place] * 20, max_tokens=1, tenant="a")
        before = long.num_computed_tokens
        harness.step()
        assert long.num_computed_tokens - before >= 64 // 8


def test_a_step_is_cut_into_few_pieces() -> None:
    harness = made(max_num_seqs=32)
    for number in range(12):
        harness.add([number, *LONG], tenant=f"tenant {number}", max_tokens=1)
    assert [count for _, count in scheduled(harness.step())] == [8] * 8


def test_a_place_is_due_until_the_step_has_tokens_for_it() -> None:
    harness = made(max_num_seqs=2)
    pair = [harness.add(LONG[:count], group="pair", max_tokens=99) for count in (20, 400)]
    harness.step()
    other = harness.add(LONG[:900][::-1])
    while pair[1].num_uncomputed_tokens > 64:
        assert other.status is Status.WAITING
        harness.step()
    harness.step()
    assert harness.scheduler.running == [pair[0], other]


def test_a_lower_priority_number_is_computed_first() -> None:
    harness = made()
    later, urgent = harness.add([1] * 30, priority=1), harness.add(LONG, priority=0)
    assert scheduled(harness.step()) == [(urgent, 64)]
    assert later.status is Status.WAITING


Claim = tuple[str, float, str, int]
"""Tenant, weight, group and tokens."""
WEIGHTS = {"a": 0.3, "b": 1.0, "c": 1.0, "d": 2.5}
claims_of = st.lists(
    st.builds(
        lambda tenant, group, count: (tenant, WEIGHTS[tenant], group, count),
        st.sampled_from([*WEIGHTS]),
        st.sampled_from(["one", "two", "three"]),
        st.integers(1, 600),
    ),
    min_size=1,
    max_size=12,
)


def made_of(claims: list[Claim]) -> dict[Sequence, int]:
    return {
        Sequence(
            str(number),
            0,
            [1],
            SamplingParams(),
            max_tokens=1,
            seed=0,
            arrival=number,
            tenant=tenant,
            weight=weight,
            group=group,
        ): count
        for number, (tenant, weight, group, count) in enumerate(claims)
    }


def fair_level(budget: int, wanted: dict[str, int]) -> Fraction:
    """Tokens a unit of weight with which the budget is used up, by bisection of the definition."""
    low, high = Fraction(0), Fraction(budget + sum(wanted.values())) * 10
    for _ in range(60):
        middle = (low + high) / 2
        used = sum(min(count, middle * Fraction(WEIGHTS[t])) for t, count in wanted.items())
        low, high = (middle, high) if used <= budget else (low, middle)
    return low


@fuzz(300)
@given(claims=claims_of, budget=st.integers(0, 700))
def test_the_budget_is_used_up_and_shared(claims: list[Claim], budget: int) -> None:
    wanted = made_of(claims)
    given = divide(budget, wanted)
    assert given.keys() == wanted.keys()
    assert all(0 <= given[sequence] <= count for sequence, count in wanted.items())
    assert sum(given.values()) == min(budget, sum(wanted.values()))
    piece = max(1, budget // 8)
    oldest = next(iter(wanted))
    of_tenant: dict[str, int] = {}
    got: dict[str, int] = {}
    for sequence, count in wanted.items():
        of_tenant[sequence.tenant] = of_tenant.get(sequence.tenant, 0) + count
        got[sequence.tenant] = got.get(sequence.tenant, 0) + given[sequence]
    level = fair_level(budget, of_tenant)
    for tenant, count in of_tenant.items():
        due = math.floor(min(count, level * Fraction(WEIGHTS[tenant])))
        # A piece is the least that anybody gets, so others may lack some of theirs.
        assert got[tenant] >= due - len(of_tenant) * piece
        if piece == 1:
            assert abs(got[tenant] - due) <= len(of_tenant)
    if budget:
        assert given[oldest] >= min(wanted[oldest], piece // 8) or not got[oldest.tenant]


@fuzz(100)
@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=8), budget=st.integers(8, 600))
def test_alike_tenants_get_alike(counts: list[int], budget: int) -> None:
    claims = [(str(number), 1.0, "", count) for number, count in enumerate(counts)]
    given = [*divide(budget, made_of(claims)).values()]
    fair = max(level for level in range(budget + 1) if sum(min(c, level) for c in counts) <= budget)
    for count, got in zip(counts, given, strict=True):
        assert min(count, fair) - 1 <= got <= max(fair, budget // 8) + len(counts)
