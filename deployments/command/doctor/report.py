"""The report, as text and as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from deployments.command.doctor.finding import Finding
from deployments.command.terminal import printable


@dataclass(frozen=True)
class Printed:
    """What ``pomona doctor --json`` prints; more than that is passed over."""

    findings: tuple[Finding, ...]
    versions: dict[str, str]
    time: float
    """In seconds, as Unix counts them."""


def line(one: Finding) -> str:
    host = f"{one.host}: " if one.host else ""
    told = " ".join(f"{host}{one.check}: {one.told}".split())
    remedy = f". Remedy: {one.remedy}" if one.remedy else ""
    return printable(f"{one.verdict:<8} {told}{remedy}")


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(one.verdict for one in findings)
    warnings = f"{counts['warning']} warning{'' if counts['warning'] == 1 else 's'}"
    return f"{counts['wrong']} wrong, {warnings}, {counts['ok']} ok."


def as_json(findings: Sequence[Finding], versions: Mapping[str, str]) -> str:
    return json.dumps(asdict(Printed(tuple(findings), dict(versions), time.time())), indent=2)
