"""The seam between serving and inference: the ``Backend`` protocol and what flows through it.

A backend is found by name in the entry-point group ``pomona.backends`` and is driven by one
``EngineReplica``. Everything that crosses the seam is a frozen dataclass of this package, so a
backend needs nothing from Ray, Starlette or Prometheus, and serving needs nothing from MLX.
"""

from __future__ import annotations

from deployments.backend.config import DEFAULT_BACKEND, EngineConfig, GenerationDefaults
from deployments.backend.delta import (
    Delta,
    FinishReason,
    Prefill,
    PrefixMiss,
    SpelledToken,
    TokenLogprob,
)
from deployments.backend.errors import (
    BackendError,
    ContextLengthError,
    DeadEndError,
    EngineStoppedError,
    FailureKind,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    ResumeError,
    StepError,
    UnavailableError,
)
from deployments.backend.pooling import (
    Pooled,
    PoolingInfo,
    PoolingInput,
    PoolingRequest,
    PoolingTask,
)
from deployments.backend.protocol import (
    ENTRY_POINT_GROUP,
    AttentionStatus,
    Backend,
    InstalledBackend,
    ModelInfo,
    ModelPlan,
    create_backend,
)
from deployments.backend.request import (
    JSON_WHITESPACE,
    THOUGHT_WHITESPACE,
    ChatPrompt,
    FreeText,
    GenerationRequest,
    Grammar,
    GrammarKind,
    Prompt,
    SamplingParams,
    SchemaPart,
    Thoughts,
)
from deployments.backend.stats import BackendStats, Histogram

__all__ = [
    "DEFAULT_BACKEND",
    "ENTRY_POINT_GROUP",
    "JSON_WHITESPACE",
    "THOUGHT_WHITESPACE",
    "AttentionStatus",
    "Backend",
    "BackendError",
    "BackendStats",
    "ChatPrompt",
    "ContextLengthError",
    "DeadEndError",
    "Delta",
    "EngineConfig",
    "EngineStoppedError",
    "FailureKind",
    "FinishReason",
    "FreeText",
    "GenerationDefaults",
    "GenerationRequest",
    "Grammar",
    "GrammarKind",
    "Histogram",
    "InstalledBackend",
    "InvalidRequestError",
    "ModelInfo",
    "ModelPlan",
    "Pooled",
    "PoolingInfo",
    "PoolingInput",
    "PoolingRequest",
    "PoolingTask",
    "Prefill",
    "PrefixMiss",
    "Prompt",
    "PromptTooLongError",
    "QueueFullError",
    "ResumeError",
    "SamplingParams",
    "SchemaPart",
    "SpelledToken",
    "StepError",
    "Thoughts",
    "TokenLogprob",
    "UnavailableError",
    "create_backend",
]
