"""Panels and dashboards, and their JSON as Grafana 10 and later read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase
from typing import Any, Literal

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 38

Kind = Literal["timeseries", "stacked", "heatmap", "stat", "table"]
Unit = Literal["s", "reqps", "ops", "percentunit", "bytes", "Bps", "celsius", "short", "none"]


@dataclass(frozen=True)
class Query:
    """``legend`` is Grafana's template of a series' name. In a heatmap the series are buckets."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    unit: Unit = "short"
    width: int = 8
    height: int = 8
    """In Grafana's grid of 24 columns."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the dashboard among the values that ``label`` of ``metric`` has."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]

    def as_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["pomona"],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": SCHEMA_VERSION,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [_link_to_all()],
            "templating": {"list": [_datasource(), *map(_variable, self.variables)]},
            "annotations": {"list": [_alerts()]},
            "panels": list(_placed(self.rows)),
        }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Every panel from left to right, then down, each row below its title."""
    ids = count(1)
    top = 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {
            "id": next(ids),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {"id": next(ids), "gridPos": place, **_panel(panel)}
            left += panel.width
            height = max(height, panel.height)
        top += height


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries" if panel.kind == "stacked" else panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [
            _target(query, ascii_uppercase[position], panel.kind)
            for position, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: Query, name: str, kind: Kind) -> dict[str, Any]:
    instant = kind in ("stat", "table")
    return {
        "refId": name,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": "{{le}}" if kind == "heatmap" else query.legend,
        "format": {"heatmap": "heatmap", "table": "table"}.get(kind, "time_series"),
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind in ("timeseries", "stacked"):
        stacked = panel.kind == "stacked"
        defaults["min"] = 0
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 60 if stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        }
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "heatmap":
            return {
                "calculate": False,
                "cellGap": 1,
                "color": {
                    "mode": "scheme",
                    "scheme": "Oranges",
                    "fill": "dark-orange",
                    "exponent": 0.5,
                    "steps": 64,
                    "reverse": False,
                },
                "yAxis": {"unit": panel.unit, "axisPlacement": "left"},
                "tooltip": {"show": True, "yHistogram": False},
                "legend": {"show": True},
                "filterValues": {"le": 1e-9},
                "exemplars": {"color": "orange"},
                "showValue": "never",
            }
        case "stat":
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "textMode": "auto",
                "orientation": "auto",
            }
        case "table":
            return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}
        case _:
            return {
                "legend": {
                    "displayMode": "list",
                    "placement": "bottom",
                    "showLegend": True,
                    "calcs": [],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": f"label_values({variable.metric}, {variable.label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Pomona.*",alertstate="firing"}',
    }


def _link_to_all() -> dict[str, Any]:
    return {
        "title": "Pomona",
        "type": "dashboards",
        "icon": "external link",
        "tooltip": "",
        "tags": ["pomona"],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }
