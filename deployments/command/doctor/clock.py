"""Clocks that differ."""

from __future__ import annotations

from deployments.command.doctor.finding import Finding, ok, warning

MOST_APART_S = 3.0
"""More than the second that a ``Date`` header is cut to, and a slow answer."""


def check_clock(offset_s: float) -> Finding:
    """``offset_s``: by how much the host's clock is ahead of the one here."""
    if abs(offset_s) <= MOST_APART_S:
        return ok("Clock", "as here, to some seconds")
    told = f"{abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}: logs and metrics of "
    told += "hosts don't fit together, and certificates may not hold"
    remedy = "have it set its clock: `sudo sntp -sS time.apple.com`, or chrony on Linux"
    return warning("Clock", told, remedy)
