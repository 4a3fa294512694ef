"""*Engine*: what each step does."""

from __future__ import annotations

from ops.grafana.model import Dashboard, Panel, Query, Row
from ops.grafana.queries import CHOSEN, VARIABLES, by_label, heatmap, percentiles, rate

STEP = "pomona_step_duration_seconds"

STEPS = Row(
    "Steps",
    (
        Panel(
            "Batch composition",
            "Sequences in a step, by what it does for them: the mean over all steps.",
            (
                Query(
                    f"{rate('pomona_step_sequences_total', 'phase')}"
                    f" / on () group_left () {rate('pomona_steps_total')}",
                    "{{phase}}",
                ),
            ),
            kind="stacked",
        ),
        Panel(
            "Tokens by phase",
            "Tokens a second that went through the model: not what the prefix cache had.",
            (Query(rate("pomona_step_tokens_total", "phase"), "{{phase}}"),),
            kind="stacked",
        ),
        Panel(
            "Tokens in and out",
            "Prompt tokens of admitted requests, and tokens generated, a second.",
            (
                Query(rate("pomona_prompt_tokens_total"), "prompt"),
                Query(rate("pomona_generation_tokens_total"), "generated"),
            ),
        ),
        heatmap("Step time", STEP, CHOSEN),
        percentiles("Step time", STEP, CHOSEN, "From scheduling a batch to having its tokens."),
        by_label("Step time", STEP, "replica", CHOSEN),
        Panel(
            "Steps",
            "Steps a second of each replica.",
            (Query(rate("pomona_steps_total", "replica"), "{{replica}}"),),
            unit="ops",
        ),
        Panel(
            "Attention launches by path",
            "Which operators ran. The table below says which should have.",
            (Query(rate("pomona_attention_launches_total", "path"), "{{path}}"),),
            kind="stacked",
            unit="ops",
        ),
        Panel(
            "Running and waiting",
            "Requests in the batch, and in the queue.",
            (
                Query(f"sum(pomona_requests_running{{{CHOSEN}}})", "running"),
                Query(f"sum(pomona_requests_waiting{{{CHOSEN}}})", "waiting"),
            ),
        ),
    ),
)
MEMORY = Row(
    "KV cache",
    (
        Panel(
            "KV blocks",
            "Held by sequences, and free: free ones may still hold a prefix.",
            (
                Query(
                    f"sum(pomona_kv_cache_blocks_total{{{CHOSEN}}})"
                    f" - sum(pomona_kv_cache_blocks_free{{{CHOSEN}}})",
                    "held",
                ),
                Query(f"sum(pomona_kv_cache_blocks_free{{{CHOSEN}}})", "free"),
            ),
            kind="stacked",
        ),
        Panel(
            "KV usage",
            "Part of the blocks that a new sequence could not take.",
            (Query(f"pomona_kv_cache_usage_ratio{{{CHOSEN}}}", "{{replica}}"),),
            unit="percentunit",
        ),
        Panel(
            "Preemptions",
            "Sequences a second that lost their blocks and are computed again.",
            (Query(rate("pomona_preemptions_total", "replica"), "{{replica}}"),),
            unit="ops",
        ),
        Panel(
            "Prefix hits",
            "Prompt tokens a second that were found in the prefix cache, and that were not.",
            (
                Query(rate("pomona_prefix_cache_hit_tokens_total"), "found"),
                Query(
                    f"{rate('pomona_prefix_cache_query_tokens_total')}"
                    f" - {rate('pomona_prefix_cache_hit_tokens_total')}",
                    "computed",
                ),
            ),
            kind="stacked",
        ),
        Panel(
            "Prefix hit ratio",
            "Part of the prompts' tokens that was found.",
            (
                Query(
                    f"{rate('pomona_prefix_cache_hit_tokens_total', 'replica')}"
                    f" / {rate('pomona_prefix_cache_query_tokens_total', 'replica')}",
                    "{{replica}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Memory",
            "Bytes that the engine's arrays hold.",
            (Query(f"pomona_memory_active_bytes{{{CHOSEN}}}", "{{replica}}"),),
            unit="bytes",
        ),
    ),
)

ENGINE = Dashboard(
    uid="pomona-engine",
    title="Pomona: Engine",
    description="What each step does.",
    variables=VARIABLES,
    rows=(STEPS, MEMORY),
)
