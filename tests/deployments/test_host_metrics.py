from __future__ import annotations

import plistlib
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deployments.host import linux, macos
from deployments.host.collector import HostCollector, host_readings
from deployments.host.reading import (
    GPU_MEMORY,
    GPU_UTILIZATION,
    IO_STALL,
    MEMORY_PRESSURE,
    MEMORY_STALL,
    SWAP_IN,
    SWAP_OUT,
    TEMPERATURE,
    THERMAL_PRESSURE,
    THERMAL_THROTTLES,
    Metric,
    Reading,
)

VM_STAT = b"""Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
Swapins:                                     10.
Swapouts:                                   300.
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_linux(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/pressure/memory": "some avg10=0.00 avg60=1.20 avg300=0.30 total=2500000\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
            "proc/vmstat": "nr_free_pages 9\npswpin 3\npswpout 5\n",
            "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
            "sys/class/thermal/thermal_zone0/temp": "47500\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "2\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "5\n",
        },
    )
    assert list(linux.readings(tmp_path, page_bytes=4096)) == [
        Reading(MEMORY_STALL, 2.5, "some"),
        Reading(MEMORY_STALL, 0.5, "full"),
        Reading(SWAP_IN, 3 * 4096),
        Reading(SWAP_OUT, 5 * 4096),
        Reading(TEMPERATURE, 47.5, "x86_pkg_temp-0"),
        Reading(THERMAL_THROTTLES, 7),
    ]


def test_what_linux_does_not_tell_is_absent(tmp_path: Path) -> None:
    assert list(linux.readings(tmp_path)) == []
    write(tmp_path, {"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"})
    assert list(linux.readings(tmp_path)) == [Reading(IO_STALL, 0.0, "some")]


def mac(statistics: dict[str, int]) -> dict[tuple[str, ...], bytes]:
    accelerators = [{"IOClass": "AGXAccelerator", "PerformanceStatistics": statistics}]
    return {("/usr/bin/vm_stat",): VM_STAT, macos.IOREG: plistlib.dumps(accelerators)}


def test_macos() -> None:
    outputs = mac({"Device Utilization %": 42, "In use system memory": 1 << 30})
    assert list(macos.readings(outputs.__getitem__, lambda: 1, lambda: 2)) == [
        Reading(MEMORY_PRESSURE, 1),
        Reading(THERMAL_PRESSURE, 2),
        Reading(SWAP_IN, 10 * 16384),
        Reading(SWAP_OUT, 300 * 16384),
        Reading(GPU_UTILIZATION, 0.42),
        Reading(GPU_MEMORY, 1 << 30),
    ]


def test_what_macos_does_not_tell_is_absent() -> None:
    found = list(macos.readings(mac({}).__getitem__, lambda: None, lambda: None))
    assert [reading.metric for reading in found] == [SWAP_IN, SWAP_OUT]


def shown(collector: HostCollector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.host.collector.INTERVAL_S", 0.001)


def test_readings_have_their_names_types_and_labels() -> None:
    found = [Reading(MEMORY_STALL, 2.5, "some"), Reading(GPU_UTILIZATION, 0.5)]
    collector = HostCollector("10.0.0.2", lambda: found)
    assert shown(collector) == ""
    collector.start()
    # Waits for the thread, which reads once before it looks whether it should stop.
    collector.stop()
    text = shown(collector)
    assert 'pomona_host_memory_stall_seconds_total{node="10.0.0.2",scope="some"} 2.5' in text
    assert 'pomona_host_gpu_utilization_ratio{node="10.0.0.2"} 0.5' in text
    assert re.findall(r"^# TYPE (\S+ \S+)$", text, re.M) == [
        "pomona_host_memory_stall_seconds_total counter",
        "pomona_host_gpu_utilization_ratio gauge",
    ]


def test_a_host_that_can_no_longer_be_read_shows_nothing_old(
    quickly: None, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([[Reading(GPU_UTILIZATION, 0.5)], subprocess.TimeoutExpired("ioreg", 5)])
    failed = threading.Event()

    def read() -> list[Reading]:
        answer = next(answers, None)
        if answer is None:
            failed.set()
            raise OSError("gone")
        if isinstance(answer, Exception):
            raise answer
        return answer

    collector = HostCollector("n", read)
    collector.start()
    assert failed.wait(10)
    collector.stop()
    assert shown(collector) == ""
    assert "ioreg" in caplog.text


def test_this_machine_tells_something() -> None:
    found = {reading.metric.name for reading in host_readings()}
    assert {"memory_total_bytes", "memory_available_bytes", "swap_used_bytes"} <= found
    if sys.platform == "linux":
        assert "swap_out_bytes" in found


def test_every_alert_and_metric_name_is_known() -> None:
    rules = Path("ops/prometheus/rules/hosts.yml").read_text()
    from deployments.host.reading import METRICS

    def full_name(metric: Metric) -> str:
        return f"pomona_host_{metric.name}" + ("_total" if metric.is_counter else "")

    assert set(re.findall(r"pomona_host_\w+", rules)) <= set(map(full_name, METRICS))
