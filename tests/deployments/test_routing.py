from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.routing import LeastOutstandingTokens, Work, placed
from tests.support.clock import Clock


def replica(name: str, *, model: str = "demo", max_model_len: int = 100) -> Replica:
    return Replica(name, "node", f"http://{name}", model, max_model_len, "hunter2")


REPLICAS = [replica(name) for name in "abcd"]


def work(tokens: int) -> Work:
    return Work(model="demo", tokens=tokens)


def test_the_replica_with_the_fewest_outstanding_tokens_is_chosen() -> None:
    router = LeastOutstandingTokens()
    with placed(router, work(10), REPLICAS[0]), placed(router, work(5), REPLICAS[1]):
        assert router.choose(work(1), REPLICAS[:2]) is REPLICAS[1]
        with placed(router, work(6), REPLICAS[1]):
            assert router.choose(work(1), REPLICAS[:2]) is REPLICAS[0]


def test_equal_replicas_take_turns() -> None:
    router = LeastOutstandingTokens()
    chosen = []
    for _ in range(8):
        one = router.choose(work(7), REPLICAS)
        chosen.append(one.replica_id)
        with placed(router, work(7), one):
            pass
    assert chosen == list("abcdabcd")


def test_a_request_that_fails_gives_its_tokens_back() -> None:
    router = LeastOutstandingTokens()
    try:
        with placed(router, work(9), REPLICAS[0]):
            raise ConnectionError
    except ConnectionError:
        pass
    assert router.outstanding(REPLICAS[0]) == 0


def test_a_replica_that_failed_rests_and_each_time_for_longer() -> None:
    clock = Clock()
    router = LeastOutstandingTokens(clock)
    first, second = REPLICAS[:2]
    with placed(router, work(50), second):
        for rest in (1, 2, 4, 8, 16, 16):
            assert router.choose(work(1), [first, second]) is first
            router.failed(first)
            clock.time += rest - 0.01
            assert router.choose(work(1), [first, second]) is second
            clock.time += 0.02


def test_failures_at_the_same_time_are_one() -> None:
    clock = Clock()
    router = LeastOutstandingTokens(clock)
    first, second = REPLICAS[:2]
    for _ in range(50):
        router.failed(first)
    clock.time += 1.01
    with placed(router, work(50), second):
        assert router.choose(work(1), [first, second]) is first


def test_an_answer_ends_the_rest() -> None:
    router = LeastOutstandingTokens(Clock())
    first, second = REPLICAS[:2]
    router.failed(first)
    with placed(router, work(50), second):
        assert router.choose(work(1), [first, second]) is second
        router.answered(first)
        assert router.choose(work(1), [first, second]) is first


def test_where_all_rest_the_load_decides() -> None:
    router = LeastOutstandingTokens(Clock())
    for one in REPLICAS:
        router.failed(one)
    with placed(router, work(5), REPLICAS[0]):
        assert router.choose(work(1), REPLICAS) is REPLICAS[1]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=60))
def test_load_stays_even_and_ends_at_zero(events: list[tuple[bool, int]]) -> None:
    router = LeastOutstandingTokens()
    running: list[tuple[Work, Replica]] = []
    for arrives, tokens in events:
        if arrives or not running:
            one = work(tokens)
            chosen = router.choose(one, REPLICAS)
            assert router.outstanding(chosen) == min(map(router.outstanding, REPLICAS))
            router.started(one, chosen)
            running.append((one, chosen))
        else:
            router.finished(*running.pop(tokens % len(running)))
    for one, chosen in running:
        router.finished(one, chosen)
    assert [router.outstanding(one) for one in REPLICAS] == [0, 0, 0, 0]


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
    assert one.secret not in repr(one)
    assert one.url in repr(one)
