"""``install`` and ``uninstall`` of both systems."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.ops.host_machine import Machine

OTHERS = re.compile("clean|head")
UNITS = {
    "linux": {
        *("pomona-head.service", "pomona-ray.service"),
        *("pomona-clean.timer", "pomona-clean.service"),
    },
    "macos": {"com.pomona.head.plist", "com.pomona.ray.plist", "com.pomona.clean.plist"},
}


@pytest.fixture(params=["linux", "macos"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files to another user")
    return Machine(tmp_path, request.param)


def test_files_get_their_owners_and_modes(machine: Machine) -> None:
    machine.install()
    etc = machine.etc
    assert owner_and_mode(etc / "environment") == (machine.user, 0o600)
    assert owner_and_mode(etc / "head_environment") == (machine.user, 0o600)
    assert owner_and_mode(etc / "auth_token") == (machine.user, 0o600)
    assert owner_and_mode(machine.home / ".pomona/api_keys") == (machine.user, 0o600)
    assert owner_and_mode(machine.home / ".pomona") == (machine.user, 0o700)
    assert owner_and_mode(machine.folder / "state") == (machine.user, 0o700)
    # What runs is not for its user to change.
    assert owner_and_mode(etc / "pomona-ray") == ("root", 0o755)
    assert owner_and_mode(etc / "cluster.yaml") == ("root", 0o644)
    units = machine.folder / "units"
    assert {path.name for path in units.iterdir()} == UNITS[machine.system]
    for unit in units.iterdir():
        assert owner_and_mode(unit) == ("root", 0o644)
    assert {path.name for path in etc.iterdir()} == {
        *("environment", "auth_token", "cluster.yaml", "pomona", "pomona-deploy", "pomona-ray"),
        *("pomona-start", "pomona-stop", "pomona-clean", "pomona-head", "head_environment"),
    }


def test_a_home_that_is_not_there_is_made_for_its_user(machine: Machine) -> None:
    machine.install()
    assert machine.home.owner() == machine.user


def test_a_home_that_its_user_cannot_write_is_refused(machine: Machine) -> None:
    machine.home.mkdir()
    calls, said = machine.run(machine.folder / "out" / only_host(machine) / "install", rc=1)
    assert f"chown {machine.user} {machine.home}" in said
    assert not starts(calls)
    shutil.chown(machine.home, machine.user)
    machine.install()


def test_the_service_starts_and_starts_again_only_for_what_it_reads(machine: Machine) -> None:
    calls, _ = machine.install()
    assert len(starts(calls)) == 1
    calls, said = machine.install()
    assert (ends(calls), said) == ([], "")

    config = machine.folder / "cluster.yaml"
    config.write_text(config.read_text().replace("max_model_len: 16384", "max_model_len: 8192"))
    (machine.folder / "api_keys").write_text("another-key\n")
    machine.change(roles=["head", "engine", "gateway"])
    calls, said = machine.install()
    assert ends(calls) == []
    assert f"sudo -H -u {machine.user} {machine.etc}/pomona-deploy" in said
    assert (machine.home / ".pomona/api_keys").read_text() == "another-key\n"

    machine.change(roles=["head", "engine", "gateway"], num_cpus=2)
    calls, _ = machine.install()
    assert len(ends(calls)) == 1
    assert len(starts(calls)) == 1


def test_logs_are_cleaned_and_that_disturbs_no_service(machine: Machine) -> None:
    machine.install()
    if machine.system == "macos":
        assert machine.job("clean") == "running"
        for name in ("ray", "clean"):
            log = machine.folder / "state" / "log" / f"{name}.log"
            assert owner_and_mode(log) == (machine.user, 0o600)
    (unit,) = (machine.folder / "units").glob("*clean*t*")
    unit.write_text("another")
    calls, _ = machine.install()
    assert any(("clean" in call and "start" in call) or "bootstrap" in call for call in calls)
    assert not ends(calls)
    machine.uninstall()
    assert machine.job("clean") is None


def test_an_install_that_was_cut_off_while_starting_starts_again(machine: Machine) -> None:
    machine.install()
    machine.change(roles=["head", "engine", "gateway"], num_cpus=2)
    machine.fail(
        "restart pomona-ray.service"
        if machine.system == "linux"
        else "enable system/com.pomona.ray"
    )
    install = machine.folder / "out" / only_host(machine) / "install"
    machine.run(install, rc=1)
    machine.mend()
    calls, _ = machine.install()
    assert len(starts(calls)) == 1
    calls, _ = machine.install()
    assert ends(calls) == []


def test_an_install_that_was_cut_off_between_files_starts_again(machine: Machine) -> None:
    machine.install()
    machine.change(roles=["head", "engine", "gateway"], num_cpus=2)
    # The last of those that have changed.
    machine.fill_disk("pomona-ray")
    install = machine.folder / "out" / only_host(machine) / "install"
    calls, _ = machine.run(install, rc=1)
    assert not starts(calls)
    machine.mend()
    shutil.copy(install.parent / "pomona-ray", machine.etc)
    calls, _ = machine.install()
    assert len(ends(calls)) == 1
    assert len(starts(calls)) == 1


@pytest.mark.parametrize("machine", ["macos"], indirect=True)
def test_a_job_that_is_ending_is_waited_for_and_comes_back(machine: Machine) -> None:
    machine.install()
    (machine.folder / "jobs" / "com.pomona.ray").write_text("SIGTERMed\n")
    machine.install()
    assert machine.job("ray") == "running"


@pytest.mark.parametrize("machine", ["macos"], indirect=True)
def test_launchd_is_asked_again_while_it_refuses(machine: Machine) -> None:
    launchctl = machine.folder / "bin" / "launchctl"
    refuse = f'if [ "$1" = bootstrap ] && rm "{machine.folder}/busy" 2>/dev/null; then exit 5; fi\n'
    launchctl.write_text(launchctl.read_text().replace("case $1 in\n", refuse + "case $1 in\n", 1))
    (machine.folder / "busy").touch()
    machine.install()
    assert machine.job("ray") == "running"
    # One that it refuses for good ends the script.
    (machine.folder / "units" / "com.pomona.ray.plist").unlink()
    machine.fail(f"bootstrap system {machine.folder}/units/com.pomona.ray.plist")
    machine.run(machine.folder / "out" / "mac" / "install", rc=1)


def test_stopped_is_stopped_until_it_is_started(machine: Machine) -> None:
    machine.install()
    calls, _ = machine.run(machine.etc / "pomona-stop")
    assert len(ends(calls)) == 1
    if machine.system == "linux":
        assert calls == [
            "systemctl disable --now pomona-ray.service",
            "systemctl disable --now pomona-head.service",
        ]
    else:
        assert machine.job("ray") is None
        assert (machine.folder / "jobs" / "com.pomona.ray.disabled").exists()
    # Again, after the connection was lost.
    machine.run(machine.etc / "pomona-stop")
    calls, _ = machine.run(machine.etc / "pomona-start")
    assert len(starts(calls)) == 1
    if machine.system == "linux":
        assert "systemctl enable pomona-ray.service" in calls
    else:
        assert machine.job("ray") == "running"
    calls, _ = machine.run(machine.etc / "pomona-start", "ray")
    assert ends(calls) == []


def test_what_was_told_to_end_is_not_taken_for_up(machine: Machine) -> None:
    machine.install()
    linux = machine.system == "linux"
    machine.fail("disable --now pomona-ray.service" if linux else "disable system/com.pomona.ray")
    machine.run(machine.etc / "pomona-stop", rc=1)
    machine.mend()
    calls, _ = machine.run(machine.etc / "pomona-start")
    assert len(ends(calls)) == 1
    assert len(starts(calls)) == 1


def test_one_service_of_several_is_stopped(machine: Machine) -> None:
    machine.change(roles=["head", "engine", "store"])
    machine.install()
    stop = machine.etc / "pomona-stop"
    calls, _ = machine.run(stop, "ray")
    assert not any("store" in call for call in calls)
    machine.run(machine.etc / "pomona-start")
    calls, _ = machine.run(stop)
    # What needs the store ends before it.
    assert ["ray" in call for call in ends(calls)] == [True, False]
    calls, said = machine.run(stop, "redis", rc=1)
    assert (calls, "there is: ray head store" in said) == ([], True)


def test_the_head_and_what_its_host_serves_start_again_apart(machine: Machine) -> None:
    roles = ["head", "engine", "gateway", "store"]
    machine.change(roles=roles)
    machine.install()
    machine.change(roles=roles, num_cpus=2)
    calls, _ = machine.install()
    assert [unit for call in calls for unit in restarted(call)] == ["ray"]
    changes = {"head_environment": ["head"], "store-ca.pem": ["store", "head"]}
    for name, units in changes.items():
        with (machine.folder / "out" / only_host(machine) / name).open("a") as file:
            file.write("# another\n")
        calls, _ = machine.run(machine.folder / "out" / only_host(machine) / "install")
        assert [unit for call in calls for unit in restarted(call)] == units


def test_a_role_that_a_host_loses_leaves_nothing_behind(machine: Machine) -> None:
    machine.change(roles=["head", "engine", "store"])
    machine.install()
    (machine.etc / "tls.pem").write_text("somebody else's")
    machine.change(roles=["head", "engine", "gateway"])
    calls, _ = machine.install()
    assert [call for call in ends(calls) if "store" in call]
    assert not list((machine.folder / "units").glob("*store*"))
    assert not [path for path in machine.etc.glob("*") if path.name.startswith(("store", "redis"))]
    assert not (machine.etc / "pomona-store").exists()
    assert (machine.etc / "tls.pem").exists()
    calls, _ = machine.install()
    assert ends(calls) == []


def test_uninstalling_stops_the_service_and_keeps_its_state(machine: Machine) -> None:
    machine.install()
    (machine.etc / "tls.pem").write_text("somebody else's")
    calls, _ = machine.uninstall()
    assert ends(calls) != []
    assert list((machine.folder / "units").iterdir()) == []
    assert [path.name for path in machine.etc.iterdir()] == ["tls.pem"]
    assert (machine.folder / "state").exists()
    # Again, after the connection was lost.
    machine.uninstall()
    calls, _ = machine.install()
    assert len(starts(calls)) == 1


def owner_and_mode(path: Path) -> tuple[str, int]:
    return path.owner(), path.stat().st_mode & 0o777


def restarted(call: str) -> list[str]:
    """The unit that a call ends before it starts it again."""
    return re.findall(r"(?:systemctl restart pomona-|bootout system/com.pomona.)(\w+)", call)


def only_host(machine: Machine) -> str:
    return {"linux": "edge", "macos": "mac"}[machine.system]


def starts(calls: list[str]) -> list[str]:
    """Of services; what cleans may start at any time. The head has a test of its own."""
    commands = ("systemctl start", "systemctl restart", "launchctl bootstrap system")
    return [call for call in calls if call.startswith(commands) and not OTHERS.search(call)]


def ends(calls: list[str]) -> list[str]:
    commands = ("systemctl restart", "systemctl disable --now", "launchctl bootout")
    return [call for call in calls if call.startswith(commands) and not OTHERS.search(call)]
