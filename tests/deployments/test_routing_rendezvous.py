from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.fleet.directory import Replica
from deployments.gateway.routing.rendezvous import rendezvous
from tests.support.deployments.routing_cases import replica
from tests.support.fuzzing import fuzz

NAMES = st.lists(st.text("abcdefgh0123", min_size=1, max_size=12), min_size=2, unique=True)
WEIGHTS = (0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
RANDOM = random.Random(0)
KEYS = [RANDOM.getrandbits(64) for _ in range(4000)]


@st.composite
def fleets(draw: st.DrawFn) -> dict[Replica, float]:
    names = draw(NAMES)
    return {replica(name): draw(st.sampled_from(WEIGHTS)) for name in names}


def homes(fleet: dict[Replica, float], keys: list[int] = KEYS[:300]) -> list[Replica]:
    replicas = list(fleet)
    names = [one.replica_id for one in replicas]
    return [replicas[rendezvous(key, names, list(fleet.values()))] for key in keys]


@fuzz(40)
@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_of_the_replicas_says_nothing(
    fleet: dict[Replica, float], rng: random.Random
) -> None:
    shuffled = list(fleet.items())
    rng.shuffle(shuffled)
    assert homes(fleet) == homes(dict(shuffled))


@fuzz(40)
@given(fleets(), st.data())
def test_exactly_the_keys_of_a_replica_that_leaves_move(
    fleet: dict[Replica, float], data: st.DataObject
) -> None:
    leaving = data.draw(st.sampled_from(list(fleet)))
    left = {one: weight for one, weight in fleet.items() if one != leaving}
    for before, after in zip(homes(fleet), homes(left), strict=True):
        assert (before == after) == (before != leaving)


@fuzz(40)
@given(fleets(), st.data())
def test_keys_move_only_towards_a_replica_that_gains_weight(
    fleet: dict[Replica, float], data: st.DataObject
) -> None:
    gaining = data.draw(st.sampled_from(list(fleet)))
    grown = fleet | {gaining: fleet[gaining] * 2}
    for before, after in zip(homes(fleet), homes(grown), strict=True):
        assert after in (before, gaining)


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 1, 2, 4), (0.5, 1.41), (1,) * 12])
def test_each_has_the_share_of_its_weight(weights: tuple[float, ...]) -> None:
    fleet = {replica(f"host-{i}"): weight for i, weight in enumerate(weights)}
    found = homes(fleet, KEYS)
    for one, weight in fleet.items():
        expected = weight / sum(weights)
        # Four standard deviations of a draw of so many keys.
        margin = 4 * (expected * (1 - expected) / len(KEYS)) ** 0.5
        assert found.count(one) / len(KEYS) == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize("digest", [0, 2**64 - 1])
def test_no_digest_is_beyond_the_logarithm(digest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xxhash.xxh3_64_intdigest", lambda name, seed: digest)
    assert rendezvous(1, ["a"], [1.0]) == 0
