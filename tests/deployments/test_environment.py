from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.environment import Role, variables
from deployments.launch.prepare import prepare
from deployments.launch.private_files import ray_folder

LONGEST_SOCKET_PATH = 103


def test_a_machine_alone_keeps_ray_on_loopback() -> None:
    """What its ports do is tested where it runs."""
    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    roles: tuple[Role, ...] = ("alone", "head", "worker")
    assert [variables(role)[name] for role in roles] == ["0", "1", "1"]


def test_hosts_of_a_cluster_wait_for_their_head_which_watches_them() -> None:
    alone, worker, head = (variables(role) for role in ("alone", "worker", "head"))
    patience = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert int(worker[patience]) >= 300
    # The head would wait so long for itself, too.
    assert worker.keys() - head.keys() == {patience}
    assert alone.keys() < worker.keys()
    assert "RAY_health_check_period_ms" in head.keys() - worker.keys()
    # A host ends all that it runs when the head has declared it dead: not after seconds.
    check_ms = int(head["RAY_health_check_period_ms"]) + int(head["RAY_health_check_timeout_ms"])
    declared_dead_ms = check_ms * int(head["RAY_health_check_failure_threshold"])
    assert declared_dead_ms >= 120_000
    # Nor does what was on its way to the head end.
    for role in (worker, head):
        assert int(role["RAY_grpc_keepalive_timeout_ms"]) >= declared_dead_ms


def in_shell(home: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``script`` behind what every recipe begins with."""
    evaluated = f'eval "$({sys.executable} -m deployments.environment worker)"\n{script}'
    return subprocess.run(
        ["bash", "-euc", evaluated],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_for_a_shell_leaves_the_users_choices(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    shell = in_shell(
        tmp_path, "env; umask", RAY_AUTH_MODE="disabled", RAY_TMPDIR=str(folder), no_proxy="a.b"
    ).stdout.splitlines()
    assert "RAY_AUTH_MODE=disabled" in shell
    assert "RAY_USAGE_STATS_ENABLED=0" in shell
    assert "RAY_worker_niceness=0" in shell
    assert "RAY_gcs_rpc_server_reconnect_timeout_s=600" in shell
    assert {f"RAY_TMPDIR={folder}", f"TMPDIR={folder}"} <= {*shell}
    assert {"no_proxy=127.0.0.1,localhost,::1,a.b", "NO_PROXY=127.0.0.1,localhost,::1"} <= {*shell}
    assert shell[-1] == "0077"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_shell_whose_folder_is_not_private_goes_no_further(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    shell = in_shell(tmp_path, "echo started", RAY_TMPDIR=str(tmp_path))
    assert shell.returncode != 0
    assert "started" not in shell.stdout
    assert f"{tmp_path} is open to other users" in shell.stderr


@pytest.mark.parametrize("user", [0, 501, 2**32 - 2])
def test_paths_of_rays_sockets_are_ones_that_systems_take_wherever_temporary_files_go(
    user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp/" + 55 * "x")
    monkeypatch.setattr(os, "getuid", lambda: user)
    of_ray = "/ray/session_2026-11-22_22-12-11_123456_4194304/sockets/plasma_store"
    assert len(str(ray_folder()) + of_ray) <= LONGEST_SOCKET_PATH


@pytest.mark.parametrize(("address", "is_cluster"), [(None, "0"), ("10.0.0.4:6379", "1")])
def test_the_launcher_has_what_its_role_needs(
    address: str | None, is_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"RAY_TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    if address is not None:
        environment["RAY_ADDRESS"] = address
    monkeypatch.setattr(os, "environ", environment)
    environment["no_proxy"] = "a.b"
    umask = os.umask(0)
    try:
        prepare()
        prepare()
    finally:
        os.umask(umask)
    assert environment["RAY_TMPDIR"] == environment["TMPDIR"] == str(tmp_path)
    assert environment["no_proxy"] == environment["NO_PROXY"] == "127.0.0.1,localhost,::1,a.b"
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == is_cluster
