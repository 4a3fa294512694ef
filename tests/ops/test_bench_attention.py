"""The attention benchmark, on the CPU: everybody does the same work, and the tables add up."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend_metal.device import CPU, REFERENCE, Device  # isort: skip
import mlx.core as mx
import numpy as np

from ops.bench import device_limits, machine
from ops.bench.attention import __main__ as attention
from ops.bench.attention.bench import CONTIGUOUS, GPU_CALLS, AttentionBench, Measured
from ops.bench.attention.cases import BLOCK_SIZE, Case, Paged, contiguous
from tests.support.backend_metal.changed_device import changed

pytestmark = pytest.mark.serve

GPU = changed(CPU, name="some", mlx=mx.Device(mx.gpu))
"""Nothing runs on it."""
SMALL = Case(40, 2, num_q_heads=4, num_kv_heads=2, head_dim=64)


@pytest.fixture(autouse=True)
def same_default_device() -> Iterator[None]:
    previous = mx.default_device()
    yield
    mx.set_default_device(previous)


def bench(device: Device = CPU, dtype: mx.Dtype = mx.float32, **changed: float) -> AttentionBench:
    return AttentionBench(device, dtype, **{"budget": 0.0, "memory_bytes": 1e9} | changed)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("case", [Case(100, 3), Case(48, 2, new=16)])
def test_contenders_do_the_same_work(case: Case, dtype: mx.Dtype) -> None:
    paged = Paged(case, dtype, CPU)
    written = []
    for path in (CPU, REFERENCE):
        paged.run(path)()
        written.append([np.array(cache.astype(mx.float32)) for cache in paged._caches])
    for first, second in zip(*written, strict=True):
        np.testing.assert_array_equal(first, second)
    contiguous(case, dtype)()
    blocks_each = -(-case.context // BLOCK_SIZE)
    in_blocks = sum(cache.nbytes for cache in paged._caches)
    assert case.kv_bytes(dtype) == in_blocks * case.context // (blocks_each * BLOCK_SIZE)


@pytest.mark.parametrize("case", [SMALL, replace(SMALL, new=7)])
def test_a_run_is_a_chain_of_calls(case: Case) -> None:
    calls = []

    def counted(*arguments: object, **options: object) -> object:
        calls.append(1)
        return CPU.scatter_paged_attention(*arguments, **options)

    path: Device = changed(CPU, scatter_paged_attention=counted)
    run = Paged(case, mx.float32, CPU, calls=3).run(path)
    run()
    run()
    assert len(calls) == 6
    contiguous(case, mx.float32, calls=3)()


def test_arithmetic_of_a_causal_prefill() -> None:
    case = Case(context=3, batch=2, new=2, num_q_heads=4, num_kv_heads=2, head_dim=64)
    # The two queries see 2 and 3 keys; a multiplication and an addition, twice.
    assert case.flops == 2 * (2 + 3) * 4 * 64 * 4
    assert case.kv_bytes(mx.bfloat16) == 2 * 2 * 3 * 2 * 64 * 2
    assert (SMALL.name, Case(8, 1, new=4).name) == ("2 x 40", "1 x 4 of 8")


@pytest.mark.exhaustive
def test_it_is_measured_within_the_memory() -> None:
    assert list(bench().measure(SMALL)) == ["cpu", "reference", CONTIGUOUS]
    once = float(SMALL.kv_bytes(mx.float32))
    assert list(bench(memory_bytes=once).measure(SMALL)) == ["cpu"]
    assert bench(memory_bytes=once - 1).measure(SMALL) == {}
    # The reference has two copies of its own, and MLX two more, all in float32.
    half = float(SMALL.kv_bytes(mx.bfloat16))
    assert "reference" in bench(dtype=mx.bfloat16, memory_bytes=9 * half).measure(SMALL)
    assert "reference" not in bench(dtype=mx.bfloat16, memory_bytes=9 * half - 1).measure(SMALL)
    on_a_gpu = bench(GPU, dtype=mx.bfloat16)
    assert on_a_gpu._bytes(SMALL, "reference") == (1 + 8 * GPU_CALLS) * half
    prefill = replace(SMALL, new=7)
    needed = 3.0 * prefill.kv_bytes(mx.float32) + 2 * 4 * (2 * 4 * 7 * 40)
    assert CONTIGUOUS in bench(memory_bytes=needed).measure(prefill)
    assert CONTIGUOUS not in bench(memory_bytes=needed - 1).measure(prefill)
    mx.clear_cache()


def test_each_device_has_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "copy_bandwidth", lambda num_bytes, threads: 1.0)
    monkeypatch.setattr(machine, "gemm_rate", lambda size: 2.0)
    monkeypatch.setattr(device_limits, "copy_rate", lambda: 3.0)
    monkeypatch.setattr(device_limits, "gemm_rate", lambda dtype: float(dtype.size))
    cases = (SMALL, replace(SMALL, new=7))
    assert [bench().limit(case) for case in cases] == [1.0, 2.0]
    assert [bench(GPU, mx.bfloat16).limit(case) for case in cases] == [3.0, 2.0]
    assert [bench(GPU, mx.float32).limit(case) for case in cases] == [3.0, 4.0]


def test_figures_on_a_gpu_are_of_one_call_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([[8e-3], [16e-3]])
    monkeypatch.setattr(
        "ops.bench.attention.bench.medians_by_turns", lambda runs, budget: next(times)
    )
    once = float(SMALL.kv_bytes(mx.float32))
    assert bench(GPU, memory_bytes=once).measure(SMALL) == {"cpu": 8e-3 / GPU_CALLS}
    assert bench(memory_bytes=once).measure(SMALL) == {"cpu": 16e-3}


def test_tables() -> None:
    times = {"cpu": 1e-3, "reference": 4e-3}
    decode = Measured(Case(1024, 1), times, limit=10e9)
    prefill = Measured(Case(64, 1, new=64), times, limit=100e9)
    # 8.4 MB of keys and values in a millisecond, of 10 GB/s.
    figures = "| 1000.0 | 8.4 | 2.1 | - | 10.0 | 83.9 | 21.0 | - | 4.00 | - |"
    table = bench().table("decode", [decode])
    assert f"| 1 x 1024 {figures}" in table
    assert "| cpu % of copy | reference % of copy | contiguous % of copy |" in table
    table = bench().table("prefill", [prefill])
    assert "| 1 x 64 of 64 | 1000.0 | 17.0 |" in table
    assert "| GEMM GFLOP/s | cpu % of GEMM |" in table


def test_limits_are_finite() -> None:
    assert math.isfinite(device_limits.copy_rate(1 << 16, repeats=1))
    for dtype in (mx.float32, mx.bfloat16):
        assert math.isfinite(device_limits.gemm_rate(dtype, 64, repeats=1))


def test_the_devices_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_limits, "copy_rate", lambda: 4e12)
    monkeypatch.setattr(device_limits, "gemm_rate", lambda dtype: 7e14)
    monkeypatch.setattr(mx, "device_info", lambda device: {"device_name": "some GPU"})
    text = bench(GPU, mx.bfloat16).machine_report()
    assert "| name | some GPU |" in text
    assert "| copy bandwidth | 4000.0 GB/s |" in text
    assert "| bfloat16 GEMM | 700000 GFLOP/s |" in text


@pytest.mark.exhaustive
def test_a_whole_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(attention, "DECODES", (SMALL,))
    monkeypatch.setattr(attention, "PREFILLS", (replace(SMALL, new=7),))
    monkeypatch.setattr(machine, "copy_bandwidth", lambda num_bytes, threads: 1e9)
    monkeypatch.setattr(machine, "gemm_rate", lambda size: 1e9)
    monkeypatch.setattr(AttentionBench, "machine_report", lambda bench: "the machine")
    monkeypatch.setattr(sys, "argv", ["attention", "--device=cpu", "--budget=0"])
    attention.main()
    text = capsys.readouterr().out
    assert text.startswith("the machine\n\n| decode, batch x context | cpu us |")
    assert "\n| 2 x 40 |" in text
    assert "\n| 2 x 7 of 40 |" in text
