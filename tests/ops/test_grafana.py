from __future__ import annotations

import json
import os
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

if "CI" not in os.environ:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install '.[test]'")

from ops.grafana.__main__ import DASHBOARDS, DIRECTORY, path_of, text_of
from ops.grafana.model import COLUMNS, Dashboard
from tests.support.ops.grafana_schema import mistakes

PROVISIONING = DIRECTORY.parent / "provisioning"
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)


@each_dashboard
def test_the_committed_json_is_what_the_code_says(dashboard: Dashboard) -> None:
    assert path_of(dashboard).read_text() == text_of(dashboard), "run: python -m ops.grafana"


def test_no_json_is_without_its_code() -> None:
    assert sorted(DIRECTORY.iterdir()) == sorted(map(path_of, DASHBOARDS))


@each_dashboard
def test_grafana_knows_every_key_and_type(dashboard: Dashboard) -> None:
    assert mistakes(dashboard.as_json()) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["colour"], "red"),
        (["panels", 1, "gridPos", "w"], "wide"),
        (["panels", 1, "options", "colorMode"], "rainbow"),
        (["panels", 1, "targets", 0, "expression"], "up"),
        (["panels", 1, "fieldConfig", "defaults", "min"], "0"),
        (["templating", "list", 0, "type"], "magic"),
    ],
)
def test_a_mistake_is_found(path: list[Any], value: object) -> None:
    document = deepcopy(DASHBOARDS[0].as_json())
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    [found] = mistakes(document)
    assert str(path[-1]).lower() in found.replace("_", "").lower()


@each_dashboard
def test_panels_lie_side_by_side(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.as_json()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_ids_are_unique_and_panels_explained() -> None:
    assert len({dashboard.uid for dashboard in DASHBOARDS}) == len(DASHBOARDS)
    for dashboard in DASHBOARDS:
        ids = [panel["id"] for panel in dashboard.as_json()["panels"]]
        assert len(set(ids)) == len(ids)
        assert all(panel.description.endswith(".") for panel in dashboard.panels)


def test_every_metric_is_shown_somewhere() -> None:
    from deployments.backend import AttentionStatus
    from deployments.observe.metrics import EngineMetrics, GatewayMetrics, Identity
    from tests.support.deployments.stats import idle_stats

    attention = AttentionStatus("reference", "the check failed", "metal")
    registries = (
        EngineMetrics(idle_stats, Identity("m", "r", "n"), attention).registry,
        GatewayMetrics(replica="g", node="n").registry,
    )
    families = {family.name for registry in registries for family in registry.collect()}
    text = " ".join(path.read_text() for path in DIRECTORY.iterdir())
    assert {name for name in families if name not in text} == set()


def test_provisioning_points_at_a_data_source_and_a_folder() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    [source] = sources["datasources"]
    config = yaml.safe_load(Path("ops/prometheus/prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    providers = yaml.safe_load((PROVISIONING / "dashboards" / "pomona.yml").read_text())
    assert providers["providers"][0]["type"] == "file"


@each_dashboard
def test_variables_in_queries_exist(dashboard: Dashboard) -> None:
    known = {variable.name for variable in dashboard.variables} | {"__rate_interval", "datasource"}
    used = re.findall(r"\$\{?(\w+)", json.dumps(dashboard.as_json()["panels"]))
    assert set(used) <= known
