"""Limits against a clock that tests turn."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.access.rate_limits import (
    NO_LIMITS,
    Lease,
    RateLimiter,
    RateLimits,
    duration,
)
from deployments.gateway.access.reservation import Demand
from deployments.http.errors import ApiError
from deployments.protocol.common import PromptSize
from tests.support.clock import Clock
from tests.support.deployments.demands import demand


def refused(limiter: RateLimiter, limits: RateLimits, name: str = "one") -> ApiError:
    with pytest.raises(ApiError) as error:
        limiter.enter(name, limits)
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
    return error.value


async def test_requests_a_minute() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(requests_per_minute=3)
    for left in (2, 1, 0):
        lease = limiter.enter("one", limits)
        assert lease.headers()["x-ratelimit-remaining-requests"] == str(left)
        await lease.end()
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
    await limiter.enter("two", limits).end()
    clock.time += 19.9
    refused(limiter, limits)
    clock.time += 0.1
    await limiter.enter("one", limits).end()
    refused(limiter, limits)


async def test_requests_at_a_time() -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(max_concurrent_requests=2)
    first, second = limiter.enter("one", limits), limiter.enter("one", limits)
    assert refused(limiter, limits).headers["Retry-After"] == "1"
    await first.end()
    third = limiter.enter("one", limits)
    refused(limiter, limits)
    await second.end()
    await third.end()
    limiter.enter("one", limits)


async def test_a_request_that_finds_no_slot_does_not_count_as_one() -> None:
    limiter = RateLimiter(clock=Clock())
    limits = RateLimits(requests_per_minute=2, max_concurrent_requests=1)
    lease = limiter.enter("one", limits)
    refused(limiter, limits)
    await lease.end()
    await limiter.enter("one", limits).end()
    assert "2 requests a minute" in refused(limiter, limits).message


@dataclass
class Used:
    """A meter that tests turn."""

    tokens: int
    most: float = math.inf

    def at_most(self) -> float:
        return min(self.tokens, self.most)

    async def used(self) -> float:
        return self.tokens


async def end(lease: Lease, used: int = 0) -> None:
    lease.meter = Used(used)
    await lease.end()


def too_large(lease: Lease, asked: Demand) -> str:
    with pytest.raises(ApiError) as error:
        lease.reserve(asked)
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
    # No waiting helps, and the openai package's client does not try.
    assert error.value.headers == {"X-Should-Retry": "false"}
    return error.value.message


async def test_tokens_are_reserved_and_what_was_not_used_is_given_back() -> None:
    clock = Clock()
    limiter, limits = RateLimiter(clock=clock), RateLimits(tokens_per_minute=600)
    lease = limiter.enter("one", limits)
    lease.reserve(demand(500))
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "100"
    other = limiter.enter("one", limits)
    with pytest.raises(ApiError) as error:
        other.reserve(demand(200))
    assert error.value.headers["Retry-After"] == "10"
    await end(other)
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "100"
    await end(lease, 150)
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "450"
    assert lease.headers()["x-ratelimit-reset-tokens"] == "15s"


async def test_more_than_the_limit_is_too_large_for_ever() -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(tokens_per_minute=1000)
    lease = limiter.enter("one", limits)
    prompts = [PromptSize(10, 40)] * 256
    assert too_large(lease, demand(2000, *prompts, n=16)) == (
        "Request too large: the API key's limit is 1000 tokens a minute, "
        "requested 8194560 (prompt and answer)."
    )
    # It has cost nothing.
    assert lease.headers()["x-ratelimit-remaining-tokens"] == "1000"
    assert "requested 1001 " in too_large(lease, demand(991, PromptSize(10, 40)))
    assert "requested 1001 " in too_large(lease, demand(None, PromptSize(1000, 4000)))
    reservation = lease.reserve(demand(990, PromptSize(10, 40)))
    # There is no more for the prompt than it likely needs: the engine has to be told.
    assert reservation is not None
    assert reservation.max_prompt_tokens == (10,)


async def test_gateways_give_their_part_on_credit_to_what_the_limit_allows() -> None:
    clock = Clock()
    limiter = RateLimiter(num_gateways=lambda: 3, clock=clock)
    limits = RateLimits(tokens_per_minute=90, max_concurrent_requests=6)
    large, other = limiter.enter("one", limits), limiter.enter("one", limits)
    too_large(large, demand(91))
    large.reserve(demand(80))
    with pytest.raises(ApiError) as error:
        other.reserve(demand(1))
    # From 30 - 80 to 1, at 0.5 a second.
    assert error.value.headers["Retry-After"] == "102"
    await end(large, 80)
    clock.time += 102
    other.reserve(demand(1))
    # Two sequences at a time are this gateway's part; six are the key's.
    await end(other)
    clock.time += 60
    one, two = limiter.enter("one", limits), limiter.enter("one", limits)
    with pytest.raises(ApiError, match="limit is 6 sequences at a time"):
        two.reserve(demand(1, n=6))
    await end(one)
    two.reserve(demand(1, n=6))
    await end(two)


async def test_each_sequence_of_a_request_takes_a_place() -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(max_concurrent_requests=4)
    one = limiter.enter("one", limits)
    assert too_large(one, demand(9, n=5)) == (
        "Request too large: the API key's limit is 4 sequences at a time, "
        "requested 5 (prompts times n)."
    )
    one.reserve(demand(9, PromptSize(1, 1), PromptSize(1, 1), PromptSize(1, 1)))
    other = limiter.enter("one", limits)
    with pytest.raises(ApiError) as error:
        other.reserve(demand(9, n=2))
    assert error.value.headers["Retry-After"] == "1"
    refused(limiter, limits)
    await end(one)
    other.reserve(demand(9, n=4))
    refused(limiter, limits)


async def test_what_a_running_request_cannot_need_any_more_is_given_back() -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(tokens_per_minute=600)
    running = limiter.enter("one", limits)
    running.reserve(demand(500))
    running.meter = Used(200)
    assert running.headers()["x-ratelimit-remaining-tokens"] == "400"
    # More than was reserved, which a key may owe after an unusual template.
    running.meter = Used(900)
    other = limiter.enter("one", limits)
    with pytest.raises(ApiError) as error:
        other.reserve(demand(10))
    assert error.value.headers["Retry-After"] == "31"
    await end(running, 400)
    assert other.headers()["x-ratelimit-remaining-tokens"] == "200"


async def test_a_place_is_given_back_even_if_nobody_knows_what_was_used() -> None:
    class Broken(Used):
        async def used(self) -> float:
            raise ValueError("no number")

    limiter = RateLimiter(clock=Clock())
    limits = RateLimits(tokens_per_minute=600, max_concurrent_requests=1)
    lease = limiter.enter("one", limits)
    lease.reserve(demand(500))
    lease.meter = Broken(0)
    with pytest.raises(ValueError, match="no number"):
        await lease.end()
    assert limiter.enter("one", limits).headers()["x-ratelimit-remaining-tokens"] == "100"


@given(st.data())
def test_in_the_end_each_request_has_paid_for_what_it_used(data: st.DataObject) -> None:
    # Time stands still: nothing refills.
    limiter, name = RateLimiter(clock=lambda: 0.0), "one"
    per_minute, running, total = 1000, list[tuple[Lease, Used]](), 0

    def finish(lease: Lease) -> None:
        asyncio.run(lease.end())

    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(("enter", "use", "release", "resize"))):
            case "enter":
                lease = limiter.enter(name, RateLimits(tokens_per_minute=per_minute))
                used = Used(0)
                try:
                    lease.reserve(demand(data.draw(st.integers(1, 2000))))
                except ApiError:
                    finish(lease)
                else:
                    lease.meter = used
                    running.append((lease, used))
            case "use" if running:
                data.draw(st.sampled_from(running))[1].tokens += data.draw(st.integers(0, 500))
            case "release" if running:
                lease, used = running.pop(data.draw(st.integers(0, len(running) - 1)))
                total += used.tokens
                finish(lease)
            case "resize":
                per_minute = data.draw(st.integers(500, 2000))
    total += sum(used.tokens for _, used in running)
    for lease, _ in running:
        finish(lease)
    last = limiter.enter(name, RateLimits(tokens_per_minute=per_minute))
    left = int(last.headers()["x-ratelimit-remaining-tokens"])
    assert left == max(0, per_minute - total)


def test_limits_are_told_in_full() -> None:
    limiter = RateLimiter(clock=Clock())
    limits = RateLimits(requests_per_minute=0.125, tokens_per_minute=12_345_678)
    held = limiter.enter("one", limits)
    assert "0.125 requests a minute" in refused(limiter, limits).message
    held.reserve(demand(12_345_678))
    with pytest.raises(ApiError, match="12345678 tokens a minute"):
        held.reserve(demand(9))


async def test_limits_that_change_hold_at_once_for_what_was_used() -> None:
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    for _ in range(3):
        await limiter.enter("one", RateLimits(requests_per_minute=4)).end()
    refused(limiter, RateLimits(requests_per_minute=3))
    held = limiter.enter("one", RateLimits(requests_per_minute=5))
    assert held.headers()["x-ratelimit-remaining-requests"] == "1"
    refused(limiter, RateLimits(requests_per_minute=100, max_concurrent_requests=1))
    limiter.enter("one", NO_LIMITS)


async def test_gateways_share_a_limit() -> None:
    limits = RateLimits(requests_per_minute=6, tokens_per_minute=90, max_concurrent_requests=2)
    assert limits.share(3) == RateLimits(2, 30, 1)
    assert limits.share(1) == limits
    assert NO_LIMITS.share(3) == NO_LIMITS
    limiter = RateLimiter(num_gateways=lambda: 3, clock=Clock())
    for _ in range(2):
        await limiter.enter("one", limits).end()
    # Whoever is refused knows of a key's limits, not of gateways.
    assert "limit is 6 requests a minute" in refused(limiter, limits).message
    held = limiter.enter("two", limits)
    assert held.headers()["x-ratelimit-limit-tokens"] == "30"
    held.reserve(demand(30))
    with pytest.raises(ApiError, match="limit is 90 tokens a minute"):
        held.reserve(demand(30))
    assert "limit is 2 sequences at a time" in refused(limiter, limits, "two").message


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
