"""What the runbook says to type and to look at exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.scripts.scripts import cli as ray_cli
from ray.serve.scripts import cli as serve_cli

from deployments.gateway.access.keys_file import read_keys_file
from deployments.settings import AppSettings
from ops.cluster.credentials import KINDS
from ops.cluster.host_list import HostList, read_host_list
from ops.cluster.serve_config import read_serve_config
from ops.grafana.__main__ import DASHBOARDS
from tests.support.documents import DOCUMENTS, REPOSITORY, block

pytestmark = pytest.mark.serve

RUNBOOK = DOCUMENTS["ops/runbook.md"]
INSTALLED = re.compile(r"/etc/pomona/([\w.-]+)")


def run(commands: str, home: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euc", commands],
        cwd=REPOSITORY,
        env=os.environ | {"HOME": str(home), "PATH": path},
        check=True,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runbook's folder has been generated from nothing."""
    made = tmp_path_factory.mktemp("home")
    run(block("generate"), made)
    return made


def test_the_generated_folder_is_private(home: Path) -> None:
    assert (home / "cluster").stat().st_mode & 0o777 == 0o700
    hosts = yaml.safe_load((home / "cluster" / "hosts.yaml").read_text())["hosts"]
    names = {host["name"] for host in hosts}
    assert {path.name for path in (home / "cluster" / "out").iterdir()} == names | {
        "secrets",
        "prometheus",
    }


def test_every_gateway_gets_keys(home: Path) -> None:
    hosts = read_host_list(home / "cluster" / "hosts.yaml")
    config = read_serve_config(hosts.config)
    for host in (hosts.head, *hosts.gateways):
        for installed in config.api_keys_files:
            keys = home / "cluster" / "out" / host.name / installed.name
            # The heartbeat has one, too.
            assert len(read_keys_file(keys)) == 2
            assert keys.stat().st_mode & 0o777 == 0o600


def test_what_is_installed_is_what_was_generated(home: Path) -> None:
    copy, install = map(shlex.split, block("install").splitlines())
    source, target = copy[-2].replace("~", str(home)), copy[-1].partition(":")[2].rstrip("/")
    assert install[-1] == f"{target}/install"
    assert (Path(source) / "install").stat().st_mode & 0o111


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed: it is in Debian's package prometheus",
)
def test_prometheus_is_given_what_was_generated_and_checked(home: Path) -> None:
    check, copy, install, _ = block("watch").splitlines()
    run(check, home)
    source, target = (shlex.split(copy)[n].replace("~", str(home)) for n in (-2, -1))
    assert Path(source) == Path(shlex.split(check)[-1].replace("~", str(home))).parent
    assert target.partition(":")[2] == shlex.split(install)[-2]
    config = Path(shlex.split(install)[-1]) / "prometheus.yml"
    assert f"--config.file={config} " in DOCUMENTS["ops/watching.md"]


def test_load_balancers_are_made_from_the_same_list(home: Path) -> None:
    run(block("balancer"), home)
    assert "server 10.0.0.2:8000" in (home / "cluster" / "haproxy.cfg").read_text()


def test_installed_programs_are_files_of_the_head(home: Path) -> None:
    programs = set(INSTALLED.findall(RUNBOOK))
    assert programs >= {"pomona", "pomona-deploy", "cluster.yaml"}
    assert programs <= {path.name for path in (home / "cluster" / "out" / "head").iterdir()}


def test_units_have_the_names_that_logs_are_looked_up_by(home: Path) -> None:
    folder, head = (home / "cluster" / "out" / name for name in ("edge-1", "head"))
    systemd = set(re.findall(r"journalctl -u ([\w-]+)", RUNBOOK))
    assert systemd == {"pomona-head", "pomona-ray", "pomona-store", "pomona-clean"}
    # The head of the example is a Mac.
    assert (head / "com.pomona.head.plist").exists()
    assert all((folder / f"{name}.service").exists() for name in systemd - {"pomona-head"})


def test_every_host_can_be_stopped_and_started(home: Path) -> None:
    commands = [shlex.split(line) for line in block("stop").splitlines()]
    for *_, host, sudo, program in commands:
        assert sudo == "sudo"
        name = INSTALLED.fullmatch(program)
        assert name
        assert (home / "cluster" / "out" / host / name[1]).stat().st_mode & 0o111


def test_the_user_of_linux_can_be_made(tmp_path: Path) -> None:
    useradd = shutil.which("useradd")
    if useradd is None or os.geteuid() != 0:
        pytest.skip("needs useradd, and root")
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    command = block("user-linux").replace("sudo useradd", f"{useradd} --prefix {tmp_path}")
    subprocess.run(["bash", "-euc", command], check=True, capture_output=True)
    name, *_, home, _ = (tmp_path / "etc" / "passwd").read_text().split(":")
    assert name == HostList.model_fields["user"].default
    assert (tmp_path / home.lstrip("/")).is_dir()


def test_what_is_for_macos_is_said_to_the_programs_of_macos(tmp_path: Path) -> None:
    programs = ("dscl", "pmset", "softwareupdate", "defaults", "socketfilterfw")
    for name in programs:
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n')
    (tmp_path / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    for name in ("user-macos", "macos", "firewall"):
        command = block(name).replace("/usr/libexec/ApplicationFirewall", str(tmp_path))
        subprocess.run(
            ["bash", "-euc", command.replace("/opt/pomona", str(REPOSITORY))],
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            check=True,
        )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert {call.split()[0] for call in calls} == {*programs}
    user = HostList.model_fields["user"].default
    assert all(f"/Users/{user}" in call for call in calls if call.startswith("dscl"))
    admitted = {Path(call.split()[-1]).name for call in calls if "--add" in call}
    assert admitted >= {"raylet", "gcs_server", Path(sys.executable).resolve().name}


def test_commands_of_ray_and_serve_exist() -> None:
    programs = {"ray": ray_cli, "serve": serve_cli}
    for line in block("look").splitlines():
        program, command = shlex.split(line)[-2:]
        assert command in programs[program].commands


def test_secrets_that_are_named_exist(home: Path) -> None:
    assert set(re.findall(r"--rotate (\w+)", RUNBOOK)) == {*KINDS}
    named = re.findall(r"~/cluster/out/secrets/([\w-]+)", RUNBOOK)
    assert named
    assert all((home / "cluster" / "out" / "secrets" / one).exists() for one in named)


def test_secrets_come_back_from_the_hosts(home: Path, tmp_path: Path) -> None:
    out = home / "cluster" / "out"
    # Runs on this machine what it is told to run on a host.
    (tmp_path / "ssh").write_text(
        f"""#!/bin/sh
[ "$1" = -t ] && shift
cd {out}/"$1" && shift && exec sh -c "$*"
"""
    )
    (tmp_path / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    recovered = tmp_path / "home"
    subprocess.run(
        ["bash", "-euc", block("recover").replace("-C /etc/pomona ", "")],
        env=os.environ | {"HOME": str(recovered), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
    )
    found, kept = recovered / "cluster" / "out" / "secrets", out / "secrets"
    assert {one.name: one.read_text() for one in found.iterdir()} == {
        one.name: one.read_text() for one in kept.iterdir()
    }
    assert not list(out.rglob("secrets.tar"))


def test_panels_that_symptoms_point_to_exist() -> None:
    panels = {
        board.title.removeprefix("Pomona: "): {
            panel.title for row in board.rows for panel in row.panels
        }
        for board in DASHBOARDS
    }
    table = RUNBOOK.partition("## Read the dashboards")[2].partition("\n## ")[0]
    named = [
        (board, panel)
        for board, listed in re.findall(r"(Fleet|Latency|Engine): ((?:\*[^*]+\*(?:, )?)+)", table)
        for panel in re.findall(r"\*([^*]+)\*", listed)
    ]
    assert len(named) > 10
    assert [(board, panel) for board, panel in named if panel not in panels[board]] == []


def test_settings_that_are_named_exist() -> None:
    named = [
        setting
        for text in DOCUMENTS.values()
        for setting in re.findall(
            r"`(engine|gateway|routing|replica|autoscaling|observability)\.(\w+)", text
        )
    ]
    assert len(named) > 5
    for section, key in named:
        assert key in AppSettings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
