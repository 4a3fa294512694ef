"""``python -m ops.grafana`` writes the dashboards' JSON."""

from __future__ import annotations

import json
from pathlib import Path

from ops.grafana.engine import ENGINE
from ops.grafana.fleet import FLEET
from ops.grafana.latency import LATENCY
from ops.grafana.model import Dashboard

DIRECTORY = Path(__file__).parent / "dashboards"
DASHBOARDS = (FLEET, LATENCY, ENGINE)


def path_of(dashboard: Dashboard) -> Path:
    return DIRECTORY / f"{dashboard.uid.removeprefix('pomona-')}.json"


def text_of(dashboard: Dashboard) -> str:
    return json.dumps(dashboard.as_json(), indent=1) + "\n"


if __name__ == "__main__":
    for one in DASHBOARDS:
        path_of(one).write_text(text_of(one))
