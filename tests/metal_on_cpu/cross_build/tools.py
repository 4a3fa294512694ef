"""What the tests here need from outside, and where they keep what they make of it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CACHE = ROOT / "build" / "metal_on_cpu"


def missing(what: str) -> None:
    """Skip the test for want of ``what``; in CI, where everything is installed, fail it."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def program(name: str, package: str) -> Path:
    """A program on the PATH; ``package`` is the one of Debian that brings it."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed: apt-get install {package}")
    assert found is not None
    return Path(found)


def python_package(name: str) -> Path:
    """The folder of an installed Python package."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        missing(f"{name} is not installed: pip install {name}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for ``folder`` waiting."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
