"""A test whose tools are missing is skipped, saying what to install; in CI it fails."""

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

# Before any test module imports mlx.core, so that MLX finds the BLAS.
import backend_metal  # noqa: F401
from tests.metal_on_cpu import host
from tests.metal_on_cpu.emulator import ToolMissingError
from tests.support.lost_tasks import no_lost_tasks as no_lost_tasks


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests are of the ladder, which runs when a change can touch it."""
    if not item.get_closest_marker("exhaustive"):
        item.add_marker("ladder")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _told_of_missing_tools())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _told_of_missing_tools())


def _told_of_missing_tools() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except ToolMissingError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(autouse=True, scope="module")
def exact_allocations() -> Iterator[None]:
    with host.exact_allocations():
        yield
