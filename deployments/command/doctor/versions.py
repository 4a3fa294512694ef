"""Versions: of Python and the packages here, and whether a cluster's hosts have them alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from deployments.command.doctor.finding import Finding, ok, wrong
from deployments.command.fleet import VERSIONS

LEAST_PYTHON = (3, 11)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)\s*(?:;(.*))?$")


def check_python(version: str, machine: str, system: str) -> Finding:
    """Of ``platform``: ``python_version()``, ``machine()`` and ``system()``."""
    told = f"{version}, {machine}"
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < LEAST_PYTHON:
        return wrong("Python", told, "use 3.11 or later")
    if system == "Darwin" and machine != "arm64":
        remedy = "use a Python for arm64, such as python.org's, on a Mac with Apple silicon"
        return wrong("Python", f"{told}: MLX runs on arm64 alone", remedy)
    return ok("Python", told)


def check_pins(requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """``requirements``: what this package says of others, of which some must be there to the patch.
    ``installed``: the version of one, None if it is not there."""
    pins = [pin for one in requirements if (pin := _PIN.match(one)) and not pin[3]]
    found = {pin[1]: installed(pin[1]) for pin in pins}
    other = [
        f"{pin[1]} {found[pin[1]] or 'is missing'} (not {pin[2]})"
        for pin in pins
        if found[pin[1]] != pin[2]
    ]
    if other:
        remedy = "`make setup` in the repository, or install pomona-serve again"
        return wrong("Packages", f"not those that Pomona was made with: {', '.join(other)}", remedy)
    shown = ", ".join(f"{name} {found[name]}" for name in ("mlx", "ray") if found.get(name))
    return ok("Packages", f"{shown}, and {len(pins)} in all as they have to be")


def check_alike(by_host: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """``by_host``: versions of ``pomona``, ``python``, ``ray`` and ``mlx`` on each."""
    found = []
    for key, name in VERSIONS.items():
        hosts: dict[str, list[str]] = {}
        for host, versions in by_host.items():
            if key in versions:
                hosts.setdefault(versions[key], []).append(host)
        if len(hosts) == 1:
            [(version, alike)] = hosts.items()
            found.append(ok(f"{name} alike", f"{version} on {len(alike)} of {len(by_host)} hosts"))
        elif hosts:
            each = "; ".join(f"{version} on {', '.join(on)}" for version, on in hosts.items())
            remedy = "the same commit and Python to the patch on every host, then `make setup`"
            found.append(wrong(f"{name} alike", each, remedy))
    return found
