"""What a backend is asked: a prompt, how its tokens are drawn, and what it has already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    first, one delta a sequence with ``replayed`` set. ``n`` times none: it waited there, or had
    only begun. Empty: an ordinary request."""

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
