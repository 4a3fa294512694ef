"""Certificates of a cluster that end."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deployments.command.doctor.finding import Finding, ok, unreadable, warning, wrong

CHECK = "Certificates"
DAY_S = 24 * 3600
WARNING_DAYS = 30
REMEDY = "make new ones, `python -m ops.cluster --rotate store`, and install them"

Output = Callable[[tuple[str, ...]], str | None]


def check_certificates(files: Iterable[Path], output: Output, now: float) -> Iterator[Finding]:
    """``files``: one PEM certificate each; ``now``: in seconds since 1970."""
    for path in files:
        command = ("openssl", "x509", "-enddate", "-noout", "-in", str(path))
        told = output(command)
        if told is None:
            yield unreadable(CHECK, " ".join(command))
            continue
        days = (ssl.cert_time_to_seconds(told.strip().removeprefix("notAfter=")) - now) / DAY_S
        if days <= 0:
            yield wrong(CHECK, f"{path} has ended {-days:.0f} days ago", REMEDY)
        elif days < WARNING_DAYS:
            yield warning(CHECK, f"{path} ends in {days:.0f} days", REMEDY)
        else:
            yield ok(CHECK, f"{path} holds for {days:.0f} days")
