"""``text_completion``."""

from __future__ import annotations

from collections import defaultdict

from deployments.backend import Delta
from deployments.http import sse
from deployments.protocol import CompletionRequest
from deployments.replica.answer_json import Frame, elements, encode, pieces
from deployments.replica.fold import Choice, Usage
from deployments.replica.logprobs import CompletionLogprobs
from deployments.wire.envelope import Envelope

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class CompletionRenderer:
    """``text_completion``, whose chunks have the same shape as the whole."""

    def __init__(self, request: CompletionRequest, envelope: Envelope) -> None:
        self._frame = Frame(
            "cmpl", envelope, request.model, chunks_have_usage=request.include_usage
        )
        self._head, self._tail = self._frame.chunk_frame("text_completion")
        self._include_usage = request.include_usage
        self._has_logprobs = request.num_logprobs is not None
        self._arrays = ARRAYS if self._has_logprobs else ()
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)
        self._choices: defaultdict[int, Choice] = defaultdict(Choice)

    def chunks(self, choice: int, delta: Delta) -> bytes:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return b""
        logprobs = "null"
        if self._has_logprobs:
            logprobs = encode(self._logprobs[choice].add(delta.logprobs))
        finish_reason = f'"{delta.finish_reason}"' if delta.finish_reason else "null"
        return (
            f'{self._head}{choice},"text":{encode(delta.text)},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{self._tail}'
        ).encode()

    def replay(self, choice: int, delta: Delta) -> None:
        if self._has_logprobs:
            self._logprobs[choice].skip(delta.logprobs)

    def end(self, usage: Usage) -> bytes:
        told = self._frame.usage_chunk("text_completion", usage) if self._include_usage else b""
        return told + sse.DONE

    def add(self, choice: int, delta: Delta) -> None:
        logprobs = {}
        if self._has_logprobs:
            added = self._logprobs[choice].add(delta.logprobs)
            logprobs = {member: elements(values) for member, values in added.items()}
        self._choices[choice].add(delta, logprobs)

    def whole(self, usage: Usage) -> bytes:
        choices = (self._whole(*item) for item in sorted(self._choices.items()))
        return self._frame.whole("text_completion", choices, usage)

    def _whole(self, index: int, choice: Choice) -> list[bytes]:
        said = f'"text":{encode("".join(choice.text))}'
        return pieces(index, said, choice.logprobs, self._arrays, choice.finish_reason)
