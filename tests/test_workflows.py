"""What GitHub's workflows name exists, and wheels fit the MLX that they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag

from tests.test_packaging import PROJECT

pytestmark = pytest.mark.serve

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
WHEELS = WORKFLOWS["wheels.yml"]
ON = True
"""How YAML 1.1 reads the key `on`."""
SCRIPTS = sorted((ROOT / ".ci").iterdir())
RUNNERS = {"ubuntu-22.04", "ubuntu-22.04-arm", "ubuntu-24.04", "macos-15", "macos-26"}
"""Labels of GitHub's hosted runners that exist."""


def commands(workflow: dict[str, Any]) -> str:
    jobs = workflow["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    runs = [job.get("strategy", {}).get("matrix", {}).get("include", []) for job in jobs]
    return "\n".join(
        [step["run"] for step in steps if "run" in step]
        + [run["command"] for include in runs for run in include]
    )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_names_what_there_is(name: str) -> None:
    workflow = WORKFLOWS[name]
    told = commands(workflow)
    for script in re.findall(r"\.ci/\w+", told):
        assert (ROOT / script).stat().st_mode & 0o100, script
    rules = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([\w-]+)", told):
        assert re.search(rf"^[\w -]*\b{target}\b.*:", rules, re.MULTILINE), target
    for name in ("push", "pull_request"):
        event = workflow[ON].get(name) or {}
        for pattern in event.get("paths", []):
            assert list(ROOT.glob(pattern.replace("/**", "/**/*"))), pattern


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_job_runs_on_a_runner_that_exists(name: str) -> None:
    for job in WORKFLOWS[name]["jobs"].values():
        labels = set(re.findall(r"\w+-\d[\w.-]*", job["runs-on"]))
        assert labels
        assert labels <= RUNNERS


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_job_is_bounded_and_may_only_read(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    for job_name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, job_name
        assert set(job.get("needs", [])) <= workflow["jobs"].keys()
        if job_name != "publish":
            assert "permissions" not in job


def test_what_is_published_was_tried_and_needs_no_secret() -> None:
    jobs = WHEELS["jobs"]
    publish = jobs["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(publish["needs"]) == jobs.keys() - {"publish"}
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    for platform in ("linux", "macos"):
        steps = [step.get("run", step.get("uses", "")) for step in jobs[platform]["steps"]]
        [tried] = [at for at, step in enumerate(steps) if ".ci/try_wheel dist/*.whl" in step]
        [kept] = [at for at, step in enumerate(steps) if "upload-artifact" in step]
        assert tried < kept


def test_a_tag_that_is_not_the_version_publishes_nothing(tmp_path: Path) -> None:
    [check] = [step for step in WHEELS["jobs"]["publish"]["steps"] if "TAG" in step.get("env", {})]
    version = PROJECT["project"]["version"]
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"pomona_serve-{version}.tar.gz").touch()
    for tag, status in ((f"v{version}", 0), (f"v{version}.1", 1)):
        ran = subprocess.run(
            ["bash", "-e", "-c", check["run"]], cwd=tmp_path, env={"TAG": tag}, check=False
        )
        assert ran.returncode == status


@pytest.mark.skipif(sys.platform != "linux", reason="of MLX's wheels for Linux")
def test_linux_wheels_run_wherever_mlx_does() -> None:
    [of_mlx] = distribution("mlx").read_text("WHEEL").split("Tag: ")[1:2]  # type: ignore[union-attr]
    [tag] = parse_tag(of_mlx.split()[0])
    [glibc] = re.findall(r"--plat (manylinux_\d+_\d+)_", commands(WHEELS))
    assert tag.platform.startswith(glibc)


def test_wheels_for_macs_ask_for_the_macos_that_the_compiler_is_told() -> None:
    target = WHEELS["jobs"]["macos"]["env"]["MACOSX_DEPLOYMENT_TARGET"]
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"set(CMAKE_OSX_DEPLOYMENT_TARGET {target} CACHE" in cmake


def test_wheels_are_for_pythons_that_the_package_is_for() -> None:
    allowed = SpecifierSet(PROJECT["project"]["requires-python"])
    built = [set(WHEELS["jobs"][one]["strategy"]["matrix"]["python"]) for one in ("linux", "macos")]
    assert built[0] == built[1]
    assert all(version in allowed for version in built[0])


@pytest.fixture
def run_ci(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `.ci/run` with stubs of what it calls; the one with `failing` in its arguments fails."""
    stub = '#!/bin/sh\ncase "$0 $*" in *"$FAILING"*) exit 3 ;; *changed) echo "$CHANGED" ;; esac\n'
    stubs = (".ci/packages", ".ci/try_wheel", ".venv/bin/python", ".venv/bin/uv", "bin/make")
    for name in stubs:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stub)
        path.chmod(0o755)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")

    def run(failing: str, changed: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"FAILING": failing, "CHANGED": changed}
        return subprocess.run(
            [tmp_path / ".ci" / "run"],
            env=os.environ | environment | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def stages(output: str) -> list[str]:
    return re.findall(r"^== (.*): \d+ s$", output, re.MULTILINE)


def test_ci_prints_the_time_of_each_stage(
    run_ci: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    always, with_rungs = run_ci("nothing"), run_ci("nothing", "races\ncuda")
    assert (always.returncode, with_rungs.returncode) == (0, 0)
    assert stages(always.stdout)[0] == "packages"
    assert stages(always.stdout)[-1] == "total"
    added = set(stages(with_rungs.stdout)) - set(stages(always.stdout))
    assert added == {"ladder: races cuda"}


@pytest.mark.parametrize(
    ("failing", "stage"),
    [
        ("packages", "packages"),
        ("test-cluster", "cluster scenarios"),
        ("support.changed", "changed rungs"),
        ("test-rungs", "ladder: cuda"),
        ("try_wheel", "wheel in a bare environment"),
    ],
)
def test_ci_stops_at_the_first_stage_that_fails(
    run_ci: Callable[..., subprocess.CompletedProcess[str]], failing: str, stage: str
) -> None:
    complete, stopped = run_ci("nothing", "cuda"), run_ci(failing, "cuda")
    assert stopped.returncode != 0
    assert re.fullmatch(rf"== {stage}: failed after \d+ s\n", stopped.stderr)
    passed = stages(complete.stdout)
    assert stages(stopped.stdout) == passed[: passed.index(stage)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_of_the_workflows_are_sound(script: Path) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    finished = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
