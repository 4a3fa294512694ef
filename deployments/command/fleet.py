"""The fleet as its gateways tell of it: who there is, and each one's own metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from deployments.command.server_url import ServerError, get_json, get_text

SCRAPE_TIMEOUT_S = 5.0
VERSIONS = {"pomona": "Pomona", "python": "Python", "ray": "Ray", "mlx": "MLX"}
"""What is told of each, and its name."""

Samples = Mapping[str, float]
"""The sum over all labels, by sample name; of names with the label ``outcome`` or ``actual``, one
each for its values, as in ``pomona_gateway_requests_total:success``."""


@dataclass(frozen=True)
class Member:
    """A gateway or an engine. ``error``: why it could not be read."""

    component: str
    node: str
    replica: str
    model: str = ""
    samples: Samples = field(default_factory=dict)
    read_at: float = 0.0
    """Seconds of a monotonic clock."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Pomona, Python, Ray and MLX; empty if it is too old to tell."""
    error: str = ""


@dataclass(frozen=True)
class Fleet:
    url: str
    is_ready: bool
    members: tuple[Member, ...]

    def of(self, component: str) -> list[Member]:
        return [one for one in self.members if one.component == component]


def read_fleet(url: str) -> Fleet:
    """What the gateway at ``url`` knows. Raises ``ServerError`` if it doesn't answer."""
    groups = get_json(f"{url}/targets")
    try:
        if not isinstance(groups, list):
            raise TypeError
        targets = [
            (f"http://{target}{group['labels']['__metrics_path__']}", group["labels"])
            for group in groups
            for target in group["targets"]
        ]
    except (TypeError, KeyError):
        raise ServerError(f"{url} is no gateway of Pomona") from None
    # All at once: a host that is lost is silent until the time is over.
    with ThreadPoolExecutor(max_workers=16) as pool:
        members = tuple(pool.map(lambda one: _read(*one), targets))
    return Fleet(url, _is_ready(url), members)


def parse_samples(text: str) -> Samples:
    """Of Prometheus text."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = [sample.name]
            names += [
                f"{sample.name}:{sample.labels[label]}"
                for label in ("outcome", "actual")
                if label in sample.labels
            ]
            for name in names:
                found[name] = found.get(name, 0.0) + sample.value
    return found


def parse_versions(text: str) -> Mapping[str, str]:
    """Of the same text."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "pomona_version_info":
                return {name: sample.labels.get(name, "") for name in VERSIONS}
    return {}


def _read(url: str, labels: Mapping[str, str]) -> Member:
    component, model = labels.get("component", ""), labels.get("model", "")
    node, replica = labels.get("node", ""), labels.get("replica", "")
    try:
        # Metrics ask for no key, and so get none.
        text = get_text(url, timeout_s=SCRAPE_TIMEOUT_S, with_key=False)
        samples, versions = parse_samples(text), parse_versions(text)
    except ServerError as error:
        return Member(component, node, replica, model, error=str(error))
    except ValueError:
        return Member(component, node, replica, model, error=f"{url}: no Prometheus text")
    return Member(component, node, replica, model, samples, time.monotonic(), versions)


def _is_ready(url: str) -> bool:
    try:
        return bool(get_json(f"{url}/ready").get("status") == "ready")
    except ServerError:
        return False
