"""The shipped kernels have no race, and not one barrier too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metal_on_cpu.emulator.mutation import Mutant, folder_without_a_barrier
from tests.metal_on_cpu.emulator.races import Race, run_sanitized
from tests.metal_on_cpu.host.build import SHADERS
from tests.metal_on_cpu.injection import replaced

MUTANTS = list(folder_without_a_barrier(SHADERS))
# Steps that meet each barrier: wide heads share scores and outputs between simdgroups.
STEPS = ["decode", "decode, many heads", "decode, wide", "prefill", "prefill, wide"]
OTHER_STEPS = ["decode, splits", "prefill, splits", "skipped slots", "unaligned"]
WIDEST_STEPS = ["decode, widest", "prefill, widest"]
RECURRENT_STEPS = ["linear attention", "narrow states"]
DRAW_STEPS = ["draw"]


def races(folder: Path, steps: list[str]) -> list[Race]:
    return run_sanitized("tests.metal_on_cpu.sanitized_steps", str(folder), *steps)


def steps_of(mutant: Mutant) -> list[str]:
    if mutant.file == "sampling/group.h":
        return DRAW_STEPS
    return [step for step in STEPS if step.startswith(Path(mutant.file).stem)] or STEPS


@pytest.mark.parametrize(
    "steps",
    [STEPS, OTHER_STEPS, WIDEST_STEPS, RECURRENT_STEPS, DRAW_STEPS],
    ids=["few splits", "others", "widest", "recurrent", "draw"],
)
def test_the_kernels_have_no_race(steps: list[str]) -> None:
    assert races(SHADERS, steps) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_without_any_one_barrier_they_have(mutant: Mutant, tmp_path: Path) -> None:
    with replaced(mutant.file, mutant.source, tmp_path):
        found = races(tmp_path, steps_of(mutant))
    assert found


def test_the_barriers_are_where_they_are_looked_for() -> None:
    assert {mutant.file for mutant in MUTANTS} == {
        "attention/decode.metal",
        "sampling/group.h",
        "attention/prefill.metal",
    }
    assert len(MUTANTS) >= 8
