"""Hosts that were set up months apart have what a cluster needs to agree on."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray._private.utils import check_version_info, compute_version_info

pytestmark = pytest.mark.serve

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = [
    Requirement(line) for line in (ROOT / "ops" / "constraints.txt").read_text().splitlines()
]
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


def test_one_nanobind_builds_the_extension_everywhere() -> None:
    """Another one may have another ABI than MLX, and its arrays could not go in and out."""
    (pin,) = pins("nanobind")
    assert re.fullmatch(r"==\d+\.\d+\.\d+", pin)


@pytest.mark.parametrize("one", REQUIREMENTS, ids=str)
def test_constraints_name_a_version_that_the_project_allows(one: Requirement) -> None:
    if one.name == PROJECT["project"]["name"]:
        return
    name = canonicalize_name(one.name)
    found = [pin for pin in CONSTRAINTS if canonicalize_name(pin.name) == name]
    assert found, "run `make constraints`"
    for pin in found:
        [exact] = pin.specifier
        assert exact.operator == "=="
        assert exact.version in one.specifier, "run `make constraints`"


def test_serving_installs_no_test_tool() -> None:
    served = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    extras = PROJECT["project"]["optional-dependencies"]
    for extra in ("test", "dev", "clients", "cuda-build"):
        assert served.isdisjoint(Requirement(line).name for line in extras[extra])


def test_every_dependency_has_an_upper_bound() -> None:
    unbounded = [
        str(one)
        for one in REQUIREMENTS
        if one.name != PROJECT["project"]["name"]
        and not any(part.operator in ("==", "<", "<=") for part in one.specifier)
    ]
    assert unbounded == []


@pytest.mark.parametrize("differs", ["ray_version", "python_version"])
def test_ray_refuses_a_host_of_another_patch_release(
    differs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", raising=False)
    head = dict(zip(("ray_version", "python_version"), compute_version_info(), strict=True))
    check_version_info(head, "this host")
    with pytest.raises(RuntimeError, match="Version mismatch"):
        check_version_info(head | {differs: head[differs] + "9"}, "this host")
