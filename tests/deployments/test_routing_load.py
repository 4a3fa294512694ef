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
