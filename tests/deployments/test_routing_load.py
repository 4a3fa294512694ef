from __future__ import annotations

import pytest

from deployments.gateway.replicas.capacity import (
    MAX_WEIGHT,
    MEMORY_STREAMS,
    MIN_STREAMS,
    Capacity,
    weights,
)
from deployments.gateway.replicas.load import Load
from deployments.gateway.replicas.pace import FRESH_S, SILENT_S, SLOW, Pace, slowdowns
from tests.support.clock import Clock

NAMES = ["slow", "middle", "fast"]


def test_a_finished_request_fades() -> None:
    clock = Clock()
    load = Load(clock, half_life_s=10.0)
    assert load.recent_tokens == load.sequences == 0
    load.started(800, 1)
    clock.time += 1000
    assert load.recent_tokens == 800
    load.finished(800, 1)
    assert load.recent_tokens == 800
    clock.time += 10
    assert load.recent_tokens == pytest.approx(400)
    load.started(100, 2)
    assert load.sequences == 2
    load.finished(100, 2)
    clock.time += 10
    assert load.recent_tokens == pytest.approx(250)


class Measured(dict[str, Capacity]):
    """Capacities by name."""

    def streamed(self, name: str, *, num_tokens: int, seconds: float, num_sequences: int) -> None:
        self.setdefault(name, Capacity()).streamed(
            num_tokens=num_tokens, seconds=seconds, num_sequences=num_sequences
        )

    def weights(self, names: list[str]) -> list[float]:
        return weights([self.get(name, Capacity()) for name in names])


def measured(streams: int = MIN_STREAMS, **speeds: float) -> Measured:
    capacity = Measured()
    for _ in range(streams):
        for name, speed in speeds.items():
            capacity.streamed(name, num_tokens=100, seconds=100 / speed, num_sequences=1)
    return capacity


def test_weights_follow_the_speed_of_streams() -> None:
    assert measured(slow=10, middle=20, fast=80).weights(NAMES) == [0.5, 1.0, 4.0]


def test_a_replica_shared_by_many_is_not_slow() -> None:
    capacity = Measured()
    for _ in range(MIN_STREAMS):
        # 24 sequences of a replica that makes 320 tokens a second of them, and one alone.
        capacity.streamed("middle", num_tokens=100, seconds=10.0, num_sequences=24)
        capacity.streamed("slow", num_tokens=100, seconds=10.0 * 9 / 32, num_sequences=1)
    assert capacity.weights(["slow", "middle"]) == [1.0, 1.0]


def test_too_few_streams_say_nothing() -> None:
    assert measured(MIN_STREAMS - 1, slow=10, fast=80).weights(NAMES) == [1.0] * 3
    assert measured(middle=10).weights(NAMES) == [1.0] * 3
    assert measured(slow=10, fast=40).weights(NAMES) == [1.0, 1.0, 4.0]


def test_a_short_stream_says_nothing() -> None:
    capacity = measured(slow=10, fast=10)
    for _ in range(1000):
        capacity.streamed("fast", num_tokens=7, seconds=1e-9, num_sequences=1)
        capacity.streamed("fast", num_tokens=100, seconds=0.0, num_sequences=1)
    assert capacity.weights(["slow", "fast"]) == [1.0, 1.0]


def test_equals_keep_equal_weights_and_weights_do_not_flutter() -> None:
    capacity = measured(slow=10, middle=12, fast=8.2)
    assert capacity.weights(NAMES) == [1.0] * 3
    capacity = measured(slow=10, fast=15)
    assert capacity.weights(["slow", "fast"]) == [1.0, pytest.approx(2**0.5)]
    # Now below the middle between two steps, but not by enough to change its weight.
    for _ in range(10 * MEMORY_STREAMS):
        capacity.streamed("fast", num_tokens=100, seconds=100 / 11.6, num_sequences=1)
    assert capacity.weights(["slow", "fast"]) == [1.0, pytest.approx(2**0.5)]
    for _ in range(10 * MEMORY_STREAMS):
        capacity.streamed("fast", num_tokens=100, seconds=100 / 10.5, num_sequences=1)
    assert capacity.weights(["slow", "fast"]) == [1.0, 1.0]


def test_weights_are_bounded() -> None:
    assert measured(slow=1, middle=1000, fast=1e6).weights(NAMES) == [
        1 / MAX_WEIGHT,
        1.0,
        MAX_WEIGHT,
    ]


def test_a_lap_of_few_tokens_that_took_long_says_something() -> None:
    capacity = measured(slow=10, fast=10)
    for _ in range(10 * MEMORY_STREAMS):
        capacity.streamed("slow", num_tokens=1, seconds=13.6, num_sequences=1)
    assert capacity.weights(["slow", "fast"]) == [1.0, MAX_WEIGHT]


def test_the_pace_is_that_of_the_last_laps_or_of_a_longer_silence() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.token_s(1) is None
    pace.lap(num_tokens=10, seconds=9.0, num_sequences=1)
    assert pace.token_s(1) == pytest.approx(0.1)
    pace.begin_wait()
    clock.time += SILENT_S / 2
    assert pace.token_s(1) == pytest.approx(0.1)
    clock.time += 9.0
    assert pace.token_s(1) == pytest.approx((9.0 + SILENT_S / 2) / 9)
    pace.end_wait()
    assert pace.token_s(1) == pytest.approx(0.1)
    # A client that reads slowly is no silence of the replica.
    pace.begin_wait()
    assert pace.token_s(1) == pytest.approx(0.1)
    pace.end_wait()
    clock.time += FRESH_S
    assert pace.token_s(1) is None


def test_a_replica_is_slow_beside_the_one_in_the_middle() -> None:
    assert slowdowns([0.1, 0.2 * SLOW, None, 0.12], [1.0] * 4) == [
        1,
        pytest.approx(2 * SLOW / 1.2),
        1,
        1,
    ]
    assert slowdowns([0.1, 0.3, 0.1], [1.0] * 3) == [1.0, 1.0, 1.0]
    assert slowdowns([0.1, 0.8, 0.1], [1.0, 1 / 4, 1.0]) == [1.0, 1.0, 1.0]
    assert slowdowns([None, 5.0], [1.0] * 2) == [1.0, 1.0]
    assert slowdowns([None, None], [1.0] * 2) == [1.0, 1.0]
    assert slowdowns([0.1, 1000.0], [1.0] * 2) == [1.0, MAX_WEIGHT]
