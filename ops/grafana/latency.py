"""*Latency*: what users wait for, and where it is spent."""

from __future__ import annotations

from ops.grafana.model import Dashboard, Panel, Query, Row
from ops.grafana.queries import CHOSEN, VARIABLES, by_label, heatmap, percentiles

TTFT = "pomona_time_to_first_token_seconds"
TPOT = "pomona_time_per_output_token_seconds"
ITL = "pomona_inter_token_latency_seconds"
QUEUE = "pomona_queue_time_seconds"
E2E = "pomona_e2e_request_latency_seconds"
OVERHEAD = "pomona_gateway_overhead_seconds"
OF_GATEWAYS = 'model=~"$model"'
GATEWAY = 'model=~"$model",stage="gateway"'
ENGINE = f'{CHOSEN},stage="engine"'


def mean(metric: str, labels: str) -> str:
    return (
        f"sum(rate({metric}_sum{{{labels}}}[$__rate_interval]))"
        f" / sum(rate({metric}_count{{{labels}}}[$__rate_interval]))"
    )


FIRST = Row(
    "First token, as clients see it",
    (
        heatmap("TTFT", TTFT, GATEWAY),
        percentiles(
            "TTFT",
            TTFT,
            GATEWAY,
            "From a request's arrival to its first token, at the gateways; streams only.",
        ),
        by_label("TTFT", TTFT, "model", GATEWAY),
        by_label("TTFT in the engine", TTFT, "replica", ENGINE),
        percentiles(
            "Gateway's part of the TTFT",
            OVERHEAD,
            OF_GATEWAYS,
            "All but from sending the request to the replica that answered until its first token "
            "is read: reading the request, routing, replicas that failed before, and passing the "
            "token on; streams only.",
        ),
        Panel(
            "Where the first token's time goes",
            "Means, each measured where it is spent: in engines, of all requests, waiting for a "
            "place in the batch and computing the prompt; in gateways, of streams, all else.",
            (
                Query(mean(QUEUE, ENGINE), "queue"),
                Query(f"{mean(TTFT, ENGINE)} - {mean(QUEUE, ENGINE)}", "prefill"),
                Query(mean(OVERHEAD, OF_GATEWAYS), "gateway"),
            ),
            unit="s",
        ),
    ),
)
TOKENS = Row(
    "Every further token",
    (
        heatmap("TPOT", TPOT, ENGINE),
        percentiles("TPOT", TPOT, ENGINE, "A request's mean time between tokens after the first."),
        by_label("TPOT", TPOT, "replica", ENGINE),
        heatmap("ITL", ITL, ENGINE),
        percentiles(
            "ITL", ITL, ENGINE, "Time between two tokens: its tail shows jerks that TPOT hides."
        ),
        by_label("ITL", ITL, "replica", ENGINE),
    ),
)
WHOLE = Row(
    "Queue, and end to end",
    (
        heatmap("Queue", QUEUE, ENGINE),
        percentiles("Queue", QUEUE, ENGINE, "From arrival at the replica to the first step."),
        by_label("Queue", QUEUE, "replica", ENGINE),
        heatmap("End to end", E2E, GATEWAY),
        percentiles("End to end", E2E, GATEWAY, "From arrival at the gateway to the last byte."),
        by_label("End to end", E2E, "model", GATEWAY),
    ),
)
OBJECTIVES = Row(
    "Objectives",
    (
        Panel(
            "Slow first tokens",
            "Part of all streams whose first token took more than 2.56 s; the objective is 1%.",
            (
                Query("pomona:slow_first_tokens:ratio_rate5m", "5 minutes"),
                Query("pomona:slow_first_tokens:ratio_rate1h", "1 hour"),
            ),
            unit="percentunit",
            width=12,
        ),
        Panel(
            "Failed requests",
            "Part of all requests that failed through our fault; the objective is 0.1%.",
            (
                Query("pomona:errors:ratio_rate5m", "5 minutes"),
                Query("pomona:errors:ratio_rate1h", "1 hour"),
            ),
            unit="percentunit",
            width=12,
        ),
    ),
)

LATENCY = Dashboard(
    uid="pomona-latency",
    title="Pomona: Latency",
    description="What users wait for, and where it is spent.",
    variables=VARIABLES,
    rows=(FIRST, TOKENS, WHOLE, OBJECTIVES),
)
