"""The dashboards without a Grafana: every panel's queries, asked of a Prometheus and drawn.

``python -m ops.grafana.render http://127.0.0.1:9090 DIRECTORY`` writes a PNG for each dashboard of
the last minutes, with every choice at the top left at *All*.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ops.grafana.__main__ import DASHBOARDS
from ops.grafana.model import Dashboard, Panel, Query, Unit

Points = npt.NDArray[np.float64]

SPAN_S = 60.0
NUM_POINTS = 120
COLUMNS = 3
DOTS_PER_INCH = 60


@dataclass(frozen=True)
class Series:
    name: str
    labels: Mapping[str, str]
    times: Points
    values: Points


@dataclass(frozen=True)
class Prometheus:
    """``rate_interval`` takes the place of Grafana's `$__rate_interval`: four scrapes or more."""

    url: str
    rate_interval: str = "20s"

    def ask(self, query: Query, end: float, span: float = SPAN_S) -> list[Series]:
        """What a panel shows of ``span`` seconds before ``end``. Raises ``ValueError`` with
        Prometheus' own words for a query that it can't answer."""
        expr = query.expr.replace("$__rate_interval", self.rate_interval)
        for name in ("model", "replica", "node"):
            expr = expr.replace(f"${name}", ".*")
        parameters = {"query": expr, "start": end - span, "end": end, "step": span / NUM_POINTS}
        found = self._get("query_range", parameters)
        return [self._series(one, query.legend) for one in found["data"]["result"]]

    def _get(self, endpoint: str, parameters: Mapping[str, object]) -> Any:
        data = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{endpoint}", data) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters['query']}: {error.read().decode()}") from error

    @staticmethod
    def _series(result: Mapping[str, Any], legend: str) -> Series:
        labels = result["metric"]
        name = legend
        for label, value in labels.items():
            name = name.replace(f"{{{{{label}}}}}", value)
        points = np.array([(time, float(value)) for time, value in result["values"]])
        return Series(name, labels, points[:, 0], points[:, 1])


Answers = Mapping[Panel, Sequence[Sequence[Series]]]
"""For each query of each panel its series."""


def ask_all(dashboard: Dashboard, prometheus: Prometheus, end: float) -> Answers:
    return {
        panel: [prometheus.ask(query, end) for query in panel.queries] for panel in dashboard.panels
    }


def draw(dashboard: Dashboard, answers: Answers, path: Path) -> None:
    """One image with all panels that have more than a single number."""
    panels = [panel for panel in dashboard.panels if panel.kind != "stat"]
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4.6 * COLUMNS, 2.5 * rows), dpi=DOTS_PER_INCH, layout="constrained")
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    figure.suptitle(f"{dashboard.title}   {_numbers(dashboard, answers)}", fontsize=12)
    for axis in axes:
        axis.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_axis_on()
        axis.set_title(panel.title, fontsize=10)
        _draw_panel(axis, panel, [one for series in answers[panel] for one in series])
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    # Few colours are used, and a palette makes a third of the size.
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


def _numbers(dashboard: Dashboard, answers: Answers) -> str:
    stats = [panel for panel in dashboard.panels if panel.kind == "stat"]
    return "   ".join(f"{panel.title}: {answers[panel][0][0].values[-1]:.3g}" for panel in stats)


def _draw_panel(axis: Axes, panel: Panel, series: Sequence[Series]) -> None:
    axis.tick_params(labelsize=7)
    match panel.kind:
        case "heatmap":
            _draw_heatmap(axis, series)
        case "table":
            _draw_table(axis, series)
        case "stacked":
            _draw_stacked(axis, series)
        case _:
            for one in series:
                axis.plot(_ago(one), one.values * _scale(panel.unit), label=one.name, linewidth=1)
            highest = axis.get_ylim()[1]
            axis.set_ylim(-0.03 * highest, 1.1 * highest)
    if panel.kind in ("timeseries", "stacked"):
        axis.set_ylabel(_unit_name(panel.unit), fontsize=7)
        axis.legend(fontsize=6, loc="upper left", framealpha=0.6)


def _ago(series: Series) -> Points:
    """Seconds before the last point."""
    ago: Points = series.times - series.times[-1]
    return ago


def _scale(unit: Unit) -> float:
    return 100.0 if unit == "percentunit" else 2.0**-20 if unit in ("bytes", "Bps") else 1.0


def _unit_name(unit: Unit) -> str:
    names = {"percentunit": "%", "bytes": "MiB", "Bps": "MiB/s", "reqps": "1/s", "ops": "1/s"}
    return names.get(unit, "" if unit in ("short", "none") else unit)


def _draw_stacked(axis: Axes, series: Sequence[Series]) -> None:
    times = np.unique(np.concatenate([one.times for one in series]))
    heights = []
    for one in series:
        height = np.zeros(len(times))
        height[np.searchsorted(times, one.times)] = np.nan_to_num(one.values)
        heights.append(height)
    axis.stackplot(times - times[-1], heights, labels=[one.name for one in series], alpha=0.7)
    axis.set_ylim(bottom=0)


def _draw_heatmap(axis: Axes, series: Sequence[Series]) -> None:
    """Cumulative buckets, each less the one below it: dark where many fell into one."""
    buckets = sorted(series, key=lambda one: float(one.labels["le"]))
    times = buckets[-1].times
    cumulative = np.zeros((len(buckets) + 1, len(times)))
    for row, one in enumerate(buckets, start=1):
        cumulative[row, np.searchsorted(times, one.times)] = one.values
    counts = np.maximum(np.diff(cumulative, axis=0), 0)
    used = np.flatnonzero(counts.any(axis=1))
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(buckets))
    axis.imshow(
        np.sqrt(counts[low:high]),
        origin="lower",
        aspect="auto",
        cmap="Oranges",
        interpolation="nearest",
        extent=(times[0] - times[-1], 0, 0, high - low),
    )
    names = [buckets[row].labels["le"] for row in range(low, high)]
    axis.set_yticks(np.arange(1, high - low + 1), [f"{float(name):g} s" for name in names])


def _draw_table(axis: Axes, series: Sequence[Series]) -> None:
    columns = sorted({label for one in series for label in one.labels if label != "__name__"})
    rows = [
        [*(one.labels.get(label, "") for label in columns), f"{one.values[-1]:g}"] for one in series
    ]
    axis.set_axis_off()
    table = axis.table(rows, colLabels=[*columns, "value"], loc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(7)


if __name__ == "__main__":
    url, directory = sys.argv[1:]
    now = time.time()
    for each in DASHBOARDS:
        image = Path(directory) / f"{each.uid.removeprefix('pomona-')}.png"
        draw(each, ask_all(each, Prometheus(url), now), image)
