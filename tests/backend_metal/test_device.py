"""Choosing a device, and its memory."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import pytest

from backend_metal import device
from backend_metal.device import CPU, device_on
from backend_metal.devices import memory
from backend_metal.devices.cpu import device as cpu_device
from tests.support.backend_metal.changed_device import changed


def test_auto_takes_the_best_device_there_is() -> None:
    previous = mx.default_device()
    chosen = device.select_device("auto")
    assert mx.default_device() == chosen.mlx
    assert chosen.name == device.available_devices()[0]
    assert (chosen.mlx.type == mx.cpu) == (chosen.name == "cpu")
    assert chosen is device_on(chosen.mlx)
    mx.set_default_device(previous)


def test_the_cpu_is_always_there() -> None:
    previous = mx.default_device()
    assert device.available_devices()[-1] == "cpu"
    assert device.select_device("cpu") is CPU
    mx.set_default_device(previous)


def test_the_cpu_is_deterministic_where_its_products_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for alike in (False, True):
        monkeypatch.setattr(cpu_device, "multiplies_rows_alike", lambda alike=alike: alike)
        assert (CPU.deterministic() is not None) == alike
    assert device.REFERENCE.deterministic() is None


def test_a_registered_device_is_there_by_its_name_alone() -> None:
    previous = mx.default_device()
    mine = changed(CPU, name="mine")
    with device.registered(mine):
        assert device.is_registered("mine")
        assert device.select_device("mine") is mine
        assert device.select_device("auto") != mine
        assert "mine" not in device.available_devices()
        for taken in (mine, changed(mine, name="cpu")):
            with pytest.raises(ValueError, match="there is a device"), device.registered(taken):
                pass
        assert device.is_registered("mine")
    assert not device.is_registered("mine")
    with pytest.raises(ValueError, match=r"engine\.device is 'mine'"):
        device.select_device("mine")
    mx.set_default_device(previous)


@pytest.mark.skipif(mx.metal.is_available(), reason="Metal is here")
def test_an_absent_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.device is 'metal', which MLX does not find"):
        device.select_device("metal")


def test_memory_on_the_cpu_is_physical_or_the_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (limit,))
    cpu = mx.Device(mx.cpu)
    assert memory.device_memory_bytes(cpu) == physical
    limit.write_text("max\n")
    assert memory.device_memory_bytes(cpu) == physical
    limit.write_text("123456\n")
    assert memory.device_memory_bytes(cpu) == 123456


def test_memory_on_a_gpu_is_what_mlx_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = mx.Device(mx.gpu)
    info: dict[str, int] = {"memory_size": 64, "max_recommended_working_set_size": 48}
    monkeypatch.setattr(mx, "device_info", lambda _: info)
    assert memory.device_memory_bytes(gpu) == 48
    del info["max_recommended_working_set_size"]
    assert memory.device_memory_bytes(gpu) == 64
    info.clear()
    with pytest.raises(ValueError, match="does not report the memory"):
        memory.device_memory_bytes(gpu)
