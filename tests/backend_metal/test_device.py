"""Choosing a device, and its memory."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

from backend_metal import device
from backend_metal.attention.paths import CPU, path_on
from backend_metal.gpu import Gpu


def test_auto_takes_the_best_device_there_is() -> None:
    previous = mx.default_device()
    chosen = device.select_device("auto")
    assert mx.default_device() == chosen.mlx
    assert chosen.name == device.available_devices()[0]
    assert (chosen.mlx.type == mx.cpu) == (chosen.name == "cpu")
    assert chosen.path == path_on(chosen.mlx)
    mx.set_default_device(previous)


def test_the_cpu_is_always_there() -> None:
    previous = mx.default_device()
    assert device.available_devices()[-1] == "cpu"
    assert device.select_device("cpu") == device.Device("cpu", mx.Device(mx.cpu), CPU)
    mx.set_default_device(previous)


@pytest.mark.parametrize(
    ("kind", "step_tokens"), [(mx.cpu, device.CPU_STEP_TOKENS), (mx.gpu, device.GPU_STEP_TOKENS)]
)
def test_a_step_is_as_long_as_suits_the_device(kind: mx.DeviceType, step_tokens: int) -> None:
    assert device.Device("a device", mx.Device(kind), CPU).step_tokens == step_tokens


def test_a_gpu_may_have_longer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataclasses.replace(CPU, name="mine")
    gpu = Gpu("mine", ModuleType("operators"), path, step_tokens=device.GPU_STEP_TOKENS + 1)
    monkeypatch.setattr(device, "GPU", gpu)
    mine = device.Device("mine", mx.Device(mx.gpu), path)
    assert mine.step_tokens == gpu.step_tokens
    assert dataclasses.replace(mine, path=CPU).step_tokens == device.GPU_STEP_TOKENS


def test_only_a_path_without_products_of_its_own_asks_how_mlx_multiplies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = dataclasses.replace(CPU, multiply_alike=lambda layers, trace: None)
    for path in (CPU, own):
        chosen = device.Device(
            "a device", mx.Device(mx.cpu), dataclasses.replace(CPU, deterministic=path)
        )
        for alike in (False, True):
            monkeypatch.setattr(device, "multiplies_rows_alike", lambda alike=alike: alike)
            expected = path if alike or path is own else None
            assert chosen.deterministic_path is expected
    none = dataclasses.replace(CPU, deterministic=None)
    assert device.Device("another", mx.Device(mx.cpu), none).deterministic_path is None


def test_a_registered_device_is_there_by_its_name_alone() -> None:
    previous = mx.default_device()
    mine = device.Device("mine", mx.Device(mx.cpu), dataclasses.replace(CPU, name="mine"))
    with device.registered(mine):
        assert device.is_registered("mine")
        assert device.select_device("mine") is mine
        assert device.select_device("auto") != mine
        assert "mine" not in device.available_devices()
        for taken in (mine, dataclasses.replace(mine, name="cpu")):
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
    monkeypatch.setattr(device, "CGROUP_LIMITS", (limit,))
    cpu = mx.Device(mx.cpu)
    assert device.device_memory_bytes(cpu) == physical
    limit.write_text("max\n")
    assert device.device_memory_bytes(cpu) == physical
    limit.write_text("123456\n")
    assert device.device_memory_bytes(cpu) == 123456


def test_memory_on_a_gpu_is_what_mlx_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = mx.Device(mx.gpu)
    info: dict[str, int] = {"memory_size": 64, "max_recommended_working_set_size": 48}
    monkeypatch.setattr(mx, "device_info", lambda _: info)
    assert device.device_memory_bytes(gpu) == 48
    del info["max_recommended_working_set_size"]
    assert device.device_memory_bytes(gpu) == 64
    info.clear()
    with pytest.raises(ValueError, match="does not report the memory"):
        device.device_memory_bytes(gpu)
