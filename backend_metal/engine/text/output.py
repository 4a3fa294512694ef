"""From drawn tokens to the deltas that a client sees."""

from __future__ import annotations

from collections.abc import Set

from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import TokenDraw
from backend_metal.engine.text.detokenizer import IncrementalDetokenizer
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import (
    Delta,
    FinishReason,
    InvalidRequestError,
    ResumeError,
    SamplingParams,
)

MOST_FORCED = 64
"""Tokens behind a drawn one that are not drawn: as many as one step computes beside others."""


def end_token_ids(sampling: SamplingParams, eos_token_ids: Set[int]) -> frozenset[int]:
    """Those that end an answer."""
    return frozenset(sampling.stop_token_ids) | (
        frozenset() if sampling.ignore_eos else eos_token_ids
    )


class SequenceOutput:
    """Detokenizes one sequence and knows when it is finished."""

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Tokenizer,
        token_text: TokenText,
        eos_token_ids: Set[int],
    ) -> None:
        sampling = sequence.sampling
        self.sequence = sequence
        self._token_text = token_text
        self._stop_token_ids = end_token_ids(sampling, eos_token_ids)
        prompt = sequence.token_range(0, sequence.num_prompt_tokens)
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt.tolist(),
            sampling.stop,
            hidden_ids=token_text.hidden_ids(
                sampling.shown_tokens, skip_special=sampling.skip_special_tokens
            ),
            include_stop=sampling.include_stop,
        )
        self._num_tokens = 0

    def replay(self) -> Delta | None:
        """One delta of all the output that the sequence began with, if any. Raises ``ResumeError``
        when that goes on past its end."""
        start = self.sequence.num_prompt_tokens
        stop = start + self.sequence.num_resumed_tokens
        token_ids: list[int] = self.sequence.token_range(start, stop).tolist()
        if not token_ids:
            return None
        text, finish_reason = "", None
        for token_id in token_ids:
            if finish_reason:
                raise ResumeError(
                    f"the output to resume has {len(token_ids)} tokens, but ends at "
                    f"{self._num_tokens}"
                )
            try:
                added, finish_reason = self._advance(token_id)
            except InvalidRequestError as error:
                raise ResumeError(f"the output to resume breaks its grammar: {error}") from error
            text += added
        logprob = None if self.sequence.sampling.logprobs is None else 0.0
        draws = [TokenDraw(token_id, logprob) for token_id in token_ids]
        return self._delta(text, draws, finish_reason, replayed=True)

    def ends_at(self, token_id: int) -> bool:
        """Whether such a token ends the answer, and is no part of it."""
        return token_id in self._stop_token_ids

    def push(self, draw: TokenDraw) -> Delta:
        """The delta of the sequence's next token, and of those behind it that are forced. Raises
        ``InvalidRequestError`` when its grammar has become too complex to go on with, or when no
        token was left."""
        text, finish_reason = self._advance(draw.token_id)
        draws, guide = [draw], self.sequence.guide
        while (
            finish_reason is None
            and guide is not None
            and (forced := guide.forced) is not None
            and len(draws) <= MOST_FORCED
        ):
            more, finish_reason = self._advance(forced)
            text += more
            draws.append(self._certain(forced))
        return self._delta(text, draws, finish_reason)

    def _certain(self, token_id: int) -> TokenDraw:
        """The draw of a token that is the only one."""
        asked = self.sequence.sampling.logprobs
        if asked is None:
            return TokenDraw(token_id)
        return TokenDraw(token_id, 0.0, ((token_id, 0.0),) if asked else ())

    def end_at_once(self) -> Delta:
        """Instead of ``push``, for a sequence whose prompt is all there is to compute."""
        return self._delta("", [], "length")

    def abort(self) -> Delta:
        return self._delta(self._detokenizer.finish(), [], "abort")

    def _advance(self, token_id: int) -> tuple[str, FinishReason | None]:
        """The text that a token makes certain, and why it is the last one, if it is."""
        sequence, sampling = self.sequence, self.sequence.sampling
        guide = sequence.guide
        is_forced = guide is not None and guide.forced == token_id
        if sequence.restrictions is not None and not is_forced:
            sequence.restrictions.check(token_id, sequence.output_token_ids[: self._num_tokens])
        self._num_tokens += 1
        may_stop = self._num_tokens > sampling.min_tokens
        finish_reason: FinishReason | None = None
        text = ""
        if token_id in self._stop_token_ids:
            finish_reason = "stop"
            if sampling.include_stop:
                text = self._detokenizer.append([token_id], may_stop=False)
        else:
            text = self._detokenizer.append([token_id], may_stop=may_stop)
            if guide is not None:
                guide.advance(token_id)
            is_complete = guide is not None and guide.is_complete
            if is_complete or self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
            elif self._num_tokens >= sequence.max_tokens:
                finish_reason = "length"
        if finish_reason and self._detokenizer.stop_hit is None:
            text += self._detokenizer.finish(may_stop=may_stop)
            if self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
        return text, finish_reason

    def _delta(
        self,
        text: str,
        draws: list[TokenDraw],
        finish_reason: FinishReason | None,
        *,
        replayed: bool = False,
    ) -> Delta:
        guide = self.sequence.guide
        return Delta(
            index=self.sequence.index,
            text=text,
            token_ids=tuple([draw.token_id for draw in draws]),
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            num_cached_tokens=self.sequence.num_cached_tokens,
            prefix_miss=self.sequence.prefix_miss,
            logprobs=tuple(
                [
                    self._token_text.logprob(draw.token_id, draw.logprob, draw.top)
                    for draw in draws
                    if draw.logprob is not None
                ]
            ),
            finish_reason=finish_reason,
            num_thought_tokens=guide.num_thought_tokens if guide else 0,
            stop_string=self._detokenizer.stop_hit if finish_reason == "stop" else None,
            replayed=replayed,
        )
