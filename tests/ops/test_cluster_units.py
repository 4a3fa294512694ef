from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ops.host_lists import REPOSITORY, files_of, generated

# Of launchd.plist(5).
LAUNCHD_KEYS = {
    "Label",
    "ProgramArguments",
    "UserName",
    "WorkingDirectory",
    "RunAtLoad",
    "KeepAlive",
    "ThrottleInterval",
    "ExitTimeOut",
    "ProcessType",
    "SoftResourceLimits",
    "HardResourceLimits",
    "Umask",
    "StandardOutPath",
    "StandardErrorPath",
    "StartCalendarInterval",
}


def test_property_lists_say_what_launchd_needs(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    for host, name in (("head", "head"), ("studio-1", "ray")):
        job = plistlib.loads((out / host / f"com.pomona.{name}.plist").read_bytes())
        assert job["Label"] == f"com.pomona.{name}"
        assert job["ProgramArguments"] == [f"/etc/pomona/pomona-{name}"]
        assert job["UserName"] == "pomona"
        assert job["WorkingDirectory"] == "/var/lib/pomona"
        assert job["KeepAlive"] is True
        assert job["RunAtLoad"] is True
        assert job["ProcessType"] == "Interactive"
        assert job["ThrottleInterval"] == 5
        assert job["SoftResourceLimits"] == {"NumberOfFiles": 65536}
        assert job["Umask"] == 0o077
        logs = {job["StandardOutPath"], job["StandardErrorPath"]}
        assert logs == {f"/var/lib/pomona/log/{name}.log"}
        # The head has nothing to drain; an engine's streams get the 300 s of the config.
        assert job["ExitTimeOut"] == {"head": 30, "ray": 330}[name]
        assert set(job) <= LAUNCHD_KEYS


def test_old_logs_are_removed_every_day(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content | {"keep_logs_days": 3}, tmp_path)
    job = plistlib.loads((out / "studio-1" / "com.pomona.clean.plist").read_bytes())
    assert job["ProgramArguments"] == ["/etc/pomona/pomona-clean"]
    assert job["UserName"] == "pomona"
    assert job["StartCalendarInterval"] == {"Hour": 4, "Minute": 0}
    assert "KeepAlive" not in job
    assert set(job) <= LAUNCHD_KEYS
    assert "OnCalendar=daily\n" in (out / "edge-1" / "pomona-clean.timer").read_text()
    unit = (out / "edge-1" / "pomona-clean.service").read_text()
    assert "ExecStart=/etc/pomona/pomona-clean\n" in unit
    assert "User=pomona\n" in unit
    for host in ("studio-1", "edge-1"):
        assert 'ops.cluster.clean "$state" 3\n' in (out / host / "pomona-clean").read_text()


def test_the_cleaning_script_runs(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content | {"package": str(REPOSITORY)}, tmp_path)
    environment = out / "edge-1" / "environment"
    environment.write_text(environment.read_text().replace("/var/lib/pomona", str(tmp_path)))
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker.out").touch()
    os.utime(logs / "worker.out", (0, 0))
    subprocess.run(
        [out / "edge-1" / "pomona-clean"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    assert not list(logs.iterdir())


def test_systemd_accepts_the_units(content: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # It looks for the programs of the units.
    out = generated(content | {"services": str(tmp_path / "out" / "edge-1")}, tmp_path)
    units = [str(path) for path in (out / "edge-1").glob("pomona-*.*")]
    assert len(units) == 4
    verified = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    broken = out / "edge-1" / "pomona-ray.service"
    broken.write_text(broken.read_text().replace("Restart=always", "Restart=perhaps"))
    refused = subprocess.run(
        ["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, check=False
    )
    assert "perhaps" in refused.stderr


def test_systemd_units_drain_before_they_stop(content: dict[str, Any], tmp_path: Path) -> None:
    lines = (generated(content, tmp_path) / "edge-1" / "pomona-ray.service").read_text().split("\n")
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    assert settings["User"] == "pomona"
    assert settings["Restart"] == "always"
    assert settings["StartLimitIntervalSec"] == "0"
    assert settings["KillMode"] == "mixed"
    assert settings["LimitNOFILE"] == "65536"
    environment = (tmp_path / "out" / "edge-1" / "environment").read_text()
    (drain,) = re.findall(r"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=(\d+)", environment)
    assert 300 < int(drain) < int(settings["TimeoutStopSec"])


def test_the_longest_drain_of_the_deployed_config_is_waited_for(
    content: dict[str, Any], tmp_path: Path
) -> None:
    config = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    for application in config["applications"]:
        application["args"]["replica"] = {"drain_timeout_s": 77}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    out = generated(content | {"config": "mine.yaml"}, tmp_path)
    line = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="
    assert f"{line}77\n" in (out / "studio-1" / "environment").read_text()
    assert f"{line}102\n" in (out / "edge-2" / "environment").read_text()
    assert f"{line}0\n" in (out / "head" / "head_environment").read_text()


def test_scripts_are_sound_shell(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    scripts = [path for path in files_of(out) if path.read_bytes().startswith(b"#!/bin/sh")]
    assert {path.name for path in scripts} >= {
        *("pomona", "pomona-head", "pomona-ray", "pomona-store", "install")
    }
    scripts += out.rglob("*environment")
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    shellcheck = Path(sys.executable).parent / "shellcheck"
    # What the environment file sets, what the scripts set for it, and a service called `head`.
    sourced = "SC1091,SC2154,SC2034,SC2209"
    found = subprocess.run(
        [shellcheck, "--shell=sh", f"--exclude={sourced}", *scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_ray_gets_its_arguments(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    head = ray_arguments(out / "head", "head", tmp_path)
    assert head[:3] == ["start", "--block", "--head"]
    assert {"--port=8266", "--node-ip-address=10.0.0.4", "--num-cpus=0"} < set(head)
    assert not any(argument.startswith("--resources") for argument in head)
    worker = ray_arguments(out / "studio-1", "ray", tmp_path)
    assert {"--block", "--address=10.0.0.4:8266", '--resources={"mlx": 1}'} < set(worker)
    assert not any(argument.startswith(("--head", "--num-cpus", "--min-")) for argument in worker)


def test_what_the_heads_host_serves_has_a_raylet_of_its_own(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """So that the head, which ends with its store, takes no stream with it."""
    content["hosts"][2] |= {"roles": ["head", "engine", "gateway"], "num_cpus": 3}
    out = generated(content, tmp_path)
    head = ray_arguments(out / "head", "head", tmp_path)
    roles = ray_arguments(out / "head", "ray", tmp_path)
    assert "--num-cpus=0" in head
    assert not any(argument.startswith("--resources") for argument in head)
    offered = {"--num-cpus=3", '--resources={"mlx": 1, "gateway": 1}'}
    assert {"--address=10.0.0.4:8266", "--node-ip-address=10.0.0.4", *offered} < set(roles)
    own = ("--temp-dir", "--dashboard-agent-listen-port", "--metrics-export-port", "--min-worker")
    taken = [{one for one in arguments if one.startswith(own)} for arguments in (head, roles)]
    assert [len(one) for one in taken] == [3, 4]
    assert taken[0].isdisjoint(taken[1])


def test_the_head_alone_neither_waits_for_itself_nor_drains(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """A store that refuses writes would have `ray start --head` wait for its GCS as long."""
    content["hosts"][2]["roles"] = ["head", "engine"]
    out = generated(content, tmp_path) / "head"
    patience = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert f"{patience}=86400\n" in (out / "environment").read_text()
    assert patience not in (out / "head_environment").read_text()
    of_head = ("RAY_REDIS", "RAY_health_check")
    for variable in of_head:
        assert variable not in (out / "environment").read_text()
        assert variable in (out / "head_environment").read_text()


def ray_arguments(folder: Path, service: str, tmp_path: Path) -> list[str]:
    """What a script of the host calls ``ray`` with."""
    path = folder / f"pomona-{service}"
    script = path.read_text()
    for beside in ('"$here/pomona-deploy"', "python -m"):
        script = script.replace(beside, "true")
    recorded = tmp_path / "bin" / "ray"
    recorded.parent.mkdir(exist_ok=True)
    recorded.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    recorded.chmod(0o755)
    path.write_text(script.replace("exec ray", f"exec {recorded}"))
    for environment in folder.glob("*environment"):
        text = environment.read_text().replace("/var/lib/pomona", str(tmp_path / "s"))
        environment.write_text(text)
    ran = subprocess.run([path], capture_output=True, text=True, check=True, env={"PATH": "/bin"})
    return ran.stdout.splitlines()
