"""A row of *Fleet*: the responses that are kept, of which each gateway tells all."""

from __future__ import annotations

from ops.grafana.model import Panel, Query, Row

KEPT = Row(
    "What is kept of responses?",
    (
        Panel(
            "Kept responses",
            "Responses that clients can ask for or go on with.",
            (Query("max(pomona_stored_responses)", "responses"),),
            width=6,
        ),
        Panel(
            "Their memory",
            "Of the store, whose bound is `responses.max_bytes`.",
            (Query("max(pomona_stored_responses_bytes)", "bytes"),),
            unit="bytes",
            width=6,
        ),
        Panel(
            "Written",
            "Responses a minute that were to be kept: `failed` did not reach the store in time, "
            "`too_large` were more than one key may have. Their clients are told `store: false`.",
            (
                Query(
                    "60 * sum by (outcome) "
                    "(rate(pomona_stored_response_writes_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            kind="stacked",
            width=6,
        ),
        Panel(
            "Evicted",
            "Responses a minute that had to go: for their `age`, for the bound of their `key`, or "
            "for want of `memory`. Who goes on with one of them has to send everything again.",
            (
                Query(
                    "60 * max by (reason) "
                    "(rate(pomona_stored_responses_evicted_total[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            kind="stacked",
            width=6,
        ),
    ),
)
