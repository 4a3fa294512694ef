"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "wrong", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``remedy`` is empty where nothing needs to be done."""

    check: str
    verdict: Verdict
    told: str
    remedy: str = ""
    host: str = ""
    """Of a cluster; empty for this machine."""


def ok(check: str, told: str) -> Finding:
    return Finding(check, "ok", told)


def warning(check: str, told: str, remedy: str) -> Finding:
    return Finding(check, "warning", told, remedy)


def wrong(check: str, told: str, remedy: str) -> Finding:
    return Finding(check, "wrong", told, remedy)


def skipped(check: str, told: str) -> Finding:
    return Finding(check, "skipped", told)


def unreadable(check: str, command: str) -> Finding:
    """For what a command did not tell, or told in words that nobody here knows."""
    return warning(check, f"`{command}` does not tell", f"look at what `{command}` says")
