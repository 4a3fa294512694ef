"""The seam between serving and inference: the ``Backend`` protocol and what flows through it.

A backend is found by name in the entry-point group ``pomona.backends`` and is driven by one
``EngineReplica``. Everything that crosses the seam is a frozen dataclass defined here, so a backend
needs nothing from Ray, Starlette or Prometheus, and serving needs nothing from MLX.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

ENTRY_POINT_GROUP = "pomona.backends"

FinishReason = Literal["stop", "length", "abort"]


class EngineConfig(BaseModel):
    """What one engine runs and how much of the machine it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field("metal", description="Name in the entry-point group `pomona.backends`.")
    model: str = Field(
        "demo",
        min_length=1,
        description="Hugging Face id, local directory, or `demo` for the embedded model.",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description="Branch, tag or full commit of a `model` on the hub, for weights and "
        "tokenizer; by default what `main` is when an engine starts. A commit is the same on every "
        "host, whenever it starts.",
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="Name clients use; the last part of `model` by default."
    )
    device: Literal["auto", "metal", "cuda", "cpu"] = Field(
        "auto", description="`auto`: Metal on Apple silicon, CUDA where MLX has it, CPU otherwise."
    )
    attention: Literal["auto", "metal", "cpu", "reference"] = Field(
        "auto",
        description="Attention operators. `auto`: the device's own kernels, or plain MLX "
        "(`reference`) if they fail the check at start; `metal` and `cpu`: these kernels, or no "
        "start at all.",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="Of weights and KV cache; `auto`: float32 on CPU, else the model's."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest sequence in tokens; the model's own limit by default."
    )
    max_num_seqs: int = Field(32, ge=1, description="Most sequences in one step.")
    max_num_batched_tokens: int = Field(
        512, ge=1, description="Token budget of one step; at least `max_num_seqs`."
    )
    max_slowdown: float | None = Field(
        None,
        gt=1.0,
        description="Times as long as alone that a token may take beside others, such as 1.5: "
        "while sequences decode, prompts get the time that is left in a step, and new ones wait "
        "when there is none, by what steps were measured to take. Faster streams, for less "
        "throughput; by default only `max_num_seqs` and `max_num_batched_tokens` bound a step.",
    )
    block_size: Literal[8, 16, 32] = Field(16, description="Tokens in one KV cache block.")
    num_kv_blocks: int | None = Field(
        None, ge=1, description="Blocks in the KV cache; sized from memory by default."
    )
    memory_fraction: float = Field(
        0.8, gt=0.0, le=0.95, description="Most of the device's memory for weights and KV cache."
    )
    prefix_caching: bool = Field(True, description="Reuse the blocks of shared prompt prefixes.")
    max_queued_requests: int = Field(
        256, ge=0, description="Waiting requests past which the answer is 429."
    )
    step_timeout_s: float = Field(
        120.0,
        gt=0.0,
        description="A step that takes longer, kernels compiled in it included, counts as hung: "
        "streams go on at other replicas and the engine is replaced. Raise it for a machine that "
        "needs minutes for `max_num_batched_tokens` tokens.",
    )
    chat_template: str | None = Field(
        None, description="Path of a Jinja file that replaces the tokenizer's chat template."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python that ships with the model's repository."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of a third-party backend; `metal` takes none."
    )


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Raises ``ValueError`` naming the field and what is allowed."""

    max_tokens: int | None = None
    """Most tokens to generate; None: until the context is full."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 considers every token."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """Number of alternatives to report for each token; 0: the drawn token alone; None: nothing."""
    seed: int | None = None
    """The draw at position p depends on (seed, p) alone. None: a fresh seed for each request."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, valid, allowed in (
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature <= 2.0, "between 0 and 2"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0 and at most 1"),
            ("top_k", self.top_k >= 0, "at least 0 (0 considers every token)"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 10.0, "above 0, at most 10"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2"),
            (
                "logit_bias",
                all(-100.0 <= bias <= 100.0 for bias in self.logit_bias.values()),
                "a bias between -100 and 100 for each token id",
            ),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "between 0 and 20"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit integer"),
            ("stop", all(self.stop), "non-empty strings"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {allowed}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class ChatPrompt:
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Mapping[str, Any], ...]
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


Prompt = str | tuple[int, ...] | ChatPrompt


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt, continued ``n`` times."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    """Lower runs first; equal priorities run in order of arrival."""
    cache_salt: str = ""
    """Requests with different salts never share cached blocks."""
    resume: tuple[tuple[int, ...], ...] = ()
    """Token ids that each of the ``n`` sequences has already, from a backend that was lost, and
    which is to be continued exactly; ``sampling.seed`` is set. The iterator gives them again
    first, one delta a token with ``replayed`` set. ``n`` times none: it waited there, or had only
    begun. Empty: an ordinary request."""

    def __post_init__(self) -> None:
        if self.resume and (len(self.resume) != self.n or self.sampling.seed is None):
            raise ValueError(
                f"resume must have tokens for each of {self.n} sequences, not {len(self.resume)}, "
                f"and a seed, not {self.sampling.seed}"
            )

    @property
    def was_admitted(self) -> bool:
        """A backend that was lost had let it in, and whoever streams it is in the middle of an
        answer: it needs no place in a queue."""
        return bool(self.resume)


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    text: str
    utf8: bytes
    """The token's own bytes, which may be part of a character."""
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    """The most likely tokens, best first; their own ``top`` is empty."""


@dataclass(frozen=True)
class Delta:
    """What one step added to one of a request's ``n`` sequences."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    """Set on the last delta of the sequence; the iterator ends after the last of ``n``."""
    replayed: bool = False
    """Its token came with ``GenerationRequest.resume``; its logprobs are all 0.0."""


@dataclass(frozen=True)
class Histogram:
    """``counts[i]`` observations were at most ``bounds[i]``; the last count had no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class BackendStats:
    """A consistent snapshot. Counters and histograms only grow; times are in seconds."""

    requests_running: int
    requests_waiting: int
    kv_cache_blocks_total: int
    kv_cache_blocks_free: int
    """Blocks that a new sequence could take, cached ones included."""
    memory_active_bytes: int
    request_success: Mapping[str, int]
    """By finish reason; a request counts once, with its last sequence."""
    request_failure: Mapping[str, int]
    """By error type: ``BackendError.error_type``."""
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_hit_tokens: int
    prefix_cache_query_tokens: int
    preemptions: int
    steps: int
    attention_launches: Mapping[str, int]
    """By path: metal, cuda, cpu, reference."""
    time_to_first_token: Histogram
    time_per_output_token: Histogram
    inter_token_latency: Histogram
    e2e_request_latency: Histogram
    queue_time: Histogram
    step_duration: Histogram
    step_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens that went through the model, by phase: prefill, decode."""
    step_sequences: Mapping[str, int] = field(default_factory=dict)
    """Sequences summed over all steps, by phase: over ``steps``, the mean batch."""

    @property
    def kv_cache_usage_ratio(self) -> float:
        return 1.0 - self.kv_cache_blocks_free / self.kv_cache_blocks_total


@dataclass(frozen=True)
class AttentionStatus:
    """Which attention operators an engine serves with, and why these."""

    path: str
    """metal, cuda, cpu or reference"""
    reason: str
    wanted: str
    """The path that would serve if all were well."""


@dataclass(frozen=True)
class ModelInfo:
    name: str
    max_model_len: int
    attention: AttentionStatus | None = None
    """None: the backend has nothing to say about it."""
    revision: str = ""
    """Backends with the same one continue each other's answers: a digest of what determines
    tokens."""


class BackendError(Exception):
    """Anything a backend says no with. ``error_type`` is OpenAI's, and the metric's label."""

    error_type = "server_error"
    code: str | None = None


class InvalidRequestError(BackendError):
    """The request can't be served by this model; ``param`` names the field."""

    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(BackendError):
    """Admission is bounded; try again after ``retry_after`` seconds."""

    error_type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(BackendError):
    """The backend is draining, stopped or unhealthy; another replica may serve the request."""

    error_type = "service_unavailable"
    code = "unavailable"


class EngineStoppedError(UnavailableError):
    """The engine stopped while it had the request, which may be why."""

    code = "engine_stopped"


class ResumeError(BackendError):
    """The backend can't go on from ``GenerationRequest.resume``, here or at all."""

    code = "resume_failed"


class StepError(BackendError):
    """The step that this request was part of failed; the request may be sent again."""

    code = "step_failed"


class Backend(Protocol):
    """One engine. Constructed without arguments, then ``start``; every method is loop-safe."""

    async def start(self, config: EngineConfig) -> ModelInfo:
        """Load the model and allocate memory. Raises ``ValueError`` naming the setting at fault."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Deltas in order. Closing or cancelling the iterator frees the request's memory within
        one step. Raises a ``BackendError`` at the first ``anext`` or later."""
        ...

    def stats(self) -> BackendStats: ...

    async def check_health(self) -> None:
        """Raises ``UnavailableError`` when the engine can't serve and must be restarted, such as
        when it hangs. Also asked for each request that has heard nothing for a while: if this
        raises, the request goes on elsewhere."""
        ...

    async def drain(self) -> None:
        """Refuse new requests with ``UnavailableError``; return when the last one has finished."""
        ...

    async def stop(self) -> None:
        """End at once; unfinished requests get ``finish_reason="abort"``, or an error from an
        engine that hangs, for which nobody waits. Idempotent."""
        ...


def create_backend(name: str) -> Backend:
    """Look ``name`` up among the installed entry points. Raises ``ValueError`` with those found."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ValueError(f"engine.backend must be one of {sorted(found)}, not {name!r}")
    backend: Backend = found[name].load()()
    return backend
