from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.routing import LeastOutstandingTokens
from tests.support.clock import Clock
from tests.support.deployments.routing_cases import Routed, replica, work
from tests.support.fuzzing import fuzz


def routed(clock: Clock | None = None) -> Routed:
    return Routed(LeastOutstandingTokens(), clock)


def test_the_replica_with_the_fewest_outstanding_tokens_is_chosen() -> None:
    one = routed()
    first, second = pair = one.replicas[:2]
    with one.start(work(tokens=10), first), one.start(work(tokens=5), second):
        assert one.choose(work(), pair) is second
        with one.start(work(tokens=6), second):
            assert one.choose(work(), pair) is first


def test_equal_replicas_take_turns() -> None:
    one = routed()
    assert [one.serve(work(tokens=7)).replica_id for _ in range(8)] == list("abcdabcd")


def test_a_request_that_fails_gives_its_tokens_back() -> None:
    one = routed()
    first = one.replicas[0]
    try:
        with one.start(work(tokens=9), first):
            raise ConnectionError
    except ConnectionError:
        pass
    assert first.load.tokens == 0


def test_a_replica_that_failed_rests_and_each_time_for_longer() -> None:
    clock = Clock()
    one = routed(clock)
    first, second = pair = one.replicas[:2]
    with one.start(work(tokens=50), second):
        for rest in (1, 2, 4, 8, 16, 16):
            assert one.choose(work(), pair) is first
            first.breaker.failed()
            clock.time += rest - 0.01
            assert one.choose(work(), pair) is second
            clock.time += 0.02


def test_failures_at_the_same_time_are_one() -> None:
    clock = Clock()
    one = routed(clock)
    first, second = pair = one.replicas[:2]
    for _ in range(50):
        first.breaker.failed()
    clock.time += 1.01
    with one.start(work(tokens=50), second):
        assert one.choose(work(), pair) is first


def test_an_answer_ends_the_rest() -> None:
    one = routed()
    first, second = pair = one.replicas[:2]
    first.breaker.failed()
    with one.start(work(tokens=50), second):
        assert one.choose(work(), pair) is second
        first.answered()
        assert one.choose(work(), pair) is first


def test_where_all_rest_the_load_decides() -> None:
    one = routed()
    for state in one.replicas:
        state.breaker.failed()
    with one.start(work(tokens=5), one.replicas[0]):
        assert one.choose(work()) is one.replicas[1]


@fuzz(60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=60))
def test_load_stays_even_and_ends_at_zero(events: list[tuple[bool, int]]) -> None:
    one = routed()

    def outstanding(state: ReplicaState) -> int:
        return state.load.tokens

    running = []
    for arrives, tokens in events:
        if arrives or not running:
            asked = work(tokens=tokens)
            chosen = one.choose(asked)
            assert outstanding(chosen) == min(map(outstanding, one.replicas))
            running.append(one.start(asked, chosen))
        else:
            running.pop(tokens % len(running)).close()
        one.table.check_integrity()
    for request in running:
        request.close()
    assert [*map(outstanding, one.replicas)] == [0, 0, 0, 0]
    one.table.check_integrity()


def test_a_directory_knows_models_and_who_serves_them() -> None:
    directory = ReplicaDirectory()
    directory.replace([replica("b", max_model_len=50), replica("a"), replica("c", model="other")])
    assert [one.replica_id for one in directory.replicas] == ["a", "b", "c"]
    assert directory.models() == {"demo": 50, "other": 100}
    assert [one.replica_id for one in directory.serving("demo")] == ["a", "b"]
    directory.replace([])
    assert directory.models() == {}


def test_a_replica_survives_the_way_through_serve_and_hides_its_secret() -> None:
    one = replica("a")
    assert Replica.from_metadata(one.metadata()) == one
    # That another release tells.
    assert Replica.from_metadata({**one.metadata(), "colour": "red"}) == one
    assert one.secret not in repr(one)
    assert one.url in repr(one)
