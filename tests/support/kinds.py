"""The three kinds of tests: ``pytest --kind unit`` collects those of one.

Folders have a kind. Elsewhere, a file that needs Ray, MLX, a browser or a server process sets
``pytestmark = pytest.mark.serve``; all other files are unit tests, which can import neither.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

FOLDERS = {
    "backend_metal": "engine",
    "metal_on_cpu": "engine",
    "cuda": "engine",
    "e2e": "serve",
    "page": "serve",
    "clients": "serve",
    "cluster": "serve",
}
TESTS = Path(__file__).parents[1]
MARK = "pytest.mark.serve"


class NoHeavyImports(MetaPathFinder):
    """Fails the import of a package that no unit test may need."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("ray", "mlx"):
            raise ImportError(f"a unit test imports {name}: its file needs {MARK}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kind", choices=("unit", "engine", "serve"), help="collect one kind only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "serve: needs Ray, MLX, a browser or a server process")
    if config.getoption("--kind") == "unit":
        sys.meta_path.insert(0, NoHeavyImports())
    elif hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        # Before a test imports mlx.core, which would not find the BLAS, or mlx-lm, which lowers
        # the limit of open files for good. The process that hands out tests runs none.
        import backend_metal  # noqa: F401


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.getoption("--kind")
    if wanted is None or not collection_path.is_relative_to(TESTS):
        return None
    return kind(collection_path) not in (None, wanted) or None


def kind(path: Path) -> str | None:
    """Of a folder with files of several kinds: None."""
    top = path.relative_to(TESTS).parts[:1]
    if top and top[0] in FOLDERS:
        return FOLDERS[top[0]]
    if path.suffix != ".py":
        return None
    return "serve" if MARK in path.read_text() else "unit"
