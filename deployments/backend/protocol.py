"""The protocols of a backend, and what it says of its model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from deployments.backend.config import EngineConfig
from deployments.backend.delta import Delta, Prefill, SpelledToken
from deployments.backend.pooling import Pooled, PoolingInfo, PoolingRequest
from deployments.backend.request import GenerationRequest, SamplingParams
from deployments.backend.stats import BackendStats

ENTRY_POINT_GROUP = "pomona.backends"


@dataclass(frozen=True)
class AttentionStatus:
    """Which attention operators an engine serves with, and why these."""

    path: str
    """metal, cuda, cpu or reference"""
    reason: str
    wanted: str
    """The path that would serve if all were well."""


@dataclass(frozen=True)
class ModelPlan:
    """The memory that a model takes on this machine."""

    device: str
    memory_bytes: int
    """Memory of the device, before ``memory_fraction``."""
    weight_bytes: int
    max_model_len: int
    """Context length of the config, or else of the model, in tokens."""
    context: int
    """Tokens of the longest sequence that there is room for."""
    sequence_bytes: int
    """KV cache and recurrent state of one sequence of ``context`` tokens."""

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.sequence_bytes


@dataclass(frozen=True)
class ModelInfo:
    name: str
    max_model_len: int
    attention: AttentionStatus | None = None
    """None: the backend has nothing to say about it."""
    revision: str = ""
    """Backends with the same one continue each other's answers: a digest of what determines
    tokens."""
    other_names: tuple[str, ...] = ()
    """That requests may have, too."""
    default_sampling: SamplingParams = field(default_factory=SamplingParams)
    """Of requests that do not say how their tokens are drawn."""
    chat_template: str = ""
    """In Jinja, if it has one."""
    template_variables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names that the template reads and does not set, with the texts that it compares each with."""
    added_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of those that the tokenizer takes whole, by their text."""
    special_tokens: frozenset[str] = frozenset()
    """Those of them that are no text, unless a request wants them shown."""
    pooling: PoolingInfo | None = None
    """None: it makes no vectors."""
    longest_token: int = 0
    """Characters of a text that one token takes, at most; 0: nobody knows."""


class Backend(Protocol):
    """One engine. Constructed without arguments, then ``start``; every method is loop-safe."""

    def check(self, config: EngineConfig) -> None:
        """What can be told of ``config`` within seconds, without loading the model: `make serve`
        asks before it starts anything. Raises ``ValueError`` as ``start`` does."""
        ...

    async def start(self, config: EngineConfig) -> ModelInfo:
        """Load the model and allocate memory. Raises ``ValueError`` naming the setting at fault."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        """A ``Prefill`` as soon as the request is admitted, at most one more for each step that
        computes a part of its prompt, then deltas in order. Closing or cancelling the iterator
        frees the request's memory within one step. Raises a ``BackendError`` at the first
        ``anext`` or later."""
        ...

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        """What ``generate`` would make of the request's prompt, a string or a chat. Nothing is
        generated. ``add_special_tokens``: those that the tokenizer puts around a string. Raises a
        ``BackendError``, ``QueueFullError`` among them: what waits to be read is bounded."""
        ...

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str = "") -> str:
        """The text, special tokens included. Raises ``InvalidRequestError`` for what is no token,
        and what ``tokenize`` does."""
        ...

    async def spell(self, token_ids: Sequence[int], *, tenant: str = "") -> list[SpelledToken]:
        """Each token by itself; raises as ``detokenize``."""
        ...

    def pool(self, request: PoolingRequest) -> AsyncGenerator[Pooled | Prefill, None]:
        """One ``Pooled`` for each input, in any order, as they are computed; a ``Prefill`` before
        the first one as soon as the request is admitted, and others while a long input is computed.
        Closing or cancelling the iterator frees the request's memory within one step. Raises a
        ``BackendError`` at the first ``anext`` or later; a model whose ``ModelInfo`` has no
        ``pooling`` is never asked."""
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


class InstalledBackend(Backend, Protocol):
    """The class that an entry point names: an engine, and the command line's queries.

    Each method raises ``ValueError`` as ``check`` does.
    """

    def devices(self) -> tuple[str, ...]:
        """The values of ``engine.device`` that this machine has, best first."""
        ...

    def fetch(self, config: EngineConfig) -> Path:
        """The folder of the checkpoint, which is downloaded unless it is here."""
        ...

    def plan(self, config: EngineConfig) -> ModelPlan:
        """Plan the memory of an engine with ``config``. The checkpoint must be on this machine."""
        ...

    def choose_attention(self, config: EngineConfig) -> AttentionStatus:
        """Run the kernels and choose, as an engine with ``config`` does at start."""
        ...


def entry_point(name: str) -> EntryPoint:
    """Where the backend ``name`` is. Raises ``ValueError`` with those there are."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ValueError(f"engine.backend must be one of {sorted(found)}, not {name!r}")
    return found[name]


def create_backend(name: str) -> InstalledBackend:
    """Look ``name`` up among the installed entry points. Raises ``ValueError`` with those found, or
    with what this one lacks."""
    try:
        backend: InstalledBackend = entry_point(name).load()()
    except ImportError as error:
        raise ValueError(f"engine.backend {name!r} can't be loaded here: {error}") from error
    return backend
