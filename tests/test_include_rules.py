"""Which room of ``backend_metal/csrc`` may include which.

Rooms are listed from top to bottom and include only what stands below them, so there is no circle.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "backend_metal" / "csrc"

OPERATORS_ON_CPU = ("cpu/arrays", "cpu/kernels", "cpu/launch", "cpu/threads", "operators")

ROOMS: dict[str, tuple[str, ...]] = {
    "python": ("cpu", "gpu", "operators"),
    "metal": ("gpu", "operators"),
    "gpu": ("operators",),
    "cpu/attention": OPERATORS_ON_CPU,
    "cpu/sampling": OPERATORS_ON_CPU,
    "cpu/recurrent": OPERATORS_ON_CPU,
    "cpu/layers": (*OPERATORS_ON_CPU, "cpu/gemm/gemm.h"),
    "cpu/arrays": ("cpu/launch",),
    "cpu/kernels": ("cpu/launch",),
    "cpu/gemm": ("cpu/threads",),
    "cpu/gemm/gemm.h": ("cpu/gemm/operands.h",),
    "cpu/gemm/operands.h": (),
    "cpu/launch": (),
    "cpu/threads": (),
    "operators": (),
}
"""What each may include; headers beside the rooms, and those of shaders, are for all."""


def room_of(file: str) -> str | None:
    """The innermost room that ``file`` is in."""
    return max((room for room in ROOMS if f"{file}/".startswith(f"{room}/")), key=len, default=None)


def broken_rules(file: str, source: str) -> list[str]:
    """The includes of ``file`` that its room does not allow, a line each."""
    room = room_of(file)
    if room is None:
        return []
    allowed = (room, *ROOMS[room])
    return [
        f"{file} includes {name}: {room} may not include {target}"
        for name in re.findall(r'^#include "(.+)"', source, re.MULTILINE)
        if (target := room_of(name)) is not None
        and not any(f"{target}/".startswith(f"{one}/") for one in allowed)
    ]


def test_rooms_include_only_what_the_plan_allows() -> None:
    files = [path for path in ROOT.rglob("*.*") if path.suffix in (".h", ".cpp", ".inc")]
    assert {room_of(path.relative_to(ROOT).as_posix()) for path in files} >= {*ROOMS}
    broken = [
        line
        for path in sorted(files)
        for line in broken_rules(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert not broken, "\n".join(broken)


def test_the_plan_has_no_arrow_that_points_upwards() -> None:
    rooms = list(ROOMS)
    for number, room in enumerate(rooms):
        above = [f"{one}/" for one in rooms[:number]]
        assert not [to for to in ROOMS[room] if any(one.startswith(f"{to}/") for one in above)]


@pytest.mark.parametrize(
    ("file", "header"),
    [
        ("operators/repeated_graph.h", "cpu/attention/attention.h"),
        ("cpu/layers/panels.cpp", "cpu/gemm/kernels/tiles.h"),
        ("cpu/gemm/gemm.cpp", "cpu/layers/panels.h"),
        ("cpu/recurrent/recurrent.cpp", "cpu/attention/attention.h"),
        ("gpu/launch_plan.cpp", "metal/pipelines.h"),
    ],
)
def test_an_include_that_breaks_the_plan_is_named(file: str, header: str) -> None:
    [line] = broken_rules(file, f'#include "{header}"\n')
    assert line.startswith(f"{file} includes {header}")
