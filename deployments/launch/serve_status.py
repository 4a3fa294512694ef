"""Serve's status of applications, and the cause in the traceback that it gives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

SLOW_START = re.compile(r"replicas that have taken more than \S+ to initialize")
"""Serve's words of an engine that still loads its model: nothing has failed."""

Details = Mapping[str, Any]
"""As Serve's REST API has it."""


class ServeStatus:
    """Asks the dashboard, which listens some time before it can answer."""

    def __init__(self, dashboard_url: str) -> None:
        self._url = dashboard_url
        self._client: ServeSubmissionClient | None = None

    def details(self) -> Details:
        """Empty while there is none to be had."""
        try:
            if self._client is None:
                self._client = ServeSubmissionClient(self._url)
            found: Details = self._client.get_serve_details()
        except (OSError, RuntimeError):
            return {}
        return found


def failures(details: Details, applications: Iterable[str]) -> list[str]:
    """Why those of ``applications`` that Serve has given up don't run, a text for each cause."""
    found = []
    for name in applications:
        status = details.get("applications", {}).get(name, {})
        if status.get("status") == "DEPLOY_FAILED":
            found += list(_causes(status, "DEPLOY_FAILED")) or [cause(status.get("message", ""))]
    return found


def setbacks(details: Details, applications: Iterable[str]) -> list[str]:
    """What keeps those of ``applications`` that Serve still tries to start."""
    return [
        text
        for name in applications
        for text in _causes(details.get("applications", {}).get(name, {}), "UPDATING")
        if not SLOW_START.search(text)
    ]


def _causes(status: Details, of_status: str) -> Iterator[str]:
    for name, deployment in status.get("deployments", {}).items():
        if deployment.get("status") == of_status and deployment.get("message"):
            yield f"{name}: {cause(deployment['message'])}"


def cause(message: str) -> str:
    """The exception that ends the last traceback in ``message``, or all of a message without."""
    _, traced, rest = message.rpartition('\n  File "')
    if not traced:
        return message.strip()
    lines = itertools.dropwhile(lambda line: line.startswith(" "), rest.splitlines()[1:])
    return "\n".join(lines).strip().removeprefix("ValueError: ")
