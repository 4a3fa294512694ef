"""From drawn tokens to the deltas that a client sees."""

from __future__ import annotations

from collections.abc import Set

from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import TokenDraw
from backend_metal.engine.text.detokenizer import IncrementalDetokenizer
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import Delta, FinishReason, ResumeError, TokenLogprob


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
        self._stop_token_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._stop_token_ids |= eos_token_ids
        prompt = sequence.token_range(0, sequence.num_prompt_tokens)
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt.tolist(), sampling.stop)
        self._num_tokens = 0

    def replay(self) -> list[Delta]:
        """The deltas of the output that the sequence began with. Raises ``ResumeError`` when it
        goes on past its end."""
        start = self.sequence.num_prompt_tokens
        output = self.sequence.token_range(start, start + self.sequence.num_resumed_tokens)
        logprob = None if self.sequence.sampling.logprobs is None else 0.0
        deltas: list[Delta] = []
        for token_id in output.tolist():
            if deltas and deltas[-1].finish_reason:
                raise ResumeError(
                    f"the output to resume has {len(output)} tokens, but ends at {len(deltas)}"
                )
            deltas.append(self.push(TokenDraw(token_id, logprob), replayed=True))
        return deltas

    def push(self, draw: TokenDraw, *, replayed: bool = False) -> Delta:
        """The delta of the sequence's next token."""
        self._num_tokens += 1
        finish_reason: FinishReason | None = None
        text = ""
        if draw.token_id in self._stop_token_ids:
            finish_reason = "stop"
        else:
            text = self._detokenizer.append([draw.token_id])
            if self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
            elif self._num_tokens >= self.sequence.max_tokens:
                finish_reason = "length"
        if finish_reason and self._detokenizer.stop_hit is None:
            text += self._detokenizer.finish()
            if self._detokenizer.stop_hit is not None:
                finish_reason = "stop"
        return self._delta(text, draw, finish_reason, replayed=replayed)

    def abort(self) -> Delta:
        return self._delta(self._detokenizer.finish(), None, "abort")

    def _delta(
        self,
        text: str,
        draw: TokenDraw | None,
        finish_reason: FinishReason | None,
        *,
        replayed: bool = False,
    ) -> Delta:
        return Delta(
            index=self.sequence.index,
            text=text,
            token_ids=(draw.token_id,) if draw else (),
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            num_cached_tokens=self.sequence.num_cached_tokens,
            logprobs=self._logprobs(draw) if draw else (),
            finish_reason=finish_reason,
            replayed=replayed,
        )

    def _logprobs(self, draw: TokenDraw) -> tuple[TokenLogprob, ...]:
        if draw.logprob is None:
            return ()
        top = tuple(self._token_logprob(token_id, logprob) for token_id, logprob in draw.top)
        return (self._token_logprob(draw.token_id, draw.logprob, top),)

    def _token_logprob(
        self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        return TokenLogprob(
            token_id,
            self._token_text.text(token_id),
            self._token_text.utf8(token_id),
            logprob,
            top,
        )
