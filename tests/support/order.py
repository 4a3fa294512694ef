"""The order in which workers take the files of the suite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

# Files that wait for whole servers most of the time.
WAITING = ("e2e", "clients")
# Folders whose files take longest, which must not be what all workers but one wait for at the end.
LONGEST_FIRST = ("on_cpu", "metal_on_cpu", "backend_metal", "ops")
# One worker runs all files of a group, which share a server.
TOGETHER = {
    "tests/page/": "page",
    "tests/e2e/guarded/": "guarded",
    "tests/e2e/test_default_config.py": "demo",
    "tests/e2e/test_readme.py": "demo",
}
SPREAD_OVER = 0.6
"""The part of the computing files among which the waiting ones lie."""


def ordered(files: Iterable[Path]) -> list[Path]:
    """Files that wait evenly among those that compute, the longest of which come first."""
    waiting, computing = [], []
    for file in dict.fromkeys(files):
        (waiting if {*WAITING} & {*file.parts} else computing).append(file)
    computing.sort(key=lambda file: _rank(file.parent.name))
    places = {file: i / len(waiting) * SPREAD_OVER for i, file in enumerate(waiting)}
    places |= {file: i / len(computing) for i, file in enumerate(computing)}
    return sorted(places, key=lambda file: places[file])


def _rank(folder: str) -> int:
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(ordered(item.path for item in items))}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class FilesTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((TOGETHER[one] for one in TOGETHER if file.startswith(one)), file)

    if config.getoption("dist") == "loadfile":
        return FilesTogether(config, log)
    return None
