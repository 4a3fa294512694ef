from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.routing import PrefixAffinity, Work, affinity_of
from deployments.gateway.routing.prefix_index import PrefixIndex
from deployments.protocol import COMPLETIONS_PATH, parse_request
from deployments.settings import RoutingSettings
from tests.support.clock import Clock
from tests.support.deployments.routing_cases import Routed, table_of, work
from tests.support.fuzzing import fuzz


def router(clock: Clock | None = None, **settings: float | bool) -> Routed:
    parsed = RoutingSettings.model_validate(settings)
    return Routed(PrefixAffinity(parsed), clock, half_life_s=parsed.load_half_life_s)


def names(states: Iterable[ReplicaState]) -> list[str]:
    return [state.replica_id for state in states]


def document(number: int) -> str:
    return f"{number:04} " * 400


def test_the_replica_that_has_the_prefix_gets_its_requests() -> None:
    one = router(free_tokens=10**9)
    homes = {number: one.serve(work(document(number))) for number in range(20)}
    assert len(set(homes.values())) == 4
    for number, home in homes.items():
        assert one.serve(work(document(number) + "a question")) is home


def test_the_longest_prefix_wins() -> None:
    one = router(free_tokens=10**9)
    begun = document(1)
    first = one.serve(work(begun))
    others = [other for other in one.replicas if other is not first]
    second = one.serve(work(begun + document(2)), others)
    assert one.serve(work(begun + document(2) + "and on")) is second
    assert one.serve(work(begun + document(3)[:500])) in (first, second)
    # Where the second is not asked, the next longest counts.
    assert one.serve(work(begun + document(2)), [first, *others[1:]]) in (first, second)


def test_gateways_that_have_not_spoken_agree() -> None:
    prompts = [work(document(number) + "the end") for number in range(50)]
    homes = [
        names(router().choose(prompt, one.replicas[::step]) for prompt in prompts)
        for one, step in ((router(), 1), (router(), -1))
    ]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == 4


def test_gateways_agree_about_what_follows_a_common_beginning() -> None:
    common = "You are a helpful assistant. " * 20
    gateways = [router(free_tokens=10**9) for _ in range(2)]
    for number, gateway in enumerate(gateways):
        gateway.serve(work(common + document(100 + number)))
    homes = [
        names(gateway.choose(work(common + document(number))) for number in range(40))
        for gateway in gateways
    ]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == 4


def test_a_common_beginning_that_is_a_small_part_binds_nobody() -> None:
    one = router(free_tokens=10**9)
    used = Counter(one.serve(work("Hello! " * 60 + document(number))) for number in range(40))
    assert len(used) == 4
    bound = router(free_tokens=10**9, min_match=0.0)
    assert len({bound.serve(work("Hello! " * 60 + document(n))) for n in range(40)}) == 1


def test_a_hot_prefix_spreads_one_replica_at_a_time() -> None:
    one = router(free_tokens=1000, load_bound=1.2)
    hot = document(7)
    used: list[ReplicaState] = []
    for number in range(1000, 1060):
        chosen = one.place(work(hot + f"{number:0600}"[::-1], tokens=100))
        if chosen not in used:
            # Everybody who has it is at the bound before another one gets it.
            total = sum(one.loads)
            assert all(
                holder.load.recent_tokens >= max(1.2 * (total - 100) / 4, 1000) for holder in used
            )
            used.append(chosen)
    assert len(used) == 4
    assert max(one.loads) <= 1.2 * 6000 / 4 + 100


def test_a_prefix_that_was_hot_is_everywhere_for_good() -> None:
    clock = Clock()
    one = router(clock, free_tokens=0, load_bound=1.0)
    hot = document(7)
    for number in range(40):
        one.serve(work(hot + f"{number:0300}"))
    clock.time += 10**6
    used = {one.choose(work(hot + f"{number:0900}"[::-1])) for number in range(1000, 1040)}
    assert used == set(one.replicas)


def test_who_has_the_whole_prompt_takes_turns() -> None:
    one = router(free_tokens=0, load_bound=1.0)
    hot = work(document(7))
    for _ in range(40):
        one.serve(hot)
    assert max(one.loads) == min(one.loads)


def session(name: str | None, prompt: str = "") -> Work:
    """None: of no session."""
    body = {"model": "demo", "prompt": prompt or ".", "prompt_cache_key": name}
    parsed = parse_request(COMPLETIONS_PATH, json.dumps(body).encode())
    return Work(model="demo", tokens=100, affinity=affinity_of(parsed.form))


def test_a_session_stays_whatever_it_asks() -> None:
    one = router(free_tokens=10**9)
    homes = {number: one.serve(session(f"s{number}")) for number in range(20)}
    assert len(set(homes.values())) == 4
    for number, home in homes.items():
        assert one.serve(session(f"s{number}", document(number))) is home
        # Though another one has some of what it asks next.
        other = document(number + 100)[:500] + document(number)[::-1]
        one.serve(session(f"other {number}", document(number + 100)))
        assert one.serve(session(f"s{number}", other)) is home


def test_a_prompt_that_another_replica_has_leaves_its_session() -> None:
    one = router(free_tokens=10**9)
    first, second, *_ = one.replicas
    one.serve(session(None, document(1)), [first])
    # What agents ask beside a conversation, such as its title, says nothing of what it is about.
    assert one.serve(session("mine"), [second]) is second
    assert one.serve(session("mine", document(1) + "and on")) is first
    assert one.serve(session("mine", "whatever")) is first


def test_of_two_that_have_a_prompt_the_one_with_the_session_gets_it() -> None:
    one = router(free_tokens=10**9)
    for replica in one.replicas:
        one.serve(session(None, document(1)), [replica])
    for replica in one.replicas:
        one.serve(session("mine"), [replica])
        assert one.serve(session("mine", document(1))) is replica


def test_a_new_session_begins_where_its_prompt_is_known() -> None:
    one = router(free_tokens=10**9)
    home = one.serve(session(None, document(1)))
    assert {one.serve(session(f"s{n}", document(1) + f"task {n}")) for n in range(20)} == {home}


def test_gateways_agree_on_a_new_sessions_place_by_its_name() -> None:
    homes = [
        [one.choose(session(f"s{n}", document(1))) for n in range(20)]
        for one in (router(), router())
    ]
    assert names(homes[0]) == names(homes[1])
    assert len(set(names(homes[0]))) == 4


def test_it_says_where_the_longest_known_beginning_is() -> None:
    one = router()
    first, second = one.replicas[:2]
    asked = [work(document(1)), work(document(1) + document(2)), work(document(3)), work("short")]
    placed = one.router.placed
    known = [placed(each, first).known for each in asked]
    assert known == ["unknown", "here", "unknown", "unknown"]
    assert placed(work(document(1) + "and on"), second).known == "elsewhere"
    assert placed(work(document(1) + "and on"), second).known == "here"
    assert placed(work(document(1) + document(2)), second).known == "elsewhere"


def test_it_says_how_much_is_cached() -> None:
    one = router()
    first, second, *_ = one.replicas
    placed = one.router.placed
    assert placed(work(document(1), prompt_tokens=500), first).cached_tokens == 0
    assert placed(work(document(1), prompt_tokens=500), second).cached_tokens == 0
    longer = work(document(1) + document(2), prompt_tokens=1000)
    assert placed(longer, first).cached_tokens == pytest.approx(500, abs=100)
    again = longer.affinity.shares[-1] * 1000
    assert placed(longer, first).cached_tokens == pytest.approx(again, abs=1)


def test_nobody_leaves_a_cached_prompt_for_a_replica_that_would_compute_more() -> None:
    one = router(free_tokens=0)
    asked = work(document(1), tokens=1000, prompt_tokens=900)
    home = one.serve(asked)
    # Alone at work, it has more than its share of the little there is.
    assert [one.serve(asked) for _ in range(5)] == [home] * 5
    with one.start(work(tokens=600), home), one.start(asked, home):
        # Of what is asked there twice, the most is cached.
        assert one.choose(asked) is home
    with one.start(work(tokens=900), home):
        assert one.choose(asked) is not home
    small = work("Hello! " * 60 + document(1), tokens=1000, prompt_tokens=900)
    one.serve(work("Hello! " * 60 + document(2)), [home])
    assert one.choose(small) is not home


def test_a_prompt_without_a_prefix_goes_where_there_is_least_to_do() -> None:
    one = router()
    chosen = [one.place(work("short", tokens=100)) for _ in range(8)]
    assert Counter(chosen) == dict.fromkeys(one.replicas, 2)


def test_a_replica_that_failed_rests() -> None:
    one = router()
    asked = work(document(1))
    home = one.serve(asked)
    home.breaker.failed()
    assert one.serve(asked) is not home
    home.answered()
    for each in one.replicas:
        each.breaker.failed()
    assert one.choose(asked) in one.replicas


def test_requests_one_after_another_are_load_too_and_fade() -> None:
    clock = Clock()
    one = router(clock, free_tokens=0, load_half_life_s=1.0)
    asked = work(document(1), tokens=1000)
    home = one.serve(asked)
    assert one.choose(asked) is not home
    clock.time += 10
    _, (elsewhere,) = table_of("e", clock=clock)
    elsewhere.load.started(10, 1)
    assert one.choose(asked, [home, elsewhere]) is home


def test_memory_is_bounded() -> None:
    index = PrefixIndex(100)
    first = work(document(0))
    for number in range(50):
        index.add(work(document(number)).affinity.keys, "a")
    assert len(index) == 100
    assert not index.holders(first.affinity.keys[0])


def stream(one: Routed, *speeds: float) -> None:
    for _ in range(40):
        for each, speed in zip(one.replicas, speeds, strict=True):
            with one.start(work(tokens=0), each):
                each.streamed(work(), 100, 100 / speed)


def test_a_faster_replica_gets_more() -> None:
    one = router(free_tokens=0)
    stream(one, 10, 10, 10, 40)
    for number in range(280):
        one.place(work(document(number), tokens=10))
    loads = one.loads
    assert sum(loads) == 2800
    # Fair shares are 400, 400, 400 and 1600.
    assert all(load <= 1.4 * 400 + 10 for load in loads[:3])
    assert loads[3] > 2800 - 3 * (1.4 * 400 + 10) - 1


@pytest.mark.parametrize("shows", ["laps", "silence"])
def test_few_tokens_do_not_attract_work_to_a_replica_that_has_become_slow(shows: str) -> None:
    clock = Clock()
    one = router(clock)
    slow = one.replicas[0]
    asked = [work(document(number)) for number in range(40)]
    home = [number for number in range(40) if one.serve(asked[number]) is slow]
    assert home
    for each in one.replicas:
        each.streamed(work(), 100, 2.0)
    if shows == "laps":
        for _ in range(8):
            slow.streamed(work(), 1, 13.6)
    else:
        slow.pace.begin_wait()
    clock.time += 13.6
    # Below ``free_tokens`` each would get its own, and so would the one that has their prefix.
    used = Counter(one.serve(each) for each in asked)
    assert used[slow] <= 1


def test_weights_can_be_turned_off() -> None:
    one = router(weigh_capacity=False)
    before = [one.choose(work(document(number))) for number in range(100)]
    stream(one, 1, 10, 10, 40)
    assert [one.choose(work(document(number))) for number in range(100)] == before


@fuzz(60)
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
    running = []
    for number, tokens, ends, any_number in events:
        if ends and running:
            running.pop(any_number % len(running)).close()
            clock.time += 1000
            continue
        asked = work(document(number), tokens=tokens)
        chosen = one.choose(asked)
        fair = (sum(one.loads) + tokens) / 4
        load = chosen.load.recent_tokens
        assert load <= load_bound * fair + 1e-6 or load < free_tokens
        running.append(one.start(asked, chosen))
    for request in running:
        request.close()
    one.table.check_integrity()
    clock.time += 10**6
    assert sum(one.loads) == pytest.approx(0.0, abs=1e-6)


@fuzz(40)
@given(st.sets(st.integers(0, 11), min_size=2, max_size=8), st.data())
def test_only_prefixes_of_a_replica_that_leaves_move_and_they_stay_where_they_went(
    hosts: set[int], data: st.DataObject
) -> None:
    _, fleet = table_of(*(f"host-{host}" for host in sorted(hosts)))
    leaving = data.draw(st.sampled_from(fleet))
    one = router(free_tokens=10**9)
    prompts = [work(document(number)) for number in range(60)]
    before = [one.serve(prompt, fleet) for prompt in prompts]
    after = [
        one.serve(prompt, [each for each in fleet if each is not leaving]) for prompt in prompts
    ]
    assert [b is a for b, a in zip(before, after, strict=True)] == [
        b is not leaving for b in before
    ]
    # A replica that joins takes nothing that somebody has cached.
    _, joining = table_of("joins")
    joined = [*(each for each in fleet if each is not leaving), *joining]
    assert [one.serve(prompt, joined) for prompt in prompts] == after
