"""What the dashboards' queries have in common."""

from __future__ import annotations

from ops.grafana.model import Panel, Query, Variable

CHOSEN = 'model=~"$model",replica=~"$replica"'
VARIABLES = (
    Variable("model", "pomona_steps_total", "model"),
    Variable("replica", "pomona_steps_total", "replica"),
)
PERCENTILES = (50, 90, 99)


def rate(metric: str, *by: str, labels: str = CHOSEN) -> str:
    """A counter's growth a second, summed ``by`` labels."""
    grouping = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouping} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(percent: int, metric: str, *by: str, labels: str = CHOSEN) -> str:
    """A percentile of a histogram, ``by`` labels."""
    buckets = rate(f"{metric}_bucket", "le", *by, labels=labels)
    return f"histogram_quantile({percent / 100:g}, {buckets})"


def percentiles(title: str, metric: str, labels: str, description: str) -> Panel:
    return Panel(
        f"{title}: percentiles",
        description,
        tuple(
            Query(quantile(percent, metric, labels=labels), f"p{percent}")
            for percent in PERCENTILES
        ),
        unit="s",
        width=8,
    )


def heatmap(title: str, metric: str, labels: str) -> Panel:
    buckets = f"sum by (le) (increase({metric}_bucket{{{labels}}}[$__rate_interval]))"
    return Panel(
        f"{title}: distribution",
        "How many took how long: the darker, the more.",
        (Query(buckets),),
        kind="heatmap",
        unit="s",
        width=8,
    )


def by_label(title: str, metric: str, label: str, labels: str, percent: int = 99) -> Panel:
    return Panel(
        f"{title}: p{percent} by {label}",
        f"The {percent}th percentile of each {label}.",
        (Query(quantile(percent, metric, label, labels=labels), f"{{{{{label}}}}}"),),
        unit="s",
        width=8,
    )
