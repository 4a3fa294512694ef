"""The wheel alone, as `pip install pomona-serve` leaves it: none of this repository is in sight.

Its extension is the one that is compiled here, and the packages that it needs are this
environment's: how the extension is compiled for a wheel, and what it serves, is shown by the
exhaustive tests.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.documents import block
from tests.support.e2e.serve_process import READY_TIMEOUT_S, REPOSITORY, ServeProcess, serve_process
from tests.support.wheel.build import (
    bare_environment,
    build_sdist,
    build_wheel,
    install,
    site_packages,
)

SHIPPED = {
    "configs": "configs",
    "grafana/dashboards": "ops/grafana/dashboards",
    "grafana/provisioning": "ops/grafana/provisioning",
    "prometheus/rules": "ops/prometheus/rules",
}
"""Folders that a wheel has of what is not in its packages, and where they come from."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    config = yaml.safe_load(dry_run(programs))
    command = [str(programs / "pomona"), "serve", "--config"]
    with serve_process(config, command=command, folder=tmp_path_factory.mktemp("away")) as serve:
        yield serve


def pomona(programs: Path, *arguments: str) -> str:
    """What it prints, anywhere but in this repository."""
    finished = subprocess.run(
        [programs / "pomona", *arguments],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def dry_run(programs: Path) -> str:
    return pomona(programs, "serve", "--dry-run")


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_below(folder: str) -> set[str]:
    """Those that git keeps."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return {one for one in listed if one and (REPOSITORY / one).exists()}


def test_it_has_all_of_both_packages_but_sources_of_the_extension(wheel: Path) -> None:
    left_out = (
        "backend_metal/csrc/",
        "backend_metal/cuda/build.sh",
        "backend_metal/cuda/csrc/",
        "deployments/gateway/page/images/",
    )
    ours = {
        one
        for one in files_below("deployments") | files_below("backend_metal")
        if not one.startswith(left_out)
    }
    found = files_in(wheel)
    assert ours <= found
    assert not [one for one in found if one.startswith(left_out)]
    top = {one.partition("/")[0] for one in found}
    assert top == {"backend_metal", "deployments", "pomona_serve-0.1.0.dist-info"}


def test_the_source_distribution_has_what_wheels_are_built_from(tmp_path: Path) -> None:
    with tarfile.open(build_sdist(tmp_path)) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"} <= found
    for folder in ("backend_metal", "deployments", *SHIPPED.values()):
        assert files_below(folder) <= found


@pytest.mark.exhaustive
def test_one_that_is_compiled_anew_has_the_same_files(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(REPOSITORY)], check=True)
    [compiled] = tmp_path.glob("*.whl")
    assert compiled.name == wheel.name
    assert files_in(compiled) == files_in(wheel)


@pytest.mark.parametrize("folder", SHIPPED)
def test_it_has_what_people_copy(folder: str, wheel: Path) -> None:
    source = SHIPPED[folder]
    prefix = f"deployments/shipped/{folder}"
    found = {one.removeprefix(prefix) for one in files_in(wheel) if one.startswith(f"{prefix}/")}
    assert found == {one.removeprefix(source) for one in files_below(source)}


def test_prometheus_finds_the_rules_beside_its_file(programs: Path) -> None:
    folder = site_packages(programs.parent) / "deployments" / "shipped" / "prometheus"
    for pattern in yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"]:
        assert list(folder.glob(pattern))


def test_commands_run_outside_of_the_repository(programs: Path) -> None:
    assert "pomona serve" in pomona(programs, "--help")
    assert str(programs.parent) in pomona(programs, "serve", "--help").replace("\n", "")
    shipped = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    assert yaml.safe_load(dry_run(programs)) == shipped


def test_it_is_installed_as_the_readme_says(wheel: Path, tmp_path: Path) -> None:
    installs, serves = block("pip").splitlines()
    programs = bare_environment(tmp_path)
    (programs / "pip").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m pip --python {programs / "python"} "$@"\n'
    )
    (programs / "pip").chmod(0o755)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / wheel.name).symlink_to(wheel)
    # What it needs is there already, and nothing is downloaded.
    quiet = ("PIP_NO_INDEX", "PIP_NO_DEPS", "PIP_IGNORE_INSTALLED", "PIP_NO_COMPILE")
    settings = {"PATH": f"{programs}:{os.environ['PATH']}", **dict.fromkeys(quiet, "1")}
    subprocess.run(
        ["bash", "-euc", f"{installs}\n{serves.partition('#')[0]} --dry-run > config.yaml"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        check=True,
        timeout=300,
    )
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["applications"][0]["args"]["engine"]["model"] == shlex.split(serves)[2]
    assert (programs / "pomona").is_file()


@pytest.mark.exhaustive
def test_it_serves_the_demo_model(server: ServeProcess) -> None:
    page = httpx.get(server.url, timeout=READY_TIMEOUT_S)
    assert page.status_code == 200
    assert "<html" in page.text
    request = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is Pomona?"}],
        "temperature": 0,
        "stream": True,
    }
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=request, timeout=60) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(one)["choices"][0]["delta"].get("content") or "" for one in events[:-1]]
    assert sum(map(bool, pieces)) > 5
    assert "Pomona" in "".join(pieces)


@pytest.mark.exhaustive
def test_its_state_is_shown(server: ServeProcess, programs: Path) -> None:
    told = pomona(programs, "status", server.url)
    assert "demo" in told


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_of_the_repository_serves(server: ServeProcess, programs: Path) -> None:
    """Its processes have the wheel's extension loaded, and no other."""
    loaded = set()
    for pid in server.ray_processes():
        try:
            maps = Path("/proc", str(pid), "maps").read_text()
        except OSError:
            # Ended since.
            continue
        loaded |= {line.split()[-1] for line in maps.splitlines() if "/backend_metal/" in line}
    package = site_packages(programs.parent) / "backend_metal"
    assert any("_native" in one for one in loaded)
    assert {str(Path(one).parent) for one in loaded} == {str(package)}
