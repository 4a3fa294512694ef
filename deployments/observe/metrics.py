"""Prometheus metrics of engines and gateways: every `pomona_` name, with its labels.

An engine counts for itself (``BackendStats``) and is read at scrape time; a gateway counts what
only it sees. Both use the same names and are told apart by the label ``stage``.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Info, disable_created_metrics
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from deployments.backend import AttentionStatus, BackendStats, Histogram, PrefixMiss
from deployments.observe.stored_responses import StoredResponseMetrics
from deployments.observe.versions import versions

# A `_created` gauge beside every counter and histogram would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

IDENTITY = ("model", "replica", "node")
FINISH_REASONS = ("stop", "length", "abort")
ERROR_TYPES = (
    "invalid_request_error",
    "rate_limit_error",
    "service_unavailable",
    "server_error",
)
GATEWAY_ERROR_TYPES = (*ERROR_TYPES, "permission_error")
OUTCOMES = ("success", "client_error", "rate_limited", "server_error", "client_gone")
UNKNOWN_MODEL = "unknown"
"""The label of requests that name no model that is served: an empty one would count as absent."""
PHASES = ("prefill", "decode")
PREFIX_MISSES = get_args(PrefixMiss)
ATTENTION_PATHS = ("metal", "cuda", "cpu", "reference")

# Doubling buckets: from a cached prompt on an idle engine to a long answer on a busy one.
LATENCY_BOUNDS = tuple(0.005 * 2**step for step in range(18))
OVERHEAD_BOUNDS = tuple(0.0005 * 2**step for step in range(15))


@dataclass(frozen=True)
class Identity:
    """The labels that every sample of one process carries."""

    model: str
    replica: str
    node: str

    def values(self) -> list[str]:
        return [self.model, self.replica, self.node]


class EngineCollector(Collector):
    """Turns one snapshot of a backend's statistics into samples, at each scrape."""

    def __init__(
        self,
        stats: Callable[[], BackendStats],
        failures: Mapping[str, int],
        identity: Identity,
        attention: AttentionStatus | None,
    ) -> None:
        self._stats = stats
        self._failures = failures
        self._labels = identity.values()
        self._attention = attention

    def describe(self) -> Iterable[Metric]:
        # The registry would otherwise collect, and so ask for statistics, before the engine runs.
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from self._counters(stats)
        yield from self._gauges(stats)
        yield from self._histograms(stats)

    def _counters(self, stats: BackendStats) -> Iterator[Metric]:
        for name, help_text, label, known, counts in (
            (
                "pomona_request_success",
                "Requests that ended well, by the finish reason of their last sequence.",
                "finish_reason",
                FINISH_REASONS,
                stats.request_success,
            ),
            (
                "pomona_request_failure",
                "Requests that ended with an error.",
                "error_type",
                ERROR_TYPES,
                Counts(stats.request_failure) + Counts(self._failures),
            ),
            (
                "pomona_attention_launches",
                "Launches of an attention operator, by the path that ran.",
                "path",
                ATTENTION_PATHS,
                stats.attention_launches,
            ),
            (
                "pomona_prefix_cache_misses",
                "Requests whose whole prompt was not in the prefix cache, by why no more was.",
                "reason",
                PREFIX_MISSES,
                stats.prefix_cache_misses,
            ),
            (
                "pomona_step_tokens",
                "Tokens that went through the model, by phase.",
                "phase",
                PHASES,
                stats.step_tokens,
            ),
            (
                "pomona_step_sequences",
                "Sequences in the batch, summed over all steps, by phase.",
                "phase",
                PHASES,
                stats.step_sequences,
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=[*IDENTITY, label])
            for value, count in _with_zeros(known, counts).items():
                family.add_metric([*self._labels, value], count)
            yield family
        for name, help_text, count in (
            ("pomona_prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            ("pomona_generation_tokens", "Tokens generated.", stats.generation_tokens),
            (
                "pomona_forced_tokens",
                "Generated tokens that needed no step of their own: nothing else could come.",
                stats.forced_tokens,
            ),
            (
                "pomona_grammar_dead_ends",
                "Requests that failed because a grammar left no token and was not complete.",
                stats.grammar_dead_ends,
            ),
            (
                "pomona_prefix_cache_hit_tokens",
                "Prompt tokens found in the prefix cache.",
                stats.prefix_cache_hit_tokens,
            ),
            (
                "pomona_prefix_cache_query_tokens",
                "Prompt tokens looked up in the prefix cache.",
                stats.prefix_cache_query_tokens,
            ),
            (
                "pomona_preemptions",
                "Sequences preempted for their blocks or places.",
                stats.preemptions,
            ),
            ("pomona_steps", "Forward passes of a batch.", stats.steps),
            (
                "pomona_state_snapshots_taken",
                "Snapshots of recurrent state that were taken.",
                stats.state_snapshots_taken,
            ),
            (
                "pomona_state_snapshots_evicted",
                "Snapshots of recurrent state that had to make room.",
                stats.state_snapshots_evicted,
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=IDENTITY)
            family.add_metric(self._labels, count)
            yield family

    def _gauges(self, stats: BackendStats) -> Iterator[Metric]:
        for name, help_text, value in (
            ("pomona_requests_running", "Requests in the batch.", stats.requests_running),
            ("pomona_requests_waiting", "Requests in the queue.", stats.requests_waiting),
            (
                "pomona_kv_cache_usage_ratio",
                "Share of the KV cache's blocks that a new sequence could not take, of the layers "
                "that have the least left.",
                stats.kv_cache_usage_ratio,
            ),
            (
                "pomona_kv_cache_blocks_free",
                "Blocks that a new sequence could take, cached ones included, of the layers that "
                "see the most tokens.",
                stats.kv_cache_blocks_free,
            ),
            (
                "pomona_state_slots",
                "Slots of recurrent state; 0 for a model without recurrent layers.",
                stats.state_slots,
            ),
            (
                "pomona_state_slots_free",
                "Slots that a new sequence could take, snapshots that nobody reads included.",
                stats.state_slots_free,
            ),
            (
                "pomona_state_snapshots",
                "Snapshots of recurrent state that can be found.",
                stats.state_snapshots,
            ),
            ("pomona_state_bytes", "Memory of all slots of recurrent state.", stats.state_bytes),
            (
                "pomona_memory_active_bytes",
                "Memory that the engine's arrays hold.",
                stats.memory_active_bytes,
            ),
        ):
            family = GaugeMetricFamily(name, help_text, labels=IDENTITY)
            family.add_metric(self._labels, value)
            yield family
        # A gauge may not end in _total by Prometheus's rules, and this name is fixed.
        total = UntypedMetricFamily(
            "pomona_kv_cache_blocks_total",
            "Blocks in the KV cache of the layers that see the most tokens.",
            labels=IDENTITY,
        )
        total.add_metric(self._labels, stats.kv_cache_blocks_total)
        yield total
        windows = GaugeMetricFamily(
            "pomona_kv_cache_window_usage_ratio",
            "Share of the blocks that are held, of layers that see a shorter window of tokens.",
            labels=[*IDENTITY, "window"],
        )
        for window, ratio in stats.kv_cache_window_usage_ratios.items():
            windows.add_metric([*self._labels, str(window)], ratio)
        yield windows
        if self._attention is not None:
            path = GaugeMetricFamily(
                "pomona_attention_path_info",
                "Always 1: which attention path serves, and which would if all were well.",
                labels=[*IDENTITY, "wanted", "actual"],
            )
            path.add_metric([*self._labels, self._attention.wanted, self._attention.path], 1)
            yield path

    def _histograms(self, stats: BackendStats) -> Iterator[Metric]:
        for name, help_text, histogram in (
            (
                "pomona_time_to_first_token_seconds",
                "From arrival to the first token.",
                stats.time_to_first_token,
            ),
            (
                "pomona_time_per_output_token_seconds",
                "Mean time between a request's tokens after the first.",
                stats.time_per_output_token,
            ),
            (
                "pomona_inter_token_latency_seconds",
                "Time between two consecutive tokens.",
                stats.inter_token_latency,
            ),
            (
                "pomona_e2e_request_latency_seconds",
                "From arrival to the last token.",
                stats.e2e_request_latency,
            ),
            (
                "pomona_queue_time_seconds",
                "From arrival to the first step.",
                stats.queue_time,
            ),
            (
                "pomona_step_duration_seconds",
                "From one step's tokens to the next's.",
                stats.step_duration,
            ),
        ):
            family = HistogramMetricFamily(name, help_text, labels=[*IDENTITY, "stage"])
            family.add_metric([*self._labels, "engine"], _buckets(histogram), histogram.sum)
            yield family
        host = HistogramMetricFamily(
            "pomona_step_host_seconds",
            "Of a step, what the host did, by part, with its waiting for the device.",
            labels=[*IDENTITY, "part"],
        )
        for part, histogram in stats.step_host.items():
            host.add_metric([*self._labels, part], _buckets(histogram), histogram.sum)
        yield host


class EngineMetrics:
    """What a replica's ``/metrics`` shows: the engine's own counts, and failures around it."""

    def __init__(
        self,
        stats: Callable[[], BackendStats],
        identity: Identity,
        attention: AttentionStatus | None = None,
        revision: str = "",
    ) -> None:
        """``attention`` and ``revision``: of the started backend, as its ``ModelInfo`` says."""
        self.registry = CollectorRegistry()
        self._failures = Counts[str]()
        self.registry.register(EngineCollector(stats, self._failures, identity, attention))
        Info(
            "pomona_model",
            "What is served: engines with the same revision continue each other's streams.",
            IDENTITY,
            registry=self.registry,
        ).labels(*identity.values()).info({"revision": revision})
        _tell_versions(self.registry, dict(zip(IDENTITY, identity.values(), strict=True)))

    def failed(self, error_type: str) -> None:
        """A request failed that the engine never had, or whose failure it did not see."""
        self._failures[error_type] += 1


class GatewayMetrics:
    """What only a gateway knows: what clients got and how soon, and what was refused here."""

    def __init__(self, *, replica: str, node: str) -> None:
        self.registry = CollectorRegistry()
        self._replica = replica
        self._node = node
        self._models: set[str] = set()
        """Those whose outcomes are counted."""
        self._requests = Counter(
            "pomona_gateway_requests",
            "Generation requests, each once, by what the client got.",
            [*IDENTITY, "outcome"],
            registry=self.registry,
        )
        self._failures = Counter(
            "pomona_request_failure",
            "Requests that ended with an error that the gateway decided.",
            [*IDENTITY, "error_type"],
            registry=self.registry,
        )
        self._resumes = Counter(
            "pomona_stream_resumes",
            "Times that a stream went on at another replica, after its own was lost.",
            IDENTITY,
            registry=self.registry,
        )
        self._reconnects = Counter(
            "pomona_stream_reconnects",
            "Streams that a client came back for, with the id of the last event that it had.",
            IDENTITY,
            registry=self.registry,
        )
        self._placements = Counter(
            "pomona_prefix_placements",
            "Requests by where the longest known beginning of their prompt had been sent before: "
            "to the replica that got them, elsewhere only, or nowhere that is known.",
            [*IDENTITY, "known"],
            registry=self.registry,
        )
        self._time_to_first_token = self._histogram(
            "pomona_time_to_first_token_seconds",
            "From arrival to the first content sent to the client; streams only.",
        )
        self._overhead = PrometheusHistogram(
            "pomona_gateway_overhead_seconds",
            "Of the time to the first content, all but from sending to the replica to reading it.",
            IDENTITY,
            buckets=OVERHEAD_BOUNDS,
            registry=self.registry,
        )
        self._e2e = self._histogram(
            "pomona_e2e_request_latency_seconds", "From arrival to the last byte sent."
        )
        self._refusals = Counter(
            "pomona_gateway_refusals",
            "Requests that the gateway answered with an error, by path and error code.",
            ["replica", "node", "path", "reason"],
            registry=self.registry,
        )
        _tell_versions(self.registry, {"replica": replica, "node": node})
        self.stored_responses = StoredResponseMetrics(self.registry, replica=replica, node=node)
        self._add_outcomes(UNKNOWN_MODEL)
        for error_type in GATEWAY_ERROR_TYPES:
            self._failures.labels(UNKNOWN_MODEL, replica, node, error_type)

    def _histogram(self, name: str, help_text: str) -> PrometheusHistogram:
        return PrometheusHistogram(
            name, help_text, [*IDENTITY, "stage"], buckets=LATENCY_BOUNDS, registry=self.registry
        )

    def _add_outcomes(self, model: str) -> None:
        # A series that begins at 1 has no rate.
        self._models.add(model)
        for outcome in OUTCOMES:
            self._requests.labels(model, self._replica, self._node, outcome)

    def ended(self, model: str, outcome: str) -> None:
        """``model`` is empty unless it is one that is served."""
        model = model or UNKNOWN_MODEL
        if model not in self._models:
            self._add_outcomes(model)
        self._requests.labels(model, self._replica, self._node, outcome).inc()

    def failed(self, model: str, error_type: str) -> None:
        """``model`` is empty unless it is one that is served: clients choose names freely."""
        model = model or UNKNOWN_MODEL
        self._failures.labels(model, self._replica, self._node, error_type).inc()

    def refused(self, path: str, reason: str) -> None:
        """Both are of closed sets: clients choose paths freely."""
        self._refusals.labels(self._replica, self._node, path, reason).inc()

    def resumed(self, model: str, times: int) -> None:
        """Of each request, also of one that was not: a series that begins at 1 has no rate."""
        self._resumes.labels(model, self._replica, self._node).inc(times)

    def reconnected(self, model: str, did: bool) -> None:
        """Of each request, for the same reason."""
        self._reconnects.labels(model, self._replica, self._node).inc(did)

    def placed(self, model: str, known: str) -> None:
        self._placements.labels(model, self._replica, self._node, known).inc()

    def first_content(self, model: str, seconds: float, *, overhead_s: float) -> None:
        """``overhead_s``: what of it was not the replica's."""
        self._time_to_first_token.labels(model, self._replica, self._node, "gateway").observe(
            seconds
        )
        self._overhead.labels(model, self._replica, self._node).observe(overhead_s)

    def completed(self, model: str, seconds: float) -> None:
        self._e2e.labels(model, self._replica, self._node, "gateway").observe(seconds)


def _tell_versions(registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
    Info(
        "pomona_version",
        "What runs here: Python, Ray and MLX have to be the same on every host.",
        list(labels),
        registry=registry,
    ).labels(**labels).info(versions())


def _with_zeros(known: Iterable[str], counts: Mapping[str, int]) -> dict[str, int]:
    return dict.fromkeys(known, 0) | dict(counts)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts under their upper bounds, as Prometheus wants them."""
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    buckets: list[tuple[str, float]] = []
    cumulative = 0
    for bound, count in zip(bounds, histogram.counts, strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    return buckets
