from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.routing import Affinity, affinity_of
from deployments.gateway.routing.affinity import (
    BOUNDARIES,
    CHUNK_BYTES,
    COARSENESS,
    MAX_BYTES,
    prefix_affinity,
)
from deployments.protocol import CHAT_COMPLETIONS_PATH, COMPLETIONS_PATH, parse_request
from tests.support.fuzzing import fuzz

SYSTEM = {"role": "system", "content": "Answer briefly. " * 100}


def chat(question: str, **fields: Any) -> Affinity:
    messages = [SYSTEM, {"role": "user", "content": question}]
    body = {"model": "demo", "messages": messages, **fields}
    return affinity_of(parse_request(CHAT_COMPLETIONS_PATH, json.dumps(body).encode()).form)


def completion(prompt: Any, **fields: Any) -> Affinity:
    body = {"model": "demo", "prompt": prompt, **fields}
    return affinity_of(parse_request(COMPLETIONS_PATH, json.dumps(body).encode()).form)


def common(one: Affinity, other: Affinity) -> int:
    """How many keys they share; those are the first ones."""
    shared = set(one.keys) & set(other.keys)
    assert one.keys[: len(shared)] == other.keys[: len(shared)]
    return len(shared)


def test_boundaries_are_close_at_first_then_within_a_part_of_the_length() -> None:
    assert BOUNDARIES[:8] == tuple(CHUNK_BYTES * i for i in range(1, 9))
    gaps = [(after - before) / before for before, after in pairwise(BOUNDARIES[7:])]
    assert max(gaps) <= 1 / COARSENESS
    assert len(BOUNDARIES) < 60
    assert BOUNDARIES[-1] > MAX_BYTES * (1 - 1 / COARSENESS)


@fuzz(60)
@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 700))
def test_prompts_share_the_keys_of_what_they_share(
    shared: int, left: int, right: int, part: int
) -> None:
    one, other = "s" * shared + "l" * left, "s" * shared + "r" * right
    # However the content is cut into parts.
    parts = [one[start : start + part] for start in range(0, len(one), part)]
    first, second = prefix_affinity(parts), prefix_affinity([other])
    expected = sum(end <= shared for end in BOUNDARIES) if left and right else None
    assert expected is None or common(first, second) == expected
    assert first == prefix_affinity([one])
    assert list(first.shares) == [end / len(one) for end in BOUNDARIES if end <= len(one)]


def test_a_prompt_below_a_chunk_has_no_affinity() -> None:
    assert prefix_affinity(["x" * (CHUNK_BYTES - 1)]) == Affinity()


def test_a_huge_prompt_is_looked_at_up_to_a_limit() -> None:
    affinity = prefix_affinity(["x" * MAX_BYTES, "y" * 10_000_000])
    assert len(affinity.keys) == len(BOUNDARIES)
    assert affinity == prefix_affinity(["x" * MAX_BYTES])


def test_chats_with_the_same_beginning_share_keys() -> None:
    one, other = chat("a" * 600), chat("b" * 600)
    assert 0 < common(one, other) < len(one.keys)
    assert one.shares[common(one, other) - 1] > 0.6


def test_who_said_it_matters() -> None:
    said = [{"role": role, "content": "x" * 600} for role in ("user", "system")]
    keys = [
        affinity_of(
            parse_request(
                CHAT_COMPLETIONS_PATH, json.dumps({"model": "demo", "messages": [one]}).encode()
            ).form
        )
        for one in said
    ]
    assert common(*keys) == 0


def test_what_keeps_caches_apart_keeps_keys_apart() -> None:
    assert common(chat("x", cache_salt="one"), chat("x", cache_salt="two")) == 0
    assert common(chat("x", cache_salt="one"), chat("x", cache_salt="one")) > 0
    assert common(chat("x", cache_salt="one"), chat("x")) == 0


def test_tenants_share_nothing() -> None:
    body = json.dumps({"model": "demo", "messages": [SYSTEM]}).encode()
    request = parse_request(CHAT_COMPLETIONS_PATH, body).form
    names = ["", "red", "blue"]
    one, two, three = (affinity_of(request, tenant=name) for name in names)
    assert common(one, two) == common(two, three) == common(one, three) == 0
    assert affinity_of(request, tenant="red") == two


def test_fields_of_the_root_are_not_confused() -> None:
    assert common(completion("x" * 300, cache_salt="ab"), completion("x" * 300)) == 0
    body = json.dumps({"model": "demo", "prompt": "x" * 300, "cache_salt": "ab"}).encode()
    request = parse_request(COMPLETIONS_PATH, body).form
    assert common(affinity_of(request, tenant="c"), affinity_of(request, tenant="ca")) == 0


def test_token_ids_are_told_apart_by_their_beginning() -> None:
    one, other = completion([7] * 200 + [1]), completion([7] * 200 + [2] * 300)
    assert common(one, other) == 200 * 4 // CHUNK_BYTES
    assert completion([[7] * 200 + [1], [9] * 500]) == one


def test_a_session_has_a_name_whatever_the_prompt() -> None:
    body = json.dumps({"model": "demo", "messages": [SYSTEM]}).encode()
    other = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}]}).encode()
    first, second = (
        affinity_of(parse_request(CHAT_COMPLETIONS_PATH, one).form, session="mine")
        for one in (body, other)
    )
    without = affinity_of(parse_request(CHAT_COMPLETIONS_PATH, body).form)
    assert (first.keys, first.shares) == (without.keys, without.shares)
    assert first.session == second.session
    yours = affinity_of(parse_request(CHAT_COMPLETIONS_PATH, body).form, session="yours")
    assert first.keys == yours.keys
    assert first.session != yours.session
    assert first.new(0) == first.new(1) == first.new(len(first.keys)) == first.session
    assert (without.new(0), without.new(1)) == without.keys[:2]
    assert without.new(len(without.keys)) is None


def test_a_prompt_cache_key_is_a_session() -> None:
    keyed = chat("x", prompt_cache_key="mine")
    assert keyed.session is not None
    assert keyed == chat("x", prompt_cache_key="mine")
    assert keyed.keys == chat("x").keys
    assert chat("x", prompt_cache_key="") == chat("x")
