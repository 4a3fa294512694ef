"""Token buckets against a clock that tests turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.access.token_bucket import TokenBucket
from tests.support.clock import Clock


@given(
    per_minute=st.floats(0.5, 1e5),
    steps=st.lists(st.tuples(st.floats(0, 120), st.floats(0, 1000)), max_size=60),
)
def test_a_bucket_never_lets_more_through_than_its_rate(
    per_minute: float, steps: list[tuple[float, float]]
) -> None:
    clock = Clock(0.0)
    bucket = TokenBucket(per_minute, clock)
    taken, largest = 0.0, 0.0
    for pause, cost in steps:
        clock.time += pause
        if bucket.wait_s(cost) == 0.0:
            bucket.take(cost)
            taken, largest = taken + cost, max(largest, cost)
    # One burst, the rate, and at most one oversized cost on credit.
    bound = bucket.capacity + clock.time * per_minute / 60 + max(0.0, largest - bucket.capacity)
    assert taken <= bound * (1 + 1e-9) + 1e-6


@given(per_minute=st.floats(0.5, 1e5), costs=st.lists(st.floats(0, 1e4), max_size=30))
def test_what_a_bucket_says_to_wait_is_enough(per_minute: float, costs: list[float]) -> None:
    clock = Clock(0.0)
    bucket = TokenBucket(per_minute, clock)
    for cost in costs:
        clock.time += bucket.wait_s(cost) * (1 + 1e-9) + 1e-6
        assert bucket.wait_s(cost) == 0.0
        bucket.take(cost)
