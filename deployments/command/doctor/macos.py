"""What macOS says of itself: pure functions of what its commands print.

Each takes None where the command is missing or failed.
"""

from __future__ import annotations

import re

from deployments.command.doctor.finding import Finding, ok, unreadable, warning, wrong
from deployments.command.terminal import size

VERSION = ("/usr/bin/sw_vers", "-productVersion")
WIRED_LIMIT = ("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
FIREWALL = ("/usr/libexec/ApplicationFirewall/socketfilterfw", "--getglobalstate")
POWER = ("/usr/bin/pmset", "-g")
FILE_VAULT = ("/usr/bin/fdesetup", "status")
TOOLS = ("/usr/bin/xcode-select", "-p")
"""Says where they are, and asks nobody to install them, as a compiler would that is not there."""

LEAST_VERSION = (14, 0)
"""Of MLX's wheels."""
MIB = 2**20
MOST_WIRED = 0.9
"""Of the memory; macOS itself needs the rest, and stands still without."""
RUNBOOK = "ops/runbook.md"

_STATE = re.compile(r"\(State = (\d)\)")
_SETTING = re.compile(r"^\s*(\S.*?)\s+(\d+)(?:\s+\(.*\))?\s*$", re.MULTILINE)


def check_version(printed: str | None) -> Finding:
    found = re.match(r"(\d+)\.?(\d*)", printed.strip()) if printed else None
    if printed is None or found is None:
        return unreadable("macOS", " ".join(VERSION))
    if (int(found[1]), int(found[2] or 0)) < LEAST_VERSION:
        return wrong("macOS", f"{printed.strip()}, and MLX needs 14.0", "update macOS")
    return ok("macOS", printed.strip())


def check_wired_limit(printed: str | None, memory_bytes: int) -> Finding:
    """``memory_bytes``: of the machine."""
    name = "GPU memory"
    if printed is None or not printed.strip().isdecimal():
        return unreadable(name, " ".join(WIRED_LIMIT))
    limit = int(printed) * MIB
    if not limit:
        return ok(name, "iogpu.wired_limit_mb is 0: macOS's own limit")
    told = f"iogpu.wired_limit_mb is {int(printed)}, {size(limit)} of {size(memory_bytes)}"
    back = "`sudo sysctl iogpu.wired_limit_mb=0` brings macOS's own limit back"
    if limit > memory_bytes * MOST_WIRED:
        most = int(memory_bytes * MOST_WIRED) // MIB
        remedy = f"`sudo sysctl iogpu.wired_limit_mb={most}` at most"
        return warning(name, f"{told}, which leaves macOS too little", remedy)
    if limit < memory_bytes / 2:
        return warning(name, f"{told}, less than macOS would allow", back)
    return ok(name, f"{told}, until the next boot")


def check_tool_chain(printed: str | None, *, is_checkout: bool, has_compiler: bool) -> Finding:
    """``is_checkout``: the extension is built here, from source. ``has_compiler``: in the folder
    that was ``printed``, which stays the same when somebody deletes it."""
    name = "Metal tool chain"
    shaders = "macOS itself compiles the shaders when an engine starts"
    if not is_checkout:
        return ok(name, f"none is needed: {shaders}, and the extension came with the package")
    # It has no folder in it where it failed.
    folder = (printed or "").strip()
    if folder.startswith("/") and has_compiler:
        return ok(name, f"{shaders}, and {folder} has what builds the extension")
    told = f"{folder} is gone" if folder.startswith("/") else "no command line tools of Xcode"
    return warning(
        name,
        f"{told}: this checkout's extension can't be built again, though {shaders}",
        "`xcode-select --install` (after it, if need be, `sudo xcode-select --reset`), or "
        "install pomona-serve from a wheel, which needs none",
    )


def check_firewall(printed: str | None, *, unattended: bool) -> Finding:
    """``unattended``: others on the network have to reach this Mac, and nobody sits before it."""
    name = "Firewall"
    found = _STATE.search(printed or "")
    if found is None:
        return unreadable(name, " ".join(FIREWALL))
    if found[1] == "0":
        return ok(name, "off")
    allow = f"turn it off, or make Python, Ray and Redis known to it as {RUNBOOK} says"
    if found[1] == "2":
        told = "on, and it blocks all that comes from other machines"
        return wrong(name, told, allow) if unattended else warning(name, told, allow)
    if not unattended:
        return ok(name, "on; it asks when a program wants to be reached from other machines")
    return warning(name, "on, and a question of it that nobody answers keeps hosts apart", allow)


def check_power(printed: str | None, *, unattended: bool) -> list[Finding]:
    """``unattended``: a server, which never sleeps and starts by itself."""
    if printed is None or "Currently in use:" not in printed:
        return [unreadable("Sleep", " ".join(POWER))]
    settings = {name: int(value) for name, value in _SETTING.findall(printed)}
    return [_sleep(settings, unattended), *_restart(settings, unattended), *_low_power(settings)]


def _sleep(settings: dict[str, int], unattended: bool) -> Finding:
    minutes = settings.get("sleep")
    if settings.get("SleepDisabled") or minutes == 0:
        return ok("Sleep", "never")
    if minutes is None:
        return unreadable("Sleep", " ".join(POWER))
    told = f"after {minutes} min in which nobody is at it, requests or not"
    remedy = "`sudo pmset -a sleep 0`"
    return wrong("Sleep", told, remedy) if unattended else warning("Sleep", told, remedy)


def _restart(settings: dict[str, int], unattended: bool) -> list[Finding]:
    # A Mac with a battery has no such setting, and one that somebody sits at no need of it.
    if not unattended or "autorestart" not in settings:
        return []
    if settings["autorestart"]:
        return [ok("Power cut", "it starts again by itself")]
    return [warning("Power cut", "it stays off after one", "`sudo pmset -a autorestart 1`")]


def _low_power(settings: dict[str, int]) -> list[Finding]:
    if settings.get("lowpowermode") or settings.get("powermode") == 1:
        return [warning("Low power mode", "on: it is slower", "`sudo pmset -a lowpowermode 0`")]
    return []


def check_file_vault(printed: str | None, *, unattended: bool) -> Finding:
    """By its first line: others tell how far an encryption is."""
    name = "FileVault"
    state = printed.strip().partition("\n")[0] if printed else ""
    if state.startswith("FileVault is Off") and "will be enabled" not in state:
        return ok(name, "off")
    if not state.startswith(("FileVault is On", "FileVault is Off")):
        return unreadable(name, " ".join(FILE_VAULT))
    told = "on" if state.startswith("FileVault is On") else "on after the next restart"
    if not unattended:
        return ok(name, told)
    return warning(
        name,
        f"{told}: a Mac that has restarted waits for somebody to unlock it",
        "`sudo fdesetup disable`, or be there at every restart (`sudo fdesetup authrestart` "
        "for one that is planned)",
    )
