"""The report, as text and as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from deployments.command.doctor.finding import Finding
from deployments.command.terminal import printable


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
    told = {
        "findings": [asdict(one) for one in findings],
        "versions": dict(versions),
        "time": time.time(),
    }
    return json.dumps(told, indent=2)
