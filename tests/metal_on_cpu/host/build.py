"""Builds ``_metal_on_cpu``, once for each state of its sources, and loads it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

# First: it brings the library that the extension is linked to.
import mlx.core  # noqa: F401

from tests.metal_on_cpu.emulator import ToolMissingError

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SHIPPED = REPOSITORY / "backend_metal" / "csrc"
SHADERS = REPOSITORY / "backend_metal" / "shaders"
EMULATOR_INTERFACE = HERE.parent / "emulator" / "runtime" / "metal_emulator.h"
BUILD = REPOSITORY / "build" / "metal_on_cpu" / "host"
TOOLS = {"cmake": "cmake", "c++": "g++"}


@cache
def load() -> ModuleType:
    """The extension, built if its sources have changed since the last time.

    Raises ``ToolMissingError`` naming the packages to install, and ``RuntimeError`` with the
    compiler's output when it does not build.
    """
    spec = importlib.util.spec_from_file_location("_metal_on_cpu", build())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build() -> Path:
    """The extension's file."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with _locked(BUILD / "lock"):
        library = BUILD / f"_metal_on_cpu-{_content_hash()}.so"
        if library in _failures:
            raise _failures[library]
        if not library.exists():
            _build(library)
    return library


# So that what does not build is tried once, not once a test.
_failures: dict[Path, RuntimeError] = {}


def _build(library: Path) -> None:
    _require_tools()
    sys.stderr.write("Building the test extension _metal_on_cpu, about a minute\n")
    try:
        _run("cmake", "-S", str(HERE), "-B", str(BUILD), f"-DPython_EXECUTABLE={sys.executable}")
        # Elsewhere than in CI somebody may be at work on this machine.
        jobs = os.cpu_count() if os.environ.get("CI") else 1
        _run("cmake", "--build", str(BUILD), "--parallel", str(jobs))
    except RuntimeError as error:
        _failures[library] = error
        raise
    (built,) = BUILD.glob("_metal_on_cpu.*.so")
    for old in BUILD.glob("_metal_on_cpu-*.so"):
        old.unlink()
    shutil.copy(built, library)


def _content_hash() -> str:
    digest = hashlib.sha256()
    digest.update(repr((sys.executable, sys.version, version("mlx"))).encode())
    for path in _sources():
        digest.update(str(path.relative_to(REPOSITORY)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    yield EMULATOR_INTERFACE
    yield HERE / "CMakeLists.txt"
    for folder, pattern in ((HERE, "**/*.[ch]pp"), (HERE, "**/*.h")):
        yield from sorted(folder.glob(pattern))
    yield from sorted(SHADERS.rglob("*.h"))
    for folder in (SHIPPED, SHIPPED / "metal", SHIPPED / "gpu"):
        yield from sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])


def _require_tools() -> None:
    missing = [package for tool, package in TOOLS.items() if not _which(tool)]
    if importlib.util.find_spec("nanobind") is None:
        missing.append("nanobind (from PyPI)")
    if missing:
        raise ToolMissingError(f"to build _metal_on_cpu, install {', '.join(missing)}")


def _which(tool: str) -> str | None:
    beside_python = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return shutil.which(tool, path=beside_python)


def _run(*command: str) -> None:
    tool = _which(command[0])
    assert tool is not None
    result = subprocess.run([tool, *command[1:]], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
