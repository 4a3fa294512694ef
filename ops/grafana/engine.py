"""*Engine*: what each step does."""

from __future__ import annotations

from ops.grafana.model import Dashboard, Panel, Query, Row
from ops.grafana.queries import CHOSEN, VARIABLES, by_label, heatmap, percentiles, rate

STEP = "pomona_step_duration_seconds"
HOST = "pomona_step_host_seconds"
OF_ENGINES = f'{CHOSEN},component="engine"'

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
            "Prompt tokens of admitted requests, and tokens generated, a second; forced ones were "
            "all that a grammar or a budget left, and needed no step.",
            (
                Query(rate("pomona_prompt_tokens_total"), "prompt"),
                Query(rate("pomona_generation_tokens_total"), "generated"),
                Query(rate("pomona_forced_tokens_total"), "forced"),
            ),
        ),
        heatmap("Step time", STEP, CHOSEN),
        percentiles("Step time", STEP, CHOSEN, "From one batch's tokens to the next's."),
        by_label("Step time", STEP, "replica", CHOSEN),
        Panel(
            "Host time of a step, by part",
            "What the engine's thread did: the mean. While it waits, or MLX has it wait before it "
            "takes more, the device is busy; as long as it waits at all, it does the rest beside "
            "the device.",
            (
                Query(
                    f"{rate(f'{HOST}_sum', 'part')} / {rate(f'{HOST}_count', 'part')}",
                    "{{part}}",
                ),
            ),
            kind="stacked",
            unit="s",
        ),
        Panel(
            "Steps",
            "Steps a second of each replica.",
            (Query(rate("pomona_steps_total", "replica"), "{{replica}}"),),
            unit="ops",
        ),
        Panel(
            "Attention launches by path",
            "Which operators ran. The table of attention paths says which should.",
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
            "Part of the blocks that a new sequence could not take; where layers see windows of "
            "tokens, of those that have the least left, and of each window.",
            (
                Query(f"pomona_kv_cache_usage_ratio{{{CHOSEN}}}", "{{replica}}"),
                Query(
                    f"pomona_kv_cache_window_usage_ratio{{{CHOSEN}}}",
                    "{{replica}}, window {{window}}",
                ),
            ),
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
            "Prefix misses",
            "Requests a second whose whole prompt was not in the prefix cache, by why no more was.",
            (Query(rate("pomona_prefix_cache_misses_total", "reason"), "{{reason}}"),),
            kind="stacked",
            unit="ops",
        ),
        Panel(
            "State slots",
            "Of models with recurrent layers: slots that sequences hold, snapshots that can be "
            "found, and all slots.",
            (
                Query(
                    f"pomona_state_slots{{{CHOSEN}}} - pomona_state_slots_free{{{CHOSEN}}}",
                    "{{replica}} held",
                ),
                Query(f"pomona_state_snapshots{{{CHOSEN}}}", "{{replica}} snapshots"),
                Query(f"pomona_state_slots{{{CHOSEN}}}", "{{replica}} all"),
            ),
        ),
        Panel(
            "State snapshots",
            "Snapshots a second that were taken, and that had to make room: where all go, prefixes "
            "are missed for `snapshot_evicted`.",
            (
                Query(rate("pomona_state_snapshots_taken_total"), "taken"),
                Query(rate("pomona_state_snapshots_evicted_total"), "evicted"),
            ),
            unit="ops",
        ),
        Panel(
            "State memory",
            "Bytes of all slots of recurrent state.",
            (Query(f"pomona_state_bytes{{{CHOSEN}}}", "{{replica}}"),),
            unit="bytes",
        ),
        Panel(
            "Memory",
            "Bytes that the engine's arrays hold.",
            (Query(f"pomona_memory_active_bytes{{{CHOSEN}}}", "{{replica}}"),),
            unit="bytes",
        ),
    ),
)

REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Ended, by reason",
            "`stop` and `length` are whole answers, `abort` is one that was given up.",
            (Query(rate("pomona_request_success_total", "finish_reason"), "{{finish_reason}}"),),
            kind="stacked",
            unit="reqps",
        ),
        Panel(
            "Failed attempts, by error",
            "What engines refused or failed at. Mostly another one then answers: what clients got "
            "is on the Fleet dashboard.",
            (
                Query(
                    rate("pomona_request_failure_total", "error_type", labels=OF_ENGINES),
                    "{{error_type}}",
                ),
                Query(
                    rate("pomona_grammar_dead_ends_total", labels=OF_ENGINES),
                    "of these, a grammar left no token",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            "Attention paths",
            "Where `actual` is not `wanted`, kernels failed the check at start: right, but slow.",
            (
                Query(
                    "max by (replica, node, wanted, actual)"
                    f" (pomona_attention_path_info{{{CHOSEN}}})"
                ),
            ),
            kind="table",
        ),
    ),
)

ENGINE = Dashboard(
    uid="pomona-engine",
    title="Pomona: Engine",
    description="What each step does.",
    variables=VARIABLES,
    rows=(STEPS, MEMORY, REQUESTS),
)
