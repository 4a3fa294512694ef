"""What macOS is told to keep resident: weights and caches, to the page, and nothing that comes and
goes."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from backend_metal.engine import build
from backend_metal.engine.memory import device_share
from backend_metal.engine.memory.device_share import claim
from backend_metal.engine.memory.kv_blocks import GIB
from backend_metal.engine.memory.resident import HEAP_BYTES, ResidentMemory, held_bytes, wire
from backend_metal.llm import LLM
from tests.support.backend_metal import tiny_models

CPU = mx.Device(mx.cpu)
RECOMMENDED = 4 * GIB


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limits that a Mac's GPU is given, in place of the CPU."""
    limits: list[int] = []
    info = {**mx.device_info(CPU), "max_recommended_working_set_size": RECOMMENDED}
    monkeypatch.setattr(mx, "device_info", lambda device: info)
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    return limits


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_models.save("qwen3", tmp_path)
    return str(tmp_path)


def test_an_engine_wires_its_weights_and_caches(
    wired: list[int],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(build, "engines_folder", lambda: tmp_path / "engines")
    alive = mx.get_active_memory()
    with caplog.at_level(logging.INFO):
        engine = LLM(model, num_kv_blocks=64, max_num_seqs=2, device="cpu").engine
    assert engine.resident is not None
    held = sum(one.nbytes for one in engine.resident.arrays())
    [limit] = wired
    # A CPU's panels of weights come on top.
    assert held <= limit - alive <= held + 4 * 2**20
    assert limit < RECOMMENDED / 2
    assert "are wired, of " in caplog.text


@pytest.mark.parametrize(
    ("wanted", "limits", "told"),
    [
        ("off", [], "no memory is wired: engine.wired_memory is off"),
        (1.5, [3 * GIB // 2], "1.50 GiB are wired"),
        ("auto", [RECOMMENDED], "4.00 GiB are wired, of 5.00 GiB"),
    ],
)
def test_a_setting_says_how_much(
    wired: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wanted: Any,
    limits: list[int],
    told: str,
) -> None:
    monkeypatch.setattr(mx, "get_active_memory", lambda: 5 * GIB)
    with caplog.at_level(logging.INFO):
        wire(CPU, wanted, [])
    assert wired == limits
    assert told in caplog.text


def test_more_than_macos_recommends_is_refused(wired: list[int]) -> None:
    with pytest.raises(ValueError, match=r"engine.wired_memory must be at most 4.0 GiB"):
        wire(CPU, 4.5, [])
    assert wired == []


def test_other_devices_wire_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "set_wired_limit", None)
    wire(CPU, "auto", [])


def test_arrays_are_held_in_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    page = mmap.PAGESIZE
    tiny, small, large = (mx.zeros((size,), mx.uint8) for size in (64, 300, 3 * page))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 300 + 3 * page)
    assert held_bytes([tiny, small, large]) == 4 * page + HEAP_BYTES


def test_a_touch_reads_of_every_array() -> None:
    arrays = [mx.ones((2, 3)), mx.zeros((4,), mx.uint32), mx.array(1.0, mx.bfloat16)]
    ResidentMemory(lambda: arrays).touch()


def test_engines_of_a_host_share_its_gpu(tmp_path: Path) -> None:
    first = claim(0.5, "one", tmp_path)
    with pytest.raises(
        ValueError, match=r"at most 0\.50 beside .* not 0\.8: one \(process \d+\) has 0\.5"
    ):
        claim(0.8, "other", tmp_path, patience_s=0)
    with claim(0.5, "other", tmp_path):
        first.close()
        claim(0.4, "third", tmp_path).close()
    claim(0.95, "last", tmp_path).close()
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_an_engine_waits_for_the_one_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = claim(0.8, "demo", tmp_path)
    monkeypatch.setattr(device_share.time, "sleep", lambda seconds: leaving.close())
    claim(0.8, "demo", tmp_path).close()
    assert leaving.closed
