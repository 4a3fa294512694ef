"""What the emulator and the tests' steps catch of mistakes put into the shipped shaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metal_on_cpu.injected_bugs import SHADER_BUGS
from tests.metal_on_cpu.injected_host import HOST_BUGS, HostBug, what_catches
from tests.metal_on_cpu.injection import STEPS, Bug, first_catch, injected


@pytest.mark.parametrize("bug", SHADER_BUGS, ids=str)
def test_a_mistake_is_caught(bug: Bug, tmp_path: Path) -> None:
    with injected(bug.file, bug.old, bug.new, tmp_path):
        assert first_catch(bug.step) == bug.caught_by


@pytest.mark.parametrize("bug", HOST_BUGS, ids=str)
def test_a_mistake_in_the_dispatch_code_is_caught(bug: HostBug) -> None:
    assert bug.message in what_catches(bug)


@pytest.mark.parametrize("step", STEPS)
def test_the_shipped_shaders_are_innocent(step: str) -> None:
    assert first_catch(step) is None


def test_every_mistake_has_its_place() -> None:
    names = [bug.name for bug in SHADER_BUGS]
    assert len(set(names)) == len(names) >= 25
    assert {bug.caught_by for bug in SHADER_BUGS} == {"compiler", "emulator", "numbers"}
