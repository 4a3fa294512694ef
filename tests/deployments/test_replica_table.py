"""What a gateway's table of replicas keeps, and for how long."""

from __future__ import annotations

import pytest

from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.work import Work
from tests.support.deployments.routing_cases import replica, table_of

WORK = Work("demo", 7, num_sequences=2)


def test_records_follow_the_directory() -> None:
    table, (first, second) = table_of("a", "b")
    first.breaker.failed()
    table.directory.replace([replica("b", model="other"), replica("a", max_model_len=50)])
    assert table.serving("demo") == [first]
    assert table.serving("other") == [second]
    assert first.replica.max_model_len == 50
    assert first.breaker.is_resting


def test_a_replica_that_left_is_forgotten_once_it_has_no_request() -> None:
    table, (first, second) = table_of("a", "b")
    with table.attempt(WORK, Suspect(2), first):
        table.directory.replace([replica("b")])
        assert table.serving("demo") == [second]
        table.check_integrity()
        table.directory.replace([replica("a"), replica("b")])
        assert table.serving("demo") == [first, second]
    table.directory.replace([])
    assert table.serving("demo") == []
    table.directory.replace([replica("a")])
    (anew,) = table.serving("demo")
    assert anew is not first


def test_an_attempt_counts_for_as_long_as_it_lasts() -> None:
    table, (one, other) = table_of("a", "b")
    suspect = Suspect(2)
    with table.attempt(WORK, suspect, one):
        assert (one.load.tokens, one.load.sequences, one.present) == (7, 2, {suspect})
        assert other.is_idle
        table.check_integrity()
    assert one.is_idle
    assert one.load.tokens == one.load.sequences == 0
    assert one.last_turn > other.last_turn
    table.check_integrity()


def test_what_does_not_add_up_is_found() -> None:
    table, (one, _) = table_of("a", "b")
    one.load.started(7, 1)
    with pytest.raises(AssertionError):
        table.check_integrity()
    one.load.finished(7, 1)
    one.on_trial.add(Suspect())
    with pytest.raises(AssertionError):
        table.check_integrity()
