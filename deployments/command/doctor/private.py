"""Secrets that others could read, and keys that can't be read."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from deployments.command.doctor.finding import Finding, ok, warning, wrong

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_modes(
    modes: Mapping[Path, int], judge: Callable[[str, str, str], Finding] = wrong
) -> list[Finding]:
    """``modes``: of secrets, and of folders that hold some; ``judge``: how bad it is if others may
    read one."""
    found = [
        judge("Secrets", f"others may read {path} (mode {mode & 0o7777:o})", _remedy(path, mode))
        for path, mode in modes.items()
        if mode & OTHERS
    ]
    if found or not modes:
        return found
    return [ok("Secrets", f"{len(modes)} files and folders are for their owner alone")]


def _remedy(path: Path, mode: int) -> str:
    return f"`chmod {700 if stat.S_ISDIR(mode) else 600} {path}`"


def check_keys(path: Path | None, *, is_local: bool, problem: str, num_keys: int) -> Finding:
    """``path``: of the keys file, if the config has one. ``is_local``: clients on this machine
    alone can reach the gateway. ``problem``: why the file can't be used."""
    if path is None and is_local:
        return ok("API keys", "none; clients on this machine alone are served")
    if path is None:
        remedy = "set gateway.api_keys_file"
        return warning("API keys", "none, so clients on other machines are refused", remedy)
    if problem:
        return wrong("API keys", problem, f"put a key a line into {path}, and `chmod 600 {path}`")
    return ok("API keys", f"{num_keys} in {path}")
