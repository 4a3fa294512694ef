"""What is made of the words of macOS's commands, as they print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.command.doctor import macos, readings
from deployments.command.doctor.finding import Finding

MINI = """System-wide power settings:
Currently in use:
 disksleep            10
 powernap             1
 womp                 1
 networkoversleep     0
 sleep                10 (sleep prevented by sharingd, powerd, bluetoothd)
 Sleep On Power Button 1
 ttyskeepawake        1
 tcpkeepalive         1
 autorestart          0
 standby              0
 displaysleep         10
"""
SERVER = MINI.replace(
    "sleep                10 (sleep prevented by sharingd, powerd, bluetoothd)",
    "sleep                0",
).replace("autorestart          0", "autorestart          1")
KEPT_AWAKE = MINI.replace("Currently", " SleepDisabled\t\t1\nCurrently")
BLOCKS_ALL = "Firewall is blocking all non-essential incoming connections. (State = 2)\n"
LAPTOP = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 hibernatemode        3
 sleep                1
 lowpowermode         1
"""


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.verdict for one in findings}


@pytest.mark.parametrize(
    ("printed", "verdict"),
    [("26.1\n", "ok"), ("14.0", "ok"), ("15.7.1\n", "ok"), ("13.6.9\n", "wrong"), ("26\n", "ok")],
)
def test_a_macos_that_mlx_does_not_run_on_is_wrong(printed: str, verdict: str) -> None:
    assert macos.check_version(printed).verdict == verdict


@pytest.mark.parametrize(
    ("printed", "verdict", "told"),
    [
        ("0\n", "ok", "macOS's own limit"),
        ("24576\n", "ok", "iogpu.wired_limit_mb is 24576, 25.8 GB of 34.4 GB, until the next"),
        ("32000\n", "warning", "leaves macOS too little"),
        ("8192\n", "warning", "less than macOS would allow"),
        ("sysctl: unknown oid", "warning", "does not tell"),
        (None, "warning", "does not tell"),
    ],
)
def test_the_limit_of_gpu_memory(printed: str | None, verdict: str, told: str) -> None:
    found = macos.check_wired_limit(printed, 32 * 2**30)
    assert found.verdict == verdict
    assert told in found.told
    assert bool(found.remedy) == (verdict != "ok")


def test_the_remedy_for_too_high_a_limit_is_one_that_would_pass() -> None:
    remedy = macos.check_wired_limit("32000\n", 32 * 2**30).remedy
    limit = remedy.partition("wired_limit_mb=")[2].partition("`")[0]
    assert macos.check_wired_limit(limit, 32 * 2**30).verdict == "ok"


@pytest.mark.parametrize(
    ("printed", "alone", "unattended"),
    [
        ("Firewall is disabled. (State = 0)\n", "ok", "ok"),
        ("Firewall is enabled. (State = 1)\n", "ok", "warning"),
        (BLOCKS_ALL, "warning", "wrong"),
        ("socketfilterfw: no such option\n", "warning", "warning"),
        (None, "warning", "warning"),
    ],
)
def test_a_firewall_is_in_the_way_of_a_server(
    printed: str | None, alone: str, unattended: str
) -> None:
    assert macos.check_firewall(printed, unattended=False).verdict == alone
    assert macos.check_firewall(printed, unattended=True).verdict == unattended


def test_a_server_never_sleeps_and_starts_by_itself() -> None:
    assert verdicts(macos.check_power(SERVER, unattended=True)) == {
        "Sleep": "ok",
        "Power cut": "ok",
    }
    found = macos.check_power(MINI, unattended=True)
    assert verdicts(found) == {"Sleep": "wrong", "Power cut": "warning"}
    assert [one.remedy for one in found] == [
        "`sudo pmset -a sleep 0`",
        "`sudo pmset -a autorestart 1`",
    ]
    assert "after 10 min" in found[0].told
    assert verdicts(macos.check_power(KEPT_AWAKE, unattended=True))["Sleep"] == "ok"


def test_a_mac_that_somebody_sits_at_may_sleep_with_a_warning() -> None:
    assert verdicts(macos.check_power(MINI, unattended=False)) == {"Sleep": "warning"}
    assert verdicts(macos.check_power(LAPTOP, unattended=False)) == {
        "Sleep": "warning",
        "Low power mode": "warning",
    }
    # It has no setting for power cuts.
    assert "Power cut" not in verdicts(macos.check_power(LAPTOP, unattended=True))


@pytest.mark.parametrize("printed", [None, "", "Usage: pmset\n", "Currently in use:\n womp 1\n"])
def test_power_settings_that_nobody_can_read_are_told(printed: str | None) -> None:
    assert verdicts(macos.check_power(printed, unattended=True)) == {"Sleep": "warning"}


@pytest.mark.parametrize(
    ("printed", "alone", "unattended"),
    [
        ("FileVault is Off.\n", "ok", "ok"),
        ("FileVault is On.\n", "ok", "warning"),
        ("FileVault is On.\nDecryption in progress: Percent completed = 12\n", "ok", "warning"),
        ("FileVault is Off, but will be enabled after the next restart.\n", "ok", "warning"),
        ("FileVault is Off, but needs to be restarted to finish.\n", "ok", "ok"),
        ("Error: unknown\n", "warning", "warning"),
        (None, "warning", "warning"),
    ],
)
def test_a_disk_that_waits_to_be_unlocked_keeps_a_server_down(
    printed: str | None, alone: str, unattended: str
) -> None:
    assert macos.check_file_vault(printed, unattended=False).verdict == alone
    assert macos.check_file_vault(printed, unattended=True).verdict == unattended


TOOLS = "/Library/Developer/CommandLineTools\n"
XCODE = "/Applications/Xcode.app/Contents/Developer\n"


@pytest.mark.parametrize(
    ("printed", "has_compiler", "of_checkout", "told"),
    [
        (TOOLS, True, "ok", "/Library/Developer/CommandLineTools has what builds"),
        (XCODE, True, "ok", "/Applications/Xcode.app/Contents/Developer has what builds"),
        # After an update of macOS.
        (TOOLS, False, "warning", "/Library/Developer/CommandLineTools is gone"),
        # "xcode-select: error: unable to get active developer directory", and status 2.
        (None, False, "warning", "no command line tools"),
        ("", False, "warning", "no command line tools"),
    ],
)
def test_tools_are_for_a_checkout_alone(
    printed: str | None, has_compiler: bool, of_checkout: str, told: str
) -> None:
    found = macos.check_tool_chain(printed, is_checkout=True, has_compiler=has_compiler)
    assert (found.check, found.verdict) == ("Metal tool chain", of_checkout)
    assert told in found.told
    assert ("`xcode-select --install`" in found.remedy) == (of_checkout != "ok")
    wheel = macos.check_tool_chain(printed, is_checkout=False, has_compiler=has_compiler)
    assert (wheel.verdict, wheel.told[:16]) == ("ok", "none is needed: ")


@pytest.mark.parametrize("compiler", ["", "Toolchains/XcodeDefault.xctoolchain"])
def test_where_apples_compiler_is(compiler: str, tmp_path: Path) -> None:
    tools = f"{tmp_path}\n"
    assert not readings.has_compiler(None)
    assert not readings.has_compiler(tools)
    for path in (tmp_path / "usr/bin/make", tmp_path / compiler / "usr/bin/clang++"):
        assert not readings.has_compiler(tools)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert readings.has_compiler(tools)


def test_a_checkout_is_known_by_what_it_is_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert readings.is_checkout()
    installed = tmp_path / "deployments" / "command" / "doctor" / "readings.py"
    monkeypatch.setattr(readings, "__file__", str(installed))
    assert not readings.is_checkout()


def test_all_commands_are_those_that_any_user_may_run() -> None:
    commands = [macos.VERSION, macos.WIRED_LIMIT, macos.FIREWALL, macos.POWER, macos.FILE_VAULT]
    commands.append(macos.TOOLS)
    assert all(command[0].startswith("/usr/") for command in commands)
    assert not any("sudo" in command for command in commands)
