"""What a replica keeps of resumable streams, by a clock of the test's own."""

from __future__ import annotations

import pytest

from deployments.replica import kept_streams
from deployments.replica.kept_streams import KEPT_FOR_S, KeptStreams
from deployments.wire.checkpoint import Progress
from tests.support.clock import Clock


def found(streams: KeptStreams, answer_id: str, seen: dict[int, int]) -> dict[int, list[int]]:
    """Empty if there is nothing."""
    progress = streams.find(answer_id, seen) or Progress()
    return {choice: list(tokens) for choice, tokens in progress.token_ids.items()}


def test_the_client_of_a_stream_has_seen_its_first_tokens() -> None:
    streams = KeptStreams()
    with streams.recording("a") as tokens:
        tokens[0].extend([5, 6, 7])
        tokens[3].extend([8])
        assert found(streams, "a", {0: 2, 3: 1}) == {0: [5, 6], 3: [8]}
        for other in ({0: 4}, {0: 2, 2: 1}, {}):
            assert streams.find("a", other) is None
        assert streams.find("b", {0: 2}) is None


def test_a_stream_is_found_while_it_runs_and_for_a_while_after() -> None:
    clock = Clock()
    streams = KeptStreams(clock)
    with streams.recording("a") as tokens:
        tokens[0].append(1)
        clock.time += 1000
        assert found(streams, "a", {0: 1})
    clock.time += KEPT_FOR_S
    assert found(streams, "a", {0: 1})
    clock.time += 1
    assert not found(streams, "a", {0: 1})
    assert len(streams) == 0


def test_a_response_that_took_over_keeps_its_place() -> None:
    clock = Clock()
    streams = KeptStreams(clock)
    left = streams.recording("a")
    left.__enter__()[0].append(1)
    with streams.recording("a") as tokens:
        tokens[0].extend([1, 2])
        left.__exit__(None, None, None)
        clock.time += 2 * KEPT_FOR_S
        assert found(streams, "a", {0: 2})
    clock.time += 2 * KEPT_FOR_S
    assert len(streams) == 0


def test_of_too_many_tokens_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "MAX_TOKENS", 10)
    streams = KeptStreams(Clock())
    for name in ("a", "b", "a", "c"):
        with streams.recording(name) as tokens:
            tokens[0].extend(range(5))
    assert not found(streams, "b", {0: 1})
    assert found(streams, "a", {0: 5})
    assert found(streams, "c", {0: 5})
