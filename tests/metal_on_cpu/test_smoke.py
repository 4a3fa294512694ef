"""A quick check of the Metal kernels: one step through each attention kernel, and one race."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np

from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.emulator.kernels_for_tests import run
from tests.metal_on_cpu.parity import check
from tests.support.backend_metal.native_cases import make_case

MIRRORED = """
kernel void k(device float* o, uint t [[thread_position_in_grid]]) {
  threadgroup float a[64];
  a[t] = t;
  BARRIER
  o[t] = a[63 - t];
}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def test_decodes_and_prefills_are_right_on_any_schedule() -> None:
    spans = [(1, 300), (17, 60), (1, 0), (5, 700)]
    case = make_case(7, (2, 3), True, dtype=mx.float16, spans=spans)
    for seed in (0, 1):
        with host.execution(seed=seed, reverse_unordered=seed == 1):
            check(case)
    operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    kernels = [re.sub(r"_(half|ushort).*", "", name) for name in operators.last_launch().kernels]
    assert kernels == ["decode", "prefill", "scatter", "reduce"]


def test_the_schedule_does_not_show_in_a_correct_kernel_and_does_in_a_racing_one() -> None:
    def outputs(barrier: str) -> list[np.ndarray]:
        kernel, buffers = MIRRORED.replace("BARRIER", barrier), {0: np.zeros(64, np.float32)}
        return [run(kernel, buffers, threads=64, seed=seed).buffers[0] for seed in (0, 1, 7, 8)]

    correct = outputs(BARRIER)
    assert all((out == correct[0]).all() for out in correct)
    assert any(np.isnan(out).any() for out in outputs(""))
