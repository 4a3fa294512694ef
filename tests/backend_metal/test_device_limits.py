"""What MLX is told to keep of a device's memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import mlx.core as mx
import pytest

from backend_metal.engine.device_limits import BUFFER_CACHE_FRACTION, limit_memory
from backend_metal.engine.memory import GIB

CPU = mx.Device(mx.cpu)


@pytest.fixture(autouse=True)
def same_cache_limit() -> Iterator[None]:
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    return limits


def test_a_macs_gpu_keeps_what_the_system_recommends(
    monkeypatch: pytest.MonkeyPatch, wired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    info = {"max_recommended_working_set_size": 48 * GIB, "memory_size": 64 * GIB}
    monkeypatch.setattr(mx, "device_info", lambda device: info)
    with caplog.at_level(logging.INFO):
        limit_memory(CPU, 48 * GIB)
    assert wired == [48 * GIB]
    assert "resident up to 48.0 GiB" in caplog.text
    assert mx.set_cache_limit(0) == int(48 * GIB * BUFFER_CACHE_FRACTION)


def test_other_devices_wire_nothing(wired: list[int]) -> None:
    limit_memory(CPU, 10 * GIB)
    assert wired == []
    assert mx.set_cache_limit(0) == int(10 * GIB * BUFFER_CACHE_FRACTION)
