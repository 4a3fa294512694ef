"""Which room may import which: the plan that ``deployments/README.md`` draws, and its test.

Rooms are listed from top to bottom and import only what stands below them, so there is no circle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import DOCUMENTS

ROOT = Path(__file__).resolve().parents[1]

ROOMS: dict[str, tuple[str, ...]] = {
    "deployments.command": (
        "deployments.backend",
        "deployments.gateway.access",
        "deployments.launch",
        "deployments.observe",
        "deployments.settings",
    ),
    "backend_metal": ("backend_metal", "deployments.backend"),
    "backend_metal.engine": (
        "backend_metal.attention",
        "backend_metal.device",
        "backend_metal.devices",
        "backend_metal.engine",
        "backend_metal.native",
        "backend_metal.models",
        "backend_metal.native",
        "backend_metal.recurrent",
        "deployments.backend",
    ),
    "backend_metal.engine.requests": (
        "backend_metal.engine.grammar",
        "backend_metal.engine.pooling",
        "backend_metal.engine.schedule",
        "backend_metal.engine.text",
        "backend_metal.models.load",
        "deployments.backend",
    ),
    "backend_metal.engine.memory": ("backend_metal.engine.schedule",),
    "backend_metal.engine.text": ("backend_metal.engine.schedule", "deployments.backend"),
    "backend_metal.engine.sampling": (
        "backend_metal.devices",
        "backend_metal.native",
        "deployments.backend",
    ),
    "backend_metal.engine.schedule": (
        "backend_metal.engine.grammar",
        "backend_metal.engine.pooling",
        "deployments.backend",
    ),
    "backend_metal.engine.pooling": ("backend_metal.models.load",),
    "backend_metal.engine.grammar": ("deployments.backend",),
    "backend_metal.models.load": (
        "backend_metal.device",
        "backend_metal.devices",
        "backend_metal.models",
        "backend_metal.native",
        "deployments.backend",
    ),
    "backend_metal.models": (
        "backend_metal.attention",
        "backend_metal.device",
        "backend_metal.devices",
        "backend_metal.models.checks",
        "backend_metal.models.families",
        "backend_metal.models.layers",
        "backend_metal.recurrent",
    ),
    "backend_metal.models.families": ("backend_metal.models.layers",),
    "backend_metal.models.checks": (
        "backend_metal.attention",
        "backend_metal.devices",
        "backend_metal.models.layers",
    ),
    "backend_metal.models.layers": (
        "backend_metal.attention",
        "backend_metal.devices",
        "backend_metal.recurrent",
    ),
    "backend_metal.attention": (
        "backend_metal.device",
        "backend_metal.devices",
        "backend_metal.native",
    ),
    "backend_metal.recurrent": (
        "backend_metal.device",
        "backend_metal.devices",
        "backend_metal.native",
    ),
    "backend_metal.device": (
        "backend_metal.cuda",
        "backend_metal.devices",
        "backend_metal.native",
    ),
    "backend_metal.cuda": ("backend_metal.devices",),
    "backend_metal.devices": ("backend_metal.native",),
    "backend_metal.native": ("backend_metal._native",),
    "backend_metal._native": (),
    "deployments.launch": (
        "deployments.app",
        "deployments.backend",
        "deployments.environment",
        "deployments.gateway",
        "deployments.launch",
        "deployments.observe",
        "deployments.settings",
    ),
    "deployments.app": (
        "deployments.gateway",
        "deployments.observe",
        "deployments.serve",
        "deployments.settings",
    ),
    "deployments.serve": (
        "deployments.backend",
        "deployments.fleet",
        "deployments.gateway",
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
        "deployments.replica",
        "deployments.settings",
        "deployments.wire",
    ),
    "deployments.environment": ("deployments.launch.private_files",),
    "deployments.gateway": (
        "deployments.fleet",
        "deployments.gateway",
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
        "deployments.settings",
        "deployments.wire",
    ),
    "deployments.gateway.responses": (
        "deployments.gateway.access",
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
    ),
    "deployments.gateway.page": (),
    "deployments.gateway.watch": (
        "deployments.fleet",
        "deployments.gateway.access",
        "deployments.gateway.relay",
        "deployments.gateway.replicas",
        "deployments.http",
        "deployments.wire",
    ),
    "deployments.gateway.access": (
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
        "deployments.settings",
    ),
    "deployments.gateway.relay": (
        "deployments.fleet",
        "deployments.gateway.replicas",
        "deployments.gateway.routing",
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
        "deployments.settings",
        "deployments.wire",
    ),
    "deployments.gateway.routing": (
        "deployments.gateway.replicas",
        "deployments.protocol",
        "deployments.settings",
    ),
    "deployments.gateway.replicas": ("deployments.fleet",),
    "deployments.replica": (
        "deployments.backend",
        "deployments.http",
        "deployments.observe",
        "deployments.protocol",
        "deployments.wire",
    ),
    "deployments.wire": ("deployments.backend", "deployments.http"),
    "deployments.protocol": (
        "deployments.backend",
        "deployments.http.errors",
        "deployments.http.sse",
        "deployments.protocol.chat_formats",
    ),
    "deployments.protocol.chat_formats": ("deployments.backend",),
    "deployments.observe": ("deployments.backend", "deployments.settings"),
    "deployments.settings": ("deployments.backend",),
    "deployments.http": ("deployments.backend", "deployments.http"),
    "deployments.http.sse": ("deployments.http.errors",),
    "deployments.http.errors": ("deployments.backend",),
    "deployments.fleet": (),
    "deployments.launch.private_files": (),
    "deployments.backend": (),
}
"""What each room may import of ours; files outside of them belong to their package."""

ORDER = list(ROOMS)

IN_ROOMS: dict[str, tuple[str, ...]] = {
    "deployments.command": (
        "deployments.backend",
        "deployments.launch",
        "deployments.settings",
    ),
    "ray": ("deployments.app", "deployments.launch", "deployments.serve"),
    "uvicorn": ("deployments.http",),
    "httptools": ("deployments.gateway.relay",),
    "mlx": ("backend_metal",),
    "mlx_lm": ("backend_metal",),
    "starlette": (
        "deployments.gateway",
        "deployments.http",
        "deployments.observe",
        "deployments.replica",
        "deployments.serve",
    ),
}
"""Where a package is at home; others are free."""


def room_of(module: str) -> str:
    """The innermost room that ``module`` is in."""
    while module not in ROOMS:
        module, dot, _ = module.rpartition(".")
        if not dot:
            return module
    return module


def is_below(room: str, places: tuple[str, ...]) -> bool:
    return any(room == place or room.startswith(f"{place}.") for place in places)


def imported(source: str) -> Iterator[str]:
    """The modules and names that a file imports, with dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def broken_rules(module: str, source: str) -> list[str]:
    """The imports of ``module`` that its room does not allow, a line each."""
    room = room_of(module)
    found = []
    for name in imported(source):
        package = name.partition(".")[0]
        if package in IN_ROOMS and not is_below(room, IN_ROOMS[package]):
            found.append(
                f"{module} imports {name}: {package} is for {', '.join(IN_ROOMS[package])}"
            )
        if package not in ("deployments", "backend_metal"):
            continue
        target = room_of(name)
        if target == room or (package == module.partition(".")[0] == target):
            continue
        if not is_below(target, ROOMS.get(room, ())):
            found.append(f"{module} imports {name}: {room} may not import {target}")
    return found


def modules(*folders: str) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


def test_rooms_import_only_what_the_plan_allows() -> None:
    broken = [
        line
        for module, path in modules("deployments", "backend_metal")
        for line in broken_rules(module, path.read_text())
    ]
    assert not broken, "\n".join(broken)


def test_the_plan_has_no_arrow_that_points_upwards() -> None:
    for above, room in enumerate(ORDER):
        upwards = [one for one in ORDER[:above] if is_below(one, ROOMS[room])]
        assert not upwards, (room, upwards)


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        ("deployments.wire.envelope", "from deployments.gateway import app", "gateway"),
        ("deployments.gateway.routing.router", "import deployments.gateway.relay.relay", "relay"),
        ("deployments.http.sse", "from deployments.protocol import parse_request", "protocol"),
        ("deployments.protocol.chat", "from starlette.requests import Request", "starlette"),
        ("deployments.gateway.app", "from ray import serve", "ray"),
        ("deployments.replica.app", "import mlx.core as mx", "mlx"),
        ("deployments.settings", "from backend_metal import LLM", "backend_metal"),
        (
            "backend_metal.engine.schedule.scheduler",
            "from backend_metal.models import find",
            "models",
        ),
        ("backend_metal.attention.operators", "from backend_metal.engine import batch", "engine"),
        ("backend_metal.attention.operators", "from backend_metal.cuda import graphs", "cuda"),
        ("backend_metal.engine.loop", "from deployments.settings import AppSettings", "settings"),
    ],
)
def test_an_edge_that_breaks_the_plan_is_named(module: str, line: str, named: str) -> None:
    [told] = broken_rules(module, line)
    assert module in told
    assert named in told.partition(": ")[2]


def test_the_plan_is_the_one_that_the_document_draws() -> None:
    rows = re.findall(
        r"^\| `([\w/]+)` \| .+ \| (.+) \|$", DOCUMENTS["deployments/README.md"], re.MULTILINE
    )
    drawn = {room: re.findall(r"`([\w/]+)`", allowed) for room, allowed in rows}

    def short(room: str) -> str:
        return room.removeprefix("deployments.").replace(".", "/")

    assert drawn == {
        short(room): [short(one) for one in allowed if one != room]
        for room, allowed in ROOMS.items()
        if is_below(room, ("deployments",))
    }
