"""Serve's status of applications, and the cause in the traceback that it gives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The launcher needs ``cause`` alone, and Ray takes seconds to import.
    from ray.serve.schema import ApplicationStatusOverview

SLOW_START = re.compile(r"replicas that have taken more than \S+ to initialize")
"""Serve's words of an engine that still loads its model: nothing has failed."""


def failures(
    found: Mapping[str, ApplicationStatusOverview], applications: Iterable[str]
) -> list[str]:
    """Why those of ``applications`` that Serve has given up don't run, a text for each cause."""
    return [
        text
        for name in applications
        if name in found and found[name].status == "DEPLOY_FAILED"
        for text in list(_causes(found[name], "DEPLOY_FAILED")) or [cause(found[name].message)]
    ]


def setbacks(
    found: Mapping[str, ApplicationStatusOverview], applications: Iterable[str]
) -> list[str]:
    """What keeps those of ``applications`` that Serve still tries to start."""
    return [
        text
        for name in applications
        if name in found
        for text in _causes(found[name], "UPDATING")
        if not SLOW_START.search(text)
    ]


def _causes(application: ApplicationStatusOverview, status: str) -> Iterator[str]:
    for name, deployment in application.deployments.items():
        if deployment.status == status and deployment.message:
            yield f"{name}: {cause(deployment.message)}"


def cause(message: str) -> str:
    """The exception that ends the last traceback in ``message``, or all of a message without."""
    _, traced, rest = message.rpartition('\n  File "')
    if not traced:
        return message.strip()
    lines = itertools.dropwhile(lambda line: line.startswith(" "), rest.splitlines()[1:])
    return "\n".join(lines).strip().removeprefix("ValueError: ")
