"""Alerts that fire, as Prometheus tells of them."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.command.server_url import ServerError, get_json

PATH = "/api/v1/alerts"
HEARTBEAT = "heartbeat"
"""The severity of the alert that always fires, to show that alerts can be sent."""


@dataclass(frozen=True)
class Alert:
    name: str
    severity: str
    since: str
    """As RFC 3339 writes it."""
    told: str


def firing_alerts(prometheus: str) -> list[Alert]:
    """Of the server at the URL ``prometheus``, the oldest first. Raises ``ServerError``."""
    url = f"{prometheus}{PATH}"
    # It is another server than the one that the key is for.
    answer = get_json(url, with_key=False)
    try:
        found = [_alert(one) for one in answer["data"]["alerts"] if one["state"] == "firing"]
    except (TypeError, KeyError, AttributeError):
        raise ServerError(f"{url}: this is no Prometheus") from None
    wanted = [one for one in found if one.severity != HEARTBEAT]
    return sorted(wanted, key=lambda one: (one.since, one.name))


def _alert(one: dict[str, dict[str, str]]) -> Alert:
    labels, annotations = one["labels"], one.get("annotations", {})
    told = annotations.get("summary") or annotations.get("description", "")
    # To the second, and a fraction of nine digits behind it.
    since = f"{str(one.get('activeAt', '')).partition('.')[0].rstrip('Z')}Z"
    return Alert(labels["alertname"], labels.get("severity", ""), since, told)
