"""Folders that stand for a host's, with the system's own places moved aside, and stand-ins for the
programs that start services."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ops.cluster.__main__ import generate
from ops.cluster.credentials import KINDS
from tests.support.ops.host_lists import REPOSITORY

# Debian's and macOS' users that own nothing of a service.
USERS = ("backup", "nobody")
HOSTS = {"linux": "edge", "macos": "mac"}
SCRIPTS = ("install", "uninstall", "pomona-start", "pomona-stop")
RECORDED = """#!/bin/sh
echo "$(basename "$0") $*" >> "{folder}/calls"
if [ -e "{folder}/fails" ] && [ "$*" = "$(cat "{folder}/fails")" ]; then exit 1; fi
"""
# A job is a file with its state. One that is told to end does so after it has been looked at once,
# and until then no other may have its name.
LAUNCHCTL = """
case $1 in
bootstrap) job="{folder}/jobs/$(basename "$3" .plist)" ;;
*) job="{folder}/jobs/${{2#system/}}" ;;
esac
case $1 in
print)
    state=$(cat "$job") || exit 113
    echo "    state = $state"
    if [ "$state" = SIGTERMed ]; then rm "$job"; fi
    ;;
enable) rm -f "$job.disabled" ;;
disable) touch "$job.disabled" ;;
bootout)
    [ -e "$job" ] || exit 3
    echo SIGTERMed > "$job"
    exit 36
    ;;
bootstrap)
    if [ -e "$job" ] || [ -e "$job.disabled" ]; then exit 5; fi
    echo running > "$job"
    ;;
esac
"""
# Copies, unless the disk is full.
INSTALL = """
case "$*" in *"$(cat "{folder}/full" 2>/dev/null || echo /nothing)"*) exit 1 ;; esac
exec /usr/bin/install "$@"
"""
STAND_INS = {"systemctl": "", "sleep": "", "launchctl": LAUNCHCTL, "install": INSTALL}


class Machine:
    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder, system
        self.user = next(name for name in USERS if name in {one.pw_name for one in pwd.getpwall()})
        # Passed by the user that services run as.
        for name in ("bin", "units", "jobs", "package/.venv/bin"):
            (folder / name).mkdir(parents=True)
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text((RECORDED + text).format(folder=folder))
        (folder / "package/.venv/bin/ray").touch()
        for program in (folder / "package/.venv/bin/ray", *(folder / "bin").iterdir()):
            program.chmod(0o755)
        (folder / "api_keys").write_text("a-key\n")
        (folder / "api_keys").chmod(0o600)
        shutil.copy(REPOSITORY / "configs" / "cluster.yaml", folder)
        self.home = folder / "home"
        self.etc = folder / "etc"
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
            "services": str(self.etc),
        }
        (self.folder / "hosts.yaml").write_text(yaml.safe_dump(content))
        out = self.folder / "out"
        generate(self.folder / "hosts.yaml", out, make=() if out.exists() else KINDS)
        for script in SCRIPTS:
            self._move_places(out / HOSTS[self.system] / script)

    def _move_places(self, script: Path) -> None:
        moved = {
            "state=/var/lib/pomona": f"state={self.folder}/state",
            "units=/etc/systemd/system": f"units={self.folder}/units",
            "units=/Library/LaunchDaemons": f"units={self.folder}/units",
            'home=$(eval echo "~$user")': f"home={self.home}",
        }
        text = script.read_text()
        for place, aside in moved.items():
            text = text.replace(place, aside)
        script.write_text(text)

    def install(self) -> tuple[list[str], str]:
        return self.run(self.folder / "out" / HOSTS[self.system] / "install")

    def uninstall(self) -> tuple[list[str], str]:
        return self.run(self.folder / "out" / HOSTS[self.system] / "uninstall")

    def run(self, script: Path, *arguments: str, rc: int = 0) -> tuple[list[str], str]:
        """What the script called, and what it said."""
        calls = self.folder / "calls"
        calls.write_text("")
        ran = subprocess.run(
            [script, *arguments],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == rc, ran.stdout + ran.stderr
        return calls.read_text().splitlines(), ran.stdout + ran.stderr

    def fail(self, call: str) -> None:
        """From now on a program called with just these arguments fails."""
        (self.folder / "fails").write_text(call)

    def fill_disk(self, name: str) -> None:
        """From now on no file called like this can be put in its place."""
        (self.folder / "full").write_text(f"{os.sep}{name}")

    def mend(self) -> None:
        for name in ("fails", "full"):
            (self.folder / name).unlink(missing_ok=True)

    def job(self, name: str) -> str | None:
        """What launchd would say of it."""
        job = self.folder / "jobs" / f"com.pomona.{name}"
        return job.read_text().strip() if job.exists() else None
