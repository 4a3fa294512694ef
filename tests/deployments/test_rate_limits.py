"""Token buckets and limits against a clock that tests turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.gateway.access.rate_limits import (
    NO_LIMITS,
    Lease,
    RateLimiter,
    RateLimits,
    duration,
)
from deployments.gateway.access.token_bucket import TokenBucket
from deployments.http.errors import ApiError
from tests.support.clock import Clock


@given(
    per_minute=st.floats(0.5, 1e5),
    steps=st.lists(st.tuples(st.floats(0, 120), st.floats(0, 1000)), max_size=60),
)
@settings(derandomize=True, database=None, deadline=None)
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
@settings(derandomize=True, database=None, deadline=None)
def test_what_a_bucket_says_to_wait_is_enough(per_minute: float, costs: list[float]) -> None:
    clock = Clock(0.0)
    bucket = TokenBucket(per_minute, clock)
    for cost in costs:
        clock.time += bucket.wait_s(cost) * (1 + 1e-9) + 1e-6
        assert bucket.wait_s(cost) == 0.0
        bucket.take(cost)


def refused(limiter: RateLimiter, limits: RateLimits, name: str = "one") -> ApiError:
    with pytest.raises(ApiError) as error:
        limiter.enter(name, limits)
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
    return error.value


def test_requests_a_minute() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(requests_per_minute=3)
    for left in (2, 1, 0):
        lease = limiter.enter("one", limits)
        assert lease.headers()["x-ratelimit-remaining-requests"] == str(left)
        lease.release()
    assert lease.headers() == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    error = refused(limiter, limits)
    assert error.headers["Retry-After"] == "20"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.message == "The API key's limit is 3 requests a minute. Try again in 20 s."
    # Another key has its own.
    limiter.enter("two", limits).release()
    clock.time += 19.9
    refused(limiter, limits)
    clock.time += 0.1
    limiter.enter("one", limits).release()
    refused(limiter, limits)


def test_requests_at_a_time() -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(max_concurrent_requests=2)
    first, second = limiter.enter("one", limits), limiter.enter("one", limits)
    assert refused(limiter, limits).headers["Retry-After"] == "1"
    first.release()
    first.release()
    third = limiter.enter("one", limits)
    refused(limiter, limits)
    second.release()
    third.release()
    limiter.enter("one", limits)


def test_a_request_that_finds_no_slot_does_not_count_as_one() -> None:
    limiter = RateLimiter(clock=Clock())
    limits = RateLimits(requests_per_minute=2, max_concurrent_requests=1)
    lease = limiter.enter("one", limits)
    refused(limiter, limits)
    lease.release()
    limiter.enter("one", limits).release()
    assert "2 requests a minute" in refused(limiter, limits).message


def test_tokens_are_charged_ahead_and_settled_at_the_end() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(tokens_per_minute=600)
    lease = limiter.enter("one", limits)
    lease.charge(500)
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "100"
    other = limiter.enter("one", limits)
    with pytest.raises(ApiError) as error:
        other.charge(200)
    assert error.value.headers["Retry-After"] == "10"
    other.release()
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "100"
    lease.meter = lambda: 150
    lease.release()
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "450"
    assert lease.headers()["x-ratelimit-reset-tokens"] == "15s"


def test_more_tokens_than_a_minute_has_are_a_debt() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(tokens_per_minute=60)
    lease = limiter.enter("one", limits)
    lease.charge(120)
    lease.meter = lambda: 180
    lease.release()
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "0"
    later = limiter.enter("one", limits)
    with pytest.raises(ApiError) as error:
        later.charge(1)
    assert error.value.headers["Retry-After"] == "121"
    clock.time += 121
    later.charge(1)


def test_what_is_only_reckoned_with_makes_no_debt() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(tokens_per_minute=60)
    running, other = limiter.enter("one", limits), limiter.enter("one", limits)
    running.charge(4000)
    with pytest.raises(ApiError) as error:
        other.charge(5)
    assert error.value.headers["Retry-After"] == "5"
    clock.time += 5
    other.charge(5)
    running.meter = lambda: 70
    running.release()
    assert other.headers()["x-ratelimit-reset-tokens"] == "1m10s"


def test_what_a_running_request_uses_counts_while_it_runs() -> None:
    used = 0
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(tokens_per_minute=600)
    running, other = limiter.enter("one", limits), limiter.enter("one", limits)
    running.charge(100)
    running.meter = lambda: used
    for so_far, left in ((50, 500), (100, 500), (180, 420), (590, 10)):
        used = so_far
        assert limiter.enter("one", limits).headers()["x-ratelimit-remaining-tokens"] == str(left)
    used = 900
    with pytest.raises(ApiError) as error:
        other.charge(10)
    assert error.value.headers["Retry-After"] == "31"
    used = 400
    running.release()
    running.release()
    assert other.headers()["x-ratelimit-remaining-tokens"] == "200"


@given(st.data())
@settings(derandomize=True, database=None, deadline=None)
def test_in_the_end_each_request_has_paid_for_what_it_used(data: st.DataObject) -> None:
    # Time stands still: nothing refills.
    limiter, name = RateLimiter(clock=lambda: 0.0), "one"
    per_minute, running, total = 1000, list[tuple[Lease, list[int]]](), 0
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(("enter", "use", "release", "resize"))):
            case "enter":
                lease = limiter.enter(name, RateLimits(tokens_per_minute=per_minute))
                used = [0]
                lease.meter = lambda used=used: used[0]  # type: ignore[misc]
                try:
                    lease.charge(data.draw(st.integers(0, 2000)))
                except ApiError:
                    lease.release()
                else:
                    running.append((lease, used))
            case "use" if running:
                data.draw(st.sampled_from(running))[1][0] += data.draw(st.integers(0, 500))
            case "release" if running:
                lease, used = running.pop(data.draw(st.integers(0, len(running) - 1)))
                total += used[0]
                lease.release()
            case "resize":
                per_minute = data.draw(st.integers(500, 2000))
    total += sum(used[0] for _, used in running)
    for lease, _ in running:
        lease.release()
    last = limiter.enter(name, RateLimits(tokens_per_minute=per_minute))
    left = int(last.headers()["x-ratelimit-remaining-tokens"])
    assert left == max(0, per_minute - total)


def test_limits_are_told_in_full() -> None:
    limiter = RateLimiter(clock=Clock())
    limits = RateLimits(requests_per_minute=0.125, tokens_per_minute=12_345_678)
    held = limiter.enter("one", limits)
    assert "0.125 requests a minute" in refused(limiter, limits).message
    held.charge(12_345_678)
    with pytest.raises(ApiError, match="12345678 tokens a minute"):
        held.charge(9)


def test_limits_that_change_hold_at_once_for_what_was_used() -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    for _ in range(3):
        limiter.enter("one", RateLimits(requests_per_minute=4)).release()
    refused(limiter, RateLimits(requests_per_minute=3))
    held = limiter.enter("one", RateLimits(requests_per_minute=5))
    assert held.headers()["x-ratelimit-remaining-requests"] == "1"
    refused(limiter, RateLimits(requests_per_minute=100, max_concurrent_requests=1))
    limiter.enter("one", NO_LIMITS)


def test_gateways_share_a_limit() -> None:
    limits = RateLimits(requests_per_minute=6, tokens_per_minute=90, max_concurrent_requests=2)
    assert limits.share(3) == RateLimits(2, 30, 1)
    assert limits.share(1) == limits
    assert NO_LIMITS.share(3) == NO_LIMITS
    limiter = RateLimiter(num_gateways=lambda: 3, clock=Clock())
    for _ in range(2):
        limiter.enter("one", limits).release()
    # Whoever is refused knows of a key's limits, not of gateways.
    assert "limit is 6 requests a minute" in refused(limiter, limits).message
    held = limiter.enter("two", limits)
    assert held.headers()["x-ratelimit-limit-tokens"] == "30"
    held.charge(30)
    with pytest.raises(ApiError, match="limit is 90 tokens a minute"):
        held.charge(30)
    assert "limit is 2 requests at a time" in refused(limiter, limits, "two").message


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0ms"),
        (0.02, "20ms"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3725.25, "1h2m5.25s"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected
