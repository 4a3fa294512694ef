from __future__ import annotations

import plistlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deployments.observe.host import linux, macos
from deployments.observe.host.chip import SYSCTL, chip
from deployments.observe.host.collector import HostCollector, host_sources
from deployments.observe.host.reading import (
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
    Source,
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


def told(sources: Iterable[Source]) -> list[Reading]:
    return [reading for source in sources for reading in source.read()]


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
    assert told(linux.sources(tmp_path, page_bytes=4096)) == [
        Reading(MEMORY_STALL, 2.5, "some"),
        Reading(MEMORY_STALL, 0.5, "full"),
        Reading(SWAP_IN, 3 * 4096),
        Reading(SWAP_OUT, 5 * 4096),
        Reading(TEMPERATURE, 47.5, "x86_pkg_temp-0"),
        Reading(THERMAL_THROTTLES, 7),
    ]


def test_what_linux_does_not_tell_is_absent(tmp_path: Path) -> None:
    assert told(linux.sources(tmp_path)) == []
    write(tmp_path, {"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"})
    assert told(linux.sources(tmp_path)) == [Reading(IO_STALL, 0.0, "some")]


def mac(statistics: dict[str, int]) -> dict[tuple[str, ...], bytes]:
    accelerators = [{"IOClass": "AGXAccelerator", "PerformanceStatistics": statistics}]
    return {("/usr/bin/vm_stat",): VM_STAT, macos.IOREG: plistlib.dumps(accelerators)}


def test_macos() -> None:
    outputs = mac({"Device Utilization %": 42, "In use system memory": 1 << 30})
    assert told(macos.sources(outputs.__getitem__, lambda: 1, lambda: 2)) == [
        Reading(MEMORY_PRESSURE, 1),
        Reading(THERMAL_PRESSURE, 2),
        Reading(SWAP_IN, 10 * 16384),
        Reading(SWAP_OUT, 300 * 16384),
        Reading(GPU_UTILIZATION, 0.42),
        Reading(GPU_MEMORY, 1 << 30),
    ]


def test_what_macos_does_not_tell_is_absent() -> None:
    found = told(macos.sources(mac({}).__getitem__, lambda: None, lambda: None))
    assert [reading.metric for reading in found] == [SWAP_IN, SWAP_OUT]


def test_a_mac_without_a_gpu() -> None:
    outputs = {**mac({}), macos.IOREG: b""}
    found = told(macos.sources(outputs.__getitem__, lambda: 1, lambda: None))
    assert [reading.metric for reading in found] == [MEMORY_PRESSURE, SWAP_IN, SWAP_OUT]


def shown(collector: HostCollector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.observe.host.collector.INTERVAL_S", 0.001)


def test_readings_have_their_names_types_and_labels() -> None:
    found = [Reading(MEMORY_STALL, 2.5, "some"), Reading(GPU_UTILIZATION, 0.5)]
    collector = HostCollector("10.0.0.2", [Source("sensors", lambda: found)])
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


def test_what_can_no_longer_be_read_is_absent_and_told_once(
    quickly: None, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [
        subprocess.TimeoutExpired("ioreg", 5),
        plistlib.InvalidFileException(),
        ValueError("invalid literal for int()"),
    ]
    again = threading.Event()

    def gpu() -> Iterator[list[Reading] | Exception]:
        for error in failures:
            yield [Reading(GPU_UTILIZATION, 0.5)]
            yield error
        again.set()
        while True:
            yield OSError("gone")

    answers = gpu()

    def read() -> list[Reading]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    fine = Source("memory", lambda: [Reading(MEMORY_PRESSURE, 1)])
    collector = HostCollector("n", [Source("GPU", read), fine])
    collector.start()
    assert again.wait(10)
    collector.stop()
    text = shown(collector)
    assert "pomona_host_gpu" not in text
    assert 'pomona_host_memory_pressure_level{node="n"} 1.0' in text
    [record] = caplog.records
    assert "GPU can't be read" in record.getMessage()


def test_this_machine_tells_something(tmp_path: Path) -> None:
    found = {reading.metric.name for reading in told(host_sources(tmp_path))}
    assert {"memory_total_bytes", "memory_available_bytes", "swap_used_bytes"} <= found
    assert "disk_available_bytes" in found
    if sys.platform == "linux":
        assert "swap_out_bytes" in found


def test_every_alert_and_metric_name_is_known() -> None:
    rules = Path("ops/prometheus/rules/hosts.yml").read_text()
    from deployments.observe.host.reading import METRICS

    def full_name(metric: Metric) -> str:
        return f"pomona_host_{metric.name}" + ("_total" if metric.is_counter else "")

    assert set(re.findall(r"pomona_host_\w+", rules)) <= set(map(full_name, METRICS))


def test_the_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert chip("linux", cpuinfo) is None
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7B13\nprocessor\t: 1\n")
    assert chip("linux", cpuinfo) == "AMD EPYC 7B13"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x61\n")
    assert chip("linux", cpuinfo) is None

    def run(command: tuple[str, ...], **options: object) -> subprocess.CompletedProcess[bytes]:
        assert command == SYSCTL
        return subprocess.CompletedProcess(command, 0, b"Apple M4 Pro\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert chip("darwin") == "Apple M4 Pro"
