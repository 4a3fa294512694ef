"""Hosts that were set up months apart have what a cluster needs to agree on."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ray._private.utils import check_version_info, compute_version_info

pytestmark = pytest.mark.serve

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILDS_THE_EXTENSION = ("Makefile", "tests/metal_on_cpu/install_tools.sh")
REQUIREMENTS = [
    Requirement(line)
    for lines in (
        PROJECT["build-system"]["requires"],
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
    )
    for line in lines
]


def pins(package: str) -> set[str]:
    return {str(one.specifier) for one in REQUIREMENTS if one.name == package}


@pytest.mark.parametrize("package", ["ray", "mlx", "mlx-lm", "transformers", "tokenizers"])
def test_what_hosts_must_agree_on_is_pinned(package: str) -> None:
    assert pins(package) == {f"=={version(package)}"}


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "httptools"])
def test_the_servers_whose_internals_are_extended_are_pinned(package: str) -> None:
    assert pins(package) == {f"=={version(package)}"}


@pytest.mark.parametrize("file", BUILDS_THE_EXTENSION)
def test_one_nanobind_builds_the_extension_everywhere(file: str) -> None:
    """Another one may have another ABI than MLX, and its arrays could not go in and out."""
    (pin,) = pins("nanobind")
    assert re.fullmatch(r"==\d+\.\d+\.\d+", pin)
    assert re.findall(r"'nanobind([^']*)'", (ROOT / file).read_text()) == [pin]


@pytest.mark.parametrize("differs", ["ray_version", "python_version"])
def test_ray_refuses_a_host_of_another_patch_release(
    differs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", raising=False)
    head = dict(zip(("ray_version", "python_version"), compute_version_info(), strict=True))
    check_version_info(head, "this host")
    with pytest.raises(RuntimeError, match="Version mismatch"):
        check_version_info(head | {differs: head[differs] + "9"}, "this host")
