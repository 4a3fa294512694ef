"""What requests reserve of their key's tokens, and what they are told to keep to."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.access.rate_limits import RateLimiter, RateLimits
from deployments.gateway.access.reservation import Demand
from deployments.http.errors import ApiError
from deployments.protocol.common import PromptSize
from tests.support.clock import Clock
from tests.support.deployments.demands import demand


@pytest.mark.parametrize("n", [1, 3])
async def test_without_a_maximum_an_answer_is_bounded_by_half_of_what_is_left(n: int) -> None:
    limiter, limits = RateLimiter(clock=Clock()), RateLimits(tokens_per_minute=9000)
    leases = [limiter.enter("one", limits) for _ in range(8)]
    chat = demand(None, PromptSize(10, 40), n=n, max_model_len=16_000)
    left, bounds = 9000, []
    for lease in leases:
        try:
            reservation = lease.reserve(chat)
        except ApiError:
            break
        assert reservation is not None
        assert reservation.tokens == 40 + n * reservation.max_tokens
        left -= reservation.tokens
        bounds.append(reservation.answer_bound)
    assert bounds[0] == (9000 - 40) // 2 // n
    assert min(bound or 0 for bound in bounds) == 256
    # The last one got no less than a usual answer needs, and there was too little for another.
    assert 0 <= left < 10 + n * 256


def test_a_bound_is_only_told_where_it_is_shorter_than_the_context() -> None:
    chat = demand(None, PromptSize(10, 40), max_model_len=1000)
    plenty = chat.fit(9000, 9000)
    assert (plenty.tokens, plenty.answer_bound, plenty.max_prompt_tokens) == (1000, None, ())
    # Once the prompt is known, the room behind it is.
    assert plenty.after_prompts(30) == 1000
    short = chat.fit(540, 9000)
    assert (short.tokens, short.answer_bound) == (40 + 256, 256)
    assert short.after_prompts(30) == 30 + 256
    asked = replace(chat, max_tokens=100)
    assert asked.fit(540, 9000).answer_bound is None
    # Less than a usual answer needs, since the key has no more in any minute.
    assert chat.fit(50, 50).answer_bound == 40


sizes = st.builds(
    lambda likely, spare: PromptSize(likely, likely + spare),
    st.integers(1, 500),
    st.integers(0, 1500),
)
demands = st.builds(
    lambda prompts, n, most, longest: Demand(
        tuple(size.within(longest) for size in prompts), n, most, longest
    ),
    st.lists(sizes, min_size=1, max_size=4),
    st.integers(1, 4),
    st.none() | st.integers(1, 3000),
    st.integers(8, 2000),
)


@given(demands, st.integers(1, 20_000), st.data())
def test_what_is_reserved_covers_all_that_the_engine_may_do(
    asked: Demand, limit: int, data: st.DataObject
) -> None:
    least = asked.least(limit)
    hypothesis.assume(least <= limit)
    left = data.draw(st.integers(least, limit))
    reservation = asked.fit(left, limit)
    assert least <= reservation.tokens <= left
    longest = asked.max_model_len
    bounds = reservation.max_prompt_tokens or [size.most for size in asked.prompts]
    assert all(size.likely <= bound for size, bound in zip(asked.prompts, bounds, strict=True))
    # What engines do: each prompt within its bound, each answer within its own and the context.
    prompts = [data.draw(st.integers(1, min(bound, longest - 1))) for bound in bounds]
    answer = min(reservation.max_tokens, asked.max_tokens or longest)
    used = sum(size + asked.num_choices * min(answer, longest - size) for size in prompts)
    assert used <= reservation.after_prompts(sum(prompts)) <= reservation.tokens
