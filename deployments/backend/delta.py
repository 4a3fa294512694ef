"""What a backend answers: ``Prefill`` until there are tokens, and a ``Delta`` for each step that
adds to a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PrefixMiss = Literal["new", "diverged", "evicted", "no_snapshot", "snapshot_evicted"]
"""Why no more of a prompt was in the prefix cache: nothing of its beginning was of late, or only
for others, with whom nothing is shared; it goes on differently behind what was; it had to make
room. Of a model with recurrent layers: nobody had kept their state where the prompts part, or that
had to make room."""
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SpelledToken:
    name: str
    """As the vocabulary has it, which may stand for blanks and bytes by other characters."""
    utf8: bytes
    """What it stands for, which may be part of a character."""


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    text: str
    utf8: bytes
    """The token's own bytes, which may be part of a character."""
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    """The most likely tokens, best first; their own ``top`` is empty."""
    rank: int = 0
    """Of a prompt's token: its place among all, from 1; 0 for the first, which nothing stands
    before, and whose ``logprob`` means nothing."""


@dataclass(frozen=True)
class Prefill:
    """How far a prompt has been computed. The first one says that the request was admitted."""

    num_computed_tokens: int
    num_prompt_tokens: int
    prompt_end: str = field(default="", compare=False)
    """In the first one: how the prompt ends as text, control tokens included. Some templates begin
    the answer."""
    prompt_token_ids: tuple[int, ...] = field(default=(), compare=False)
    """In the first one, if ``GenerationRequest.tells_prompt``."""
    prompt_text: str = field(default="", compare=False)
    """Of these, control tokens included."""
    left_out: tuple[str, ...] = field(default=(), compare=False)
    """In the first one: ``Grammar.left_out``, and what turned out to have no grammar."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt's next tokens, from the first on, if ``SamplingParams.prompt_logprobs``."""


@dataclass
class Delta:
    """What one step added to one of a request's ``n`` sequences, or what it began with. To be left
    as it is: it is not frozen, since one is made for each token, and would take three times as
    long."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    """Set on the last delta of the sequence; the iterator ends after the last of ``n``."""
    prefix_miss: PrefixMiss | None = None
    """Why ``num_cached_tokens`` are not more; None: all were found that could be."""
    num_thought_tokens: int = 0
    """Of all tokens that the sequence has drawn so far, those in which the model thought."""
    stop_string: str | None = None
    """Of those in ``SamplingParams.stop``, the one that ended the sequence."""
    replayed: bool = False
    """Its tokens came with ``GenerationRequest.resume``; its logprobs are all 0.0."""
