"""What a backend makes of prompts that nothing is generated for: a vector or a score of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from deployments.backend.delta import Prefill
from deployments.backend.request import Prompt

PoolingTask = Literal["embed", "score"]


@dataclass(frozen=True)
class PoolingInfo:
    """What a model makes of a prompt."""

    size: int
    """Of its vectors."""
    is_normalized: bool = True
    """Whether these have the length 1."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """By what a text is, such as ``query`` or ``document``: what is to stand before it."""
    default_prompt: str = ""
    """Before a text of which nobody says what it is."""
    ranks_by: Literal["cosine", "score"] | None = None
    """How it tells which documents are relevant: by its vectors, or by scores of prompts that its
    chat template makes of messages with the roles ``query`` and ``document``. None: its checkpoint
    does not say that it does."""


@dataclass(frozen=True)
class PoolingInput:
    prompt: Prompt
    param: str
    """The field that it came in, for errors."""
    max_prompt_tokens: int | None = None
    """As in ``GenerationRequest``."""
    truncate_prompt_tokens: int | None = None
    """Of a longer one so many first ones are read; -1: as many as fit; None: it is refused."""
    max_new_tokens: int = 0

    def bounded(self, max_prompt_tokens: int) -> PoolingInput:
        return replace(self, max_prompt_tokens=max_prompt_tokens)


@dataclass(frozen=True)
class PoolingRequest:
    """Prompts that are let in together, and computed a few at a time."""

    request_id: str
    inputs: tuple[PoolingInput, ...]
    task: PoolingTask = "embed"
    on_made: Callable[[int, Pooled | Prefill], None] = field(
        default=lambda index, item: None, compare=False, repr=False
    )
    """Hears of each item that the iterator is going to give, and of which input."""
    priority: int = 0
    """As in ``GenerationRequest``, and so are the others."""
    tenant: str = ""
    weight: float = 1.0
    cache_salt: str = ""

    @property
    def n(self) -> int:
        """Sequences that it has, though not at the same time."""
        return len(self.inputs)

    @property
    def was_admitted(self) -> bool:
        """As in ``GenerationRequest``: what another backend had made of it is lost with that."""
        return False


@dataclass(frozen=True, eq=False)
class Pooled:
    """What came of one input."""

    index: int
    values: npt.NDArray[np.float32]
    """The vector, ``[size]``; or ``[1]``, a score: the larger, the more relevant, 0 in between."""
    num_prompt_tokens: int
    num_cached_tokens: int
