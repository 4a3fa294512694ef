from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deployments.backend import AttentionStatus, BackendStats, Histogram
from deployments.observe.metrics import EngineMetrics, GatewayMetrics, Identity
from tests.support.deployments.stats import idle_stats

IDENTITY = Identity(model="demo", replica="r1", node="10.0.0.2")
LABELS = {"model": "demo", "replica": "r1", "node": "10.0.0.2"}
COUNTERS = [
    "pomona_request_success_total",
    "pomona_request_failure_total",
    "pomona_prompt_tokens_total",
    "pomona_generation_tokens_total",
    "pomona_forced_tokens_total",
    "pomona_grammar_dead_ends_total",
    "pomona_prefix_cache_hit_tokens_total",
    "pomona_prefix_cache_query_tokens_total",
    "pomona_preemptions_total",
    "pomona_steps_total",
    "pomona_attention_launches_total",
    "pomona_prefix_cache_misses_total",
    "pomona_state_snapshots_taken_total",
    "pomona_state_snapshots_evicted_total",
    "pomona_step_tokens_total",
    "pomona_step_sequences_total",
]
HISTOGRAMS = [
    "pomona_time_to_first_token_seconds",
    "pomona_time_per_output_token_seconds",
    "pomona_inter_token_latency_seconds",
    "pomona_e2e_request_latency_seconds",
    "pomona_queue_time_seconds",
    "pomona_step_duration_seconds",
    "pomona_step_host_seconds",
]
GAUGES = [
    "pomona_requests_running",
    "pomona_requests_waiting",
    "pomona_kv_cache_usage_ratio",
    "pomona_kv_cache_blocks_free",
    "pomona_state_slots",
    "pomona_state_slots_free",
    "pomona_state_snapshots",
    "pomona_state_bytes",
    "pomona_kv_cache_window_usage_ratio",
    "pomona_memory_active_bytes",
    "pomona_model_info",
    "pomona_version_info",
]


def busy_stats() -> BackendStats:
    return replace(
        idle_stats(),
        requests_running=3,
        kv_cache_blocks_free=6,
        kv_cache_window_usage_ratios={1024: 0.5, 128: 0.125},
        request_success={"stop": 5, "new_reason": 1},
        request_failure={"rate_limit_error": 2},
        attention_launches={"cpu": 28},
        step_tokens={"prefill": 512, "decode": 90},
        prefix_cache_misses={"diverged": 7},
        state_slots=40,
        state_slots_free=37,
        state_snapshots=9,
        state_snapshots_taken=30,
        state_snapshots_evicted=21,
        state_bytes=4000,
        generation_tokens=700,
        queue_time=Histogram((0.1, 1.0), (4, 2, 1), 3.5),
        step_host={"build": Histogram((0.1, 1.0), (5, 1, 0), 0.75)},
    )


def test_usage_is_that_of_the_layers_with_the_least_left() -> None:
    stats = replace(idle_stats(), kv_cache_blocks_free=6)
    assert stats.kv_cache_usage_ratio == 0.25
    assert replace(stats, kv_cache_window_usage_ratios={16: 0.1}).kv_cache_usage_ratio == 0.25
    assert replace(stats, kv_cache_window_usage_ratios={16: 0.75}).kv_cache_usage_ratio == 0.75


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return samples(registry)[name, frozenset((LABELS | labels).items())]


def test_an_idle_engine_shows_every_metric_with_its_type_and_labels() -> None:
    registry = EngineMetrics(idle_stats, IDENTITY).registry
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", generate_latest(registry).decode(), re.M))
    expected = dict.fromkeys(COUNTERS, "counter")
    expected |= dict.fromkeys(HISTOGRAMS, "histogram") | dict.fromkeys(GAUGES, "gauge")
    assert types == expected | {"pomona_kv_cache_blocks_total": "untyped"}
    assert all(dict(labels).items() >= LABELS.items() for _, labels in samples(registry))


def test_everybody_tells_the_versions_that_hosts_must_have_alike() -> None:
    engine = EngineMetrics(idle_stats, IDENTITY).registry
    gateway = GatewayMetrics(replica="g1", node="10.0.0.3").registry
    installed = {"pomona": version("pomona-serve"), "ray": version("ray"), "mlx": version("mlx")}
    installed["python"] = platform.python_version()
    for registry in (engine, gateway):
        [labels] = [dict(one) for name, one in samples(registry) if name == "pomona_version_info"]
        assert labels.items() >= installed.items()


def test_counters_of_known_labels_start_at_zero() -> None:
    registry = EngineMetrics(idle_stats, IDENTITY).registry
    for reason in ("stop", "length", "abort"):
        assert value(registry, "pomona_request_success_total", finish_reason=reason) == 0
    for path in ("metal", "cuda", "cpu", "reference"):
        assert value(registry, "pomona_attention_launches_total", path=path) == 0
    assert value(registry, "pomona_request_failure_total", error_type="server_error") == 0


def test_samples_are_the_engines_statistics() -> None:
    registry = EngineMetrics(busy_stats, IDENTITY).registry
    assert value(registry, "pomona_requests_running") == 3
    assert value(registry, "pomona_kv_cache_usage_ratio") == 0.5
    assert value(registry, "pomona_kv_cache_window_usage_ratio", window="1024") == 0.5
    assert value(registry, "pomona_kv_cache_window_usage_ratio", window="128") == 0.125
    assert value(registry, "pomona_kv_cache_blocks_total") == 8
    assert value(registry, "pomona_generation_tokens_total") == 700
    assert value(registry, "pomona_step_tokens_total", phase="prefill") == 512
    assert value(registry, "pomona_prefix_cache_misses_total", reason="diverged") == 7
    assert value(registry, "pomona_prefix_cache_misses_total", reason="evicted") == 0
    assert value(registry, "pomona_prefix_cache_misses_total", reason="no_snapshot") == 0
    assert value(registry, "pomona_state_slots") == 40
    assert value(registry, "pomona_state_slots_free") == 37
    assert value(registry, "pomona_state_snapshots") == 9
    assert value(registry, "pomona_state_snapshots_taken_total") == 30
    assert value(registry, "pomona_state_snapshots_evicted_total") == 21
    assert value(registry, "pomona_state_bytes") == 4000
    assert value(registry, "pomona_step_sequences_total", phase="decode") == 0
    assert value(registry, "pomona_step_host_seconds_sum", part="build") == 0.75
    assert value(registry, "pomona_step_host_seconds_count", part="build") == 6
    assert value(registry, "pomona_request_success_total", finish_reason="stop") == 5
    assert value(registry, "pomona_request_success_total", finish_reason="new_reason") == 1
    assert value(registry, "pomona_request_failure_total", error_type="rate_limit_error") == 2


def test_the_attention_that_serves_is_told_beside_the_wanted() -> None:
    name = "pomona_attention_path_info"
    fell_back = AttentionStatus("reference", "the check failed", "metal")
    registry = EngineMetrics(idle_stats, IDENTITY, fell_back).registry
    assert value(registry, name, wanted="metal", actual="reference") == 1
    silent = EngineMetrics(idle_stats, IDENTITY).registry
    assert name not in {sample for sample, _ in samples(silent)}


def test_what_model_it_is_shows_with_its_revision() -> None:
    registry = EngineMetrics(idle_stats, IDENTITY, revision="abc").registry
    assert value(registry, "pomona_model_info", revision="abc") == 1


def test_failures_around_the_engine_add_to_its_own() -> None:
    metrics = EngineMetrics(busy_stats, IDENTITY)
    name = "pomona_request_failure_total"
    for error_type in ("rate_limit_error", "server_error"):
        metrics.failed(error_type)
    assert value(metrics.registry, name, error_type="rate_limit_error") == 3
    assert value(metrics.registry, name, error_type="server_error") == 1


def test_histogram_buckets_are_cumulative() -> None:
    registry = EngineMetrics(busy_stats, IDENTITY).registry
    name = "pomona_queue_time_seconds"
    buckets = [
        value(registry, f"{name}_bucket", stage="engine", le=le) for le in ("0.1", "1", "+Inf")
    ]
    assert buckets == [4, 6, 7]
    assert value(registry, f"{name}_count", stage="engine") == 7
    assert value(registry, f"{name}_sum", stage="engine") == 3.5


def gateway_registry() -> CollectorRegistry:
    metrics = GatewayMetrics(replica="g1", node="10.0.0.1")
    metrics.failed("", "permission_error")
    metrics.first_content("demo", 0.02, overhead_s=0.003)
    metrics.ended("demo", "success")
    metrics.completed("demo", 3.0)
    return metrics.registry


def test_a_gateway_counts_under_the_same_names_in_its_own_stage() -> None:
    registry = gateway_registry()
    own = {"replica": "g1", "node": "10.0.0.1", "stage": "gateway"}
    assert value(registry, "pomona_time_to_first_token_seconds_count", **own) == 1
    assert value(registry, "pomona_e2e_request_latency_seconds_sum", **own) == 3.0
    failures = {"model": "unknown", "replica": "g1", "node": "10.0.0.1"}
    name = "pomona_request_failure_total"
    assert value(registry, name, **failures, error_type="permission_error") == 1
    assert value(registry, name, **failures, error_type="server_error") == 0
    own.pop("stage")
    assert value(registry, "pomona_gateway_overhead_seconds_sum", **own) == 0.003
    name = "pomona_gateway_requests_total"
    assert value(registry, name, **own, outcome="success") == 1
    assert value(registry, name, **own, outcome="server_error") == 0
    assert not any(name.endswith("_created") for name, _ in samples(registry))


@pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool is not installed: it is in Debian's package prometheus",
)
@pytest.mark.parametrize(
    "registry",
    [
        EngineMetrics(idle_stats, IDENTITY).registry,
        EngineMetrics(busy_stats, IDENTITY).registry,
        gateway_registry(),
    ],
    ids=["engine-idle", "engine-busy", "gateway"],
)
def test_promtool_finds_no_fault(registry: CollectorRegistry) -> None:
    run = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
