"""Ports that something has already."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.command.doctor.finding import Finding, ok, warning, wrong


@dataclass(frozen=True)
class Port:
    """One that Pomona, or Ray for it, is to listen at."""

    number: int
    purpose: str
    is_rays: bool = False
    is_taken: bool = False
    has_gateway: bool = False
    """One of Pomona's gateways answers there."""


def check_port(port: Port, *, ray_runs: bool) -> Finding:
    """``ray_runs``: on this machine."""
    told = f"{port.number} ({port.purpose})"
    if not port.is_taken:
        return ok("Port", f"{told} is free")
    if port.has_gateway:
        return ok("Port", f"{told}: a gateway of Pomona answers there already")
    if not port.is_rays:
        remedy = f"end what listens there (`lsof -nP -iTCP:{port.number}`), or choose another port"
        return wrong("Port", f"{told} is taken", remedy)
    if ray_runs:
        return ok("Port", f"{told} is taken while Ray runs here, and so by it")
    remedy = f"end what listens there (`lsof -nP -iTCP:{port.number}`)"
    return warning("Port", f"{told} is taken, and not by Ray, which does not run here", remedy)
