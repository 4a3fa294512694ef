"""``install`` and ``uninstall`` of both systems, with the system's own places moved aside and a
stand-in for what starts services."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.cluster.__main__ import generate
from ops.cluster.credentials import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
# Debian's and macOS' users that own nothing of a service.
USERS = ("backup", "nobody")
HOSTS = {"linux": "edge", "macos": "mac"}
UNITS = {"linux": "pomona-ray.service", "macos": "com.pomona.ray.plist"}
# Knows one service: it is loaded while the file `loaded` is there.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "{folder}/calls"
case $1 in
print) test -e "{folder}/loaded" ;;
bootstrap) touch "{folder}/loaded" ;;
bootout) rm "{folder}/loaded" ;;
esac
"""


class Machine:
    """Folders that stand for a host's."""

    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder, system
        self.user = next(name for name in USERS if name in {one.pw_name for one in pwd.getpwall()})
        # Passed by the user that services run as.
        for name in ("bin", "units", "home", "package/.venv/bin"):
            (folder / name).mkdir(parents=True)
        for name in ("bin/systemctl", "bin/launchctl", "package/.venv/bin/ray"):
            (folder / name).write_text(STAND_IN.format(folder=folder))
            (folder / name).chmod(0o755)
        (folder / "api_keys").write_text("a-key\n")
        (folder / "api_keys").chmod(0o600)
        config = (REPOSITORY / "configs" / "cluster.yaml").read_text()
        (folder / "cluster.yaml").write_text(config)
        self.change(roles=["head", "engine", "gateway"])

    def change(self, **host: Any) -> None:
        content = {
            "hosts": [
                {"name": HOSTS[self.system], "address": "10.0.0.2", "system": self.system} | host
            ],
            "config": "cluster.yaml",
            "api_keys": "api_keys",
            "user": self.user,
            "package": str(self.folder / "package"),
            "services": str(self.folder / "etc"),
        }
        (self.folder / "hosts.yaml").write_text(yaml.safe_dump(content))
        out = self.folder / "out"
        generate(self.folder / "hosts.yaml", out, make=() if out.exists() else KINDS)

    def run(self, script: str) -> tuple[list[str], str]:
        """What the script called, and what it said."""
        path = self.folder / "out" / HOSTS[self.system] / script
        moved = {
            "state=/var/lib/pomona": f"state={self.folder}/state",
            "units=/etc/systemd/system": f"units={self.folder}/units",
            "units=/Library/LaunchDaemons": f"units={self.folder}/units",
            'home=$(eval echo "~$user")': f"home={self.folder}/home",
        }
        text = path.read_text()
        for place, aside in moved.items():
            text = text.replace(place, aside)
        path.write_text(text)
        calls = self.folder / "calls"
        calls.write_text("")
        ran = subprocess.run(
            [path],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return calls.read_text().splitlines(), ran.stdout


@pytest.fixture(params=["linux", "macos"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files to another user")
    return Machine(tmp_path, request.param)


def test_files_get_their_owners_and_modes(machine: Machine) -> None:
    machine.run("install")
    etc = machine.folder / "etc"
    assert owner_and_mode(etc / "environment") == (machine.user, 0o600)
    assert owner_and_mode(etc / "auth_token") == (machine.user, 0o600)
    assert owner_and_mode(machine.folder / "home/.pomona/api_keys") == (machine.user, 0o600)
    assert owner_and_mode(machine.folder / "home/.pomona") == (machine.user, 0o700)
    assert owner_and_mode(machine.folder / "state") == (machine.user, 0o700)
    # What runs is not for its user to change.
    assert owner_and_mode(etc / "pomona-ray") == ("root", 0o755)
    assert owner_and_mode(etc / "cluster.yaml") == ("root", 0o644)
    assert owner_and_mode(machine.folder / "units" / UNITS[machine.system]) == ("root", 0o644)
    assert {path.name for path in etc.iterdir()} == {
        *("environment", "auth_token", "cluster.yaml", "pomona", "pomona-deploy", "pomona-ray")
    }


def test_the_service_starts_and_starts_again_only_for_what_it_reads(machine: Machine) -> None:
    calls, _ = machine.run("install")
    assert started(calls)
    calls, said = machine.run("install")
    assert (disturbed(calls), said) == ([], "")

    config = machine.folder / "cluster.yaml"
    config.write_text(config.read_text().replace("max_model_len: 16384", "max_model_len: 8192"))
    (machine.folder / "api_keys").write_text("another-key\n")
    machine.change(roles=["head", "engine", "gateway"])
    calls, said = machine.run("install")
    assert disturbed(calls) == []
    assert f"sudo -H -u {machine.user} {machine.folder}/etc/pomona-deploy" in said
    assert (machine.folder / "home/.pomona/api_keys").read_text() == "another-key\n"

    machine.change(roles=["head", "engine"])
    calls, _ = machine.run("install")
    assert disturbed(calls) != []
    assert started(calls)


def test_uninstalling_stops_the_service_and_keeps_its_state(machine: Machine) -> None:
    machine.run("install")
    (machine.folder / "etc" / "tls.pem").write_text("somebody else's")
    calls, _ = machine.run("uninstall")
    assert disturbed(calls) != []
    assert list((machine.folder / "units").iterdir()) == []
    assert [path.name for path in (machine.folder / "etc").iterdir()] == ["tls.pem"]
    assert (machine.folder / "state").exists()
    calls, _ = machine.run("install")
    assert started(calls)


def owner_and_mode(path: Path) -> tuple[str, int]:
    return path.owner(), path.stat().st_mode & 0o777


def started(calls: list[str]) -> bool:
    starts = ("systemctl start", "systemctl restart", "launchctl bootstrap system")
    return sum(call.startswith(starts) for call in calls) == 1


def disturbed(calls: list[str]) -> list[str]:
    ends = ("systemctl restart", "systemctl disable --now", "launchctl bootout")
    return [call for call in calls if call.startswith(ends)]
