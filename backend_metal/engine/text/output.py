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
    TokenLogprob,
)

MOST_FORCED = 64
"""Tokens between two drawn ones that are not drawn: as many as one step computes beside others."""


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
        self.num_tokens = 0
        """That it has taken."""
        # What no delta has told yet.
        self._text = ""
        self._draws: list[TokenDraw] = []
        self._finish_reason: FinishReason | None = None

    def replay(self) -> Delta | None:
        """One delta of all the output that the sequence began with, if any. Raises ``ResumeError``
        when that goes on past its end."""
        start = self.sequence.num_prompt_tokens
        stop = start + self.sequence.num_resumed_tokens
        token_ids: list[int] = self.sequence.token_range(start, stop).tolist()
        if not token_ids:
            return None
        logprob = None if self.sequence.sampling.logprobs is None else 0.0
        for token_id in token_ids:
            if self._finish_reason:
                raise ResumeError(
                    f"the output to resume has {len(token_ids)} tokens, but ends at "
                    f"{self.num_tokens}"
                )
            try:
                self._take(TokenDraw(token_id, logprob))
            except InvalidRequestError as error:
                raise ResumeError(f"the output to resume breaks its grammar: {error}") from error
        return self._tell(replayed=True)

    def begin(self) -> list[int]:
        """Take the tokens that are forced before any is drawn, and return them: they are computed
        with the prompt, and the first draw's delta tells of them. Where they end the answer, or it
        may have no token, there are none: the prompt is all there is to compute. Raises as ``push``
        does."""
        if self.sequence.wants_more:
            self._take_forced()
        else:
            self._finish_reason = "length"
        if self._finish_reason is None:
            return [draw.token_id for draw in self._draws]
        self.sequence.max_tokens = self.sequence.num_output_tokens
        return []

    def ends_at(self, token_id: int) -> bool:
        """Whether such a token ends the answer, and is no part of it."""
        return token_id in self._stop_token_ids

    def push(self, draw: TokenDraw) -> Delta:
        """The delta of the sequence's next token, and of those around it that are forced; of these
        alone where they have ended it. Raises ``InvalidRequestError`` when its grammar has become
        too complex to go on with, and ``DeadEndError`` when no token was left."""
        if self._finish_reason is None:
            self._take(draw)
            if self.sequence.guide is not None:
                self._take_forced()
        return self._tell()

    def abort(self) -> Delta:
        if self._finish_reason is None:
            self._text += self._detokenizer.finish()
        self._finish_reason = "abort"
        return self._tell()

    def _take(self, draw: TokenDraw) -> None:
        text, self._finish_reason = self._advance(draw.token_id)
        self._text += text
        self._draws.append(draw)

    def _take_forced(self) -> None:
        guide = self.sequence.guide
        for _ in range(MOST_FORCED):
            if self._finish_reason or guide is None or guide.forced is None:
                return
            self._take(self._certain(guide.forced))

    def _certain(self, token_id: int) -> TokenDraw:
        """The draw of a token that is the only one."""
        asked = self.sequence.sampling.logprobs
        if asked is None:
            return TokenDraw(token_id)
        return TokenDraw(token_id, 0.0, ((token_id, 0.0),) if asked else ())

    def _advance(self, token_id: int) -> tuple[str, FinishReason | None]:
        """The text that a token makes certain, and why it is the last one, if it is."""
        sequence, sampling = self.sequence, self.sequence.sampling
        guide = sequence.guide
        is_forced = guide is not None and guide.forced == token_id
        if sequence.restrictions is not None and not is_forced:
            sequence.restrictions.check(token_id, sequence.output_token_ids[: self.num_tokens])
        self.num_tokens += 1
        # A stop string is one of what the client reads as the answer.
        is_thinking = guide is not None and guide.is_thinking
        may_stop = self.num_tokens > sampling.min_tokens and not is_thinking
        finish_reason: FinishReason | None = None
        text = ""
        if token_id in self._stop_token_ids:
            finish_reason = "stop"
            if guide is not None and token_id not in sampling.stop_token_ids:
                guide.check_end()
            if sampling.include_stop:
                text = self._detokenizer.append(token_id, may_stop=False)
        else:
            text = self._detokenizer.append(token_id, may_stop=may_stop)
            if guide is not None:
                guide.advance(token_id)
            is_complete = guide is not None and guide.is_complete
            if guide is not None and is_complete:
                guide.check_end()
            if is_complete or self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
            elif self.num_tokens >= sequence.max_tokens:
                finish_reason = "length"
        if finish_reason and self._detokenizer.stop_hit is None:
            text += self._detokenizer.finish(may_stop=may_stop)
            if self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
        return text, finish_reason

    def _logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(
            self._token_text.logprob(draw.token_id, draw.logprob, draw.top)
            for draw in self._draws
            if draw.logprob is not None
        )

    def _tell(self, *, replayed: bool = False) -> Delta:
        guide, finish_reason = self.sequence.guide, self._finish_reason
        delta = Delta(
            index=self.sequence.index,
            text=self._text,
            token_ids=tuple([draw.token_id for draw in self._draws]),
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            num_cached_tokens=self.sequence.num_cached_tokens,
            prefix_miss=self.sequence.prefix_miss,
            logprobs=() if self.sequence.sampling.logprobs is None else self._logprobs(),
            finish_reason=finish_reason,
            num_thought_tokens=guide.num_thought_tokens if guide else 0,
            stop_string=self._detokenizer.stop_hit if finish_reason == "stop" else None,
            replayed=replayed,
        )
        self._text, self._draws = "", []
        return delta
