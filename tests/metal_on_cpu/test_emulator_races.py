"""What ThreadSanitizer sees, and that it sees nothing in what is correct."""

import numpy as np
import pytest

from tests.metal_on_cpu.emulator.kernels_for_tests import HEADER
from tests.metal_on_cpu.emulator.mutation import without_a_barrier
from tests.metal_on_cpu.emulator.races import race_report

# Two threadgroups; each thread of a simdgroup hands its value to another one, then each
# simdgroup to the next.
EXCHANGE = (
    HEADER
    + """
kernel void k(
    device float* o,
    uint t [[thread_position_in_grid]],
    uint i [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a[64];
  float sum = 0;
  for (int step = 0; step < 3; step++) {
    a[i] = t + step;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float mirrored = a[i - lane + 31 - lane];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    a[i] = mirrored;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum += a[63 - i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  o[t] = sum;
}
"""
)
DISPATCH = {"grid": (2, 1, 1), "threadgroup": (64, 1, 1)}

RACES = {
    "lanes exchange through threadgroup memory without a barrier": """
    kernel void k(device float* o, uint t [[thread_index_in_threadgroup]]) {
      threadgroup float a[64];
      a[t] = t;
      float x = simd_sum(1.0f);
      o[t] = a[t ^ 1] + x;
    }""",
    "two threadgroups write the same word": """
    kernel void k(
        device float* o, uint t [[thread_index_in_threadgroup]],
        uint g [[threadgroup_position_in_grid]]) {
      o[t] = g;
    }""",
    "a barrier that orders no memory": """
    kernel void k(device float* o, uint t [[thread_index_in_threadgroup]]) {
      threadgroup float a[64];
      a[t] = t;
      threadgroup_barrier(mem_flags::mem_none);
      o[t] = a[63 - t];
    }""",
}


def test_a_correct_kernel_has_no_race():
    assert race_report(EXCHANGE, "k", buffers={0: np.zeros(128, np.float32)}, **DISPATCH) == []


@pytest.mark.parametrize("mutant", list(without_a_barrier(EXCHANGE)), ids=str)
def test_without_any_one_barrier_it_has(mutant):
    races = race_report(mutant.source, "k", buffers={0: np.zeros(128, np.float32)}, **DISPATCH)
    assert races
    assert all("source.metal:" in access for race in races for access in race.accesses)


@pytest.mark.parametrize("case", RACES)
def test_races_that_a_lucky_schedule_hides(case):
    buffers = {0: np.zeros(64, np.float32)}
    assert race_report(HEADER + RACES[case], "k", buffers=buffers, **DISPATCH)


def test_mutants_lack_one_barrier_each():
    mutants = list(without_a_barrier(EXCHANGE))
    assert [m.barrier for m in mutants] == ["simdgroup_barrier"] * 2 + ["threadgroup_barrier"] * 2
    for mutant in mutants:
        lines = zip(EXCHANGE.splitlines(), mutant.source.splitlines(), strict=True)
        changed = [i for i, (old, new) in enumerate(lines, 1) if old != new]
        assert changed == [mutant.line]
