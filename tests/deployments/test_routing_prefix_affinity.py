from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.fleet.directory import Replica
from deployments.gateway.routing import PrefixAffinity, Work
from deployments.settings import RoutingSettings
from tests.support.clock import Clock
from tests.support.deployments.routing_cases import replica, work

REPLICAS = [replica(name) for name in "abcd"]


def router(clock: Clock | None = None, **settings: float | bool) -> PrefixAffinity:
    return PrefixAffinity(RoutingSettings.model_validate(settings), clock or Clock())


def place(one: PrefixAffinity, asked: Work, candidates: Sequence[Replica] = REPLICAS) -> Replica:
    chosen = one.choose(asked, candidates)
    one.started(asked, chosen)
    return chosen


def serve(one: PrefixAffinity, asked: Work, candidates: Sequence[Replica] = REPLICAS) -> Replica:
    chosen = place(one, asked, candidates)
    one.finished(asked, chosen)
    one.answered(chosen)
    return chosen


def document(number: int) -> str:
    return f"{number:04} " * 400


def test_the_replica_that_has_the_prefix_gets_its_requests() -> None:
    one = router(free_tokens=10**9)
    homes = {number: serve(one, work(document(number))) for number in range(20)}
    assert len(set(homes.values())) == len(REPLICAS)
    for number, home in homes.items():
        assert serve(one, work(document(number) + "a question")) is home


def test_the_longest_prefix_wins() -> None:
    one = router(free_tokens=10**9)
    begun = document(1)
    first = serve(one, work(begun))
    others = [other for other in REPLICAS if other is not first]
    second = serve(one, work(begun + document(2)), others)
    assert serve(one, work(begun + document(2) + "and on")) is second
    assert serve(one, work(begun + document(3)[:500])) in (first, second)
    # Where the second is not asked, the next longest counts.
    assert serve(one, work(begun + document(2)), [first, *others[1:]]) in (first, second)


def test_gateways_that_have_not_spoken_agree() -> None:
    prompts = [work(document(number) + "the end") for number in range(50)]
    homes = [
        [router().choose(prompt, order) for prompt in prompts]
        for order in (REPLICAS, REPLICAS[::-1])
    ]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == len(REPLICAS)


def test_gateways_agree_about_what_follows_a_common_beginning() -> None:
    common = "You are a helpful assistant. " * 20
    gateways = [router(free_tokens=10**9) for _ in range(2)]
    for number, gateway in enumerate(gateways):
        serve(gateway, work(common + document(100 + number)))
    homes = [
        [gateway.choose(work(common + document(number)), REPLICAS) for number in range(40)]
        for gateway in gateways
    ]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == len(REPLICAS)


def test_a_common_beginning_that_is_a_small_part_binds_nobody() -> None:
    one = router(free_tokens=10**9)
    used = Counter(serve(one, work("Hello! " * 60 + document(number))) for number in range(40))
    assert len(used) == len(REPLICAS)
    bound = router(free_tokens=10**9, min_match=0.0)
    assert len({serve(bound, work("Hello! " * 60 + document(n))) for n in range(40)}) == 1


def test_a_hot_prefix_spreads_one_replica_at_a_time() -> None:
    one = router(free_tokens=1000, load_bound=1.2)
    hot = document(7)
    used: list[Replica] = []
    for number in range(1000, 1060):
        chosen = place(one, work(hot + f"{number:0600}"[::-1], tokens=100))
        if chosen not in used:
            # Everybody who has it is at the bound before another one gets it.
            total = sum(map(one.load, REPLICAS))
            assert all(one.load(holder) >= max(1.2 * (total - 100) / 4, 1000) for holder in used)
            used.append(chosen)
    assert len(used) == len(REPLICAS)
    assert max(map(one.load, REPLICAS)) <= 1.2 * 6000 / 4 + 100


def test_a_prefix_that_was_hot_is_everywhere_for_good() -> None:
    clock = Clock()
    one = router(clock, free_tokens=0, load_bound=1.0)
    hot = document(7)
    for number in range(40):
        serve(one, work(hot + f"{number:0300}"))
    clock.time += 10**6
    used = {
        one.choose(work(hot + f"{number:0900}"[::-1]), REPLICAS) for number in range(1000, 1040)
    }
    assert used == set(REPLICAS)


def test_who_has_the_whole_prompt_takes_turns() -> None:
    one = router(free_tokens=0, load_bound=1.0)
    hot = work(document(7))
    for _ in range(40):
        serve(one, hot)
    assert max(map(one.load, REPLICAS)) == min(map(one.load, REPLICAS))


def test_a_prompt_without_a_prefix_goes_where_there_is_least_to_do() -> None:
    one = router()
    chosen = [place(one, work("short", tokens=100)) for _ in range(8)]
    assert Counter(chosen) == dict.fromkeys(REPLICAS, 2)


def test_a_replica_that_failed_rests() -> None:
    one = router()
    asked = work(document(1))
    home = serve(one, asked)
    one.failed(home)
    assert serve(one, asked) is not home
    one.answered(home)
    for each in REPLICAS:
        one.failed(each)
    assert one.choose(asked, REPLICAS) in REPLICAS


def test_requests_one_after_another_are_load_too_and_fade() -> None:
    clock = Clock()
    one = router(clock, free_tokens=0, load_half_life_s=1.0)
    asked = work(document(1), tokens=1000)
    home = serve(one, asked)
    assert one.choose(asked, REPLICAS) is not home
    clock.time += 10
    elsewhere = replica("e")
    one.started(work(tokens=10), elsewhere)
    assert one.choose(asked, [home, elsewhere]) is home


def test_memory_is_bounded() -> None:
    one = router(max_prefixes=100)
    first = work(document(0))
    serve(one, first)
    for number in range(1, 50):
        serve(one, work(document(number)))
    assert len(one._index) == 100
    assert not one._index.holders(first.affinity.keys[0])


def stream(one: PrefixAffinity, speeds: dict[Replica, float], rounds: int = 40) -> None:
    for _ in range(rounds):
        for each, speed in speeds.items():
            one.streamed(work(), each.replica_id, 100, 100 / speed)


def test_a_faster_replica_gets_more() -> None:
    one = router(free_tokens=0)
    stream(one, dict(zip(REPLICAS, (10, 10, 10, 40), strict=True)))
    for number in range(280):
        place(one, work(document(number), tokens=10))
    loads = [one.load(each) for each in REPLICAS]
    assert sum(loads) == 2800
    # Fair shares are 400, 400, 400 and 1600.
    assert all(load <= 1.4 * 400 + 10 for load in loads[:3])
    assert loads[3] > 2800 - 3 * (1.4 * 400 + 10) - 1


def test_weights_can_be_turned_off() -> None:
    one = router(weigh_capacity=False)
    before = [one.choose(work(document(number)), REPLICAS) for number in range(100)]
    stream(one, dict(zip(REPLICAS, (1, 10, 10, 40), strict=True)))
    assert [one.choose(work(document(number)), REPLICAS) for number in range(100)] == before


@settings(derandomize=True, database=None, max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 900), st.booleans(), st.integers(0, 10**6)),
        max_size=120,
    ),
    st.floats(1.0, 2.0),
    st.integers(0, 3000),
)
def test_nobody_is_chosen_beyond_the_bound_and_load_ends_at_zero(
    events: list[tuple[int, int, bool, int]], load_bound: float, free_tokens: int
) -> None:
    clock = Clock()
    one = router(clock, load_bound=load_bound, free_tokens=free_tokens)
    running: list[tuple[Work, Replica]] = []
    for number, tokens, ends, any_number in events:
        if ends and running:
            one.finished(*running.pop(any_number % len(running)))
            clock.time += 1000
            continue
        asked = work(document(number), tokens=tokens)
        chosen = one.choose(asked, REPLICAS)
        fair = (sum(map(one.load, REPLICAS)) + tokens) / len(REPLICAS)
        load = one.load(chosen)
        assert load <= load_bound * fair + 1e-6 or load < free_tokens
        one.started(asked, chosen)
        running.append((asked, chosen))
    for asked, chosen in running:
        one.finished(asked, chosen)
    clock.time += 10**6
    assert sum(map(one.load, REPLICAS)) == pytest.approx(0.0, abs=1e-6)


@settings(derandomize=True, database=None, max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 11), min_size=2, max_size=8), st.data())
def test_only_prefixes_of_a_replica_that_leaves_move_and_they_stay_where_they_went(
    names: set[int], data: st.DataObject
) -> None:
    fleet = [replica(f"host-{name}") for name in sorted(names)]
    leaving = data.draw(st.sampled_from(fleet))
    one = router(free_tokens=10**9)
    prompts = [work(document(number)) for number in range(60)]
    before = [serve(one, prompt, fleet) for prompt in prompts]
    after = [
        serve(one, prompt, [each for each in fleet if each is not leaving]) for prompt in prompts
    ]
    assert [b is a for b, a in zip(before, after, strict=True)] == [
        b is not leaving for b in before
    ]
    # A replica that joins takes nothing that somebody has cached.
    joined = [*(each for each in fleet if each is not leaving), replica("joins")]
    assert [serve(one, prompt, joined) for prompt in prompts] == after
