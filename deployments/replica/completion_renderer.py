"""``text_completion``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from deployments.backend import Delta
from deployments.http import sse
from deployments.protocol import CompletionRequest
from deployments.replica.answer_json import Frame, elements, encode, pieces
from deployments.replica.fold import Choice, PromptTokenIds, RunningUsage, Usage
from deployments.replica.logprobs import CompletionLogprobs
from deployments.wire.envelope import Envelope

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class CompletionRenderer:
    """``text_completion``, whose chunks have the same shape as the whole."""

    def __init__(
        self, request: CompletionRequest, envelope: Envelope, prompt_token_ids: PromptTokenIds
    ) -> None:
        self._frame = Frame(
            "cmpl", envelope, request.model, chunks_have_usage=request.include_usage
        )
        self._head, self._tail = self._frame.chunk_frame("text_completion")
        self._include_usage = request.include_usage
        self._has_logprobs = request.num_logprobs is not None
        self._arrays = ARRAYS if self._has_logprobs else ()
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(
            partial(CompletionLogprobs, as_ids=request.return_tokens_as_token_ids)
        )
        self._choices: defaultdict[int, Choice] = defaultdict(Choice)
        self._running = RunningUsage() if request.continuous_usage else None
        self._returns_ids = request.return_token_ids
        self._prompt_token_ids = prompt_token_ids
        self._begun: set[int] = set()

    def chunks(self, choice: int, delta: Delta) -> bytes:
        tail = self._tail
        if self._running is not None:
            self._running.add(choice, delta)
            tail = self._frame.tail_with(self._running.as_json(choice))
        has_ids = self._returns_ids and delta.token_ids
        if not (delta.text or delta.logprobs or delta.finish_reason or has_ids):
            return b""
        logprobs = "null"
        if self._has_logprobs:
            logprobs = encode(self._logprobs[choice].add(delta.logprobs))
        finish_reason = f'"{delta.finish_reason}"' if delta.finish_reason else "null"
        ids = ""
        if self._returns_ids:
            ids = self._ids(choice, delta.token_ids, is_first=choice not in self._begun)
            self._begun.add(choice)
        return (
            f'{self._head}{choice},"text":{encode(delta.text)},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{ids}{tail}'
        ).encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._begun.add(choice)
        if self._running is not None:
            self._running.add(choice, delta)
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
        if self._returns_ids:
            said += self._ids(index, choice.token_ids, is_first=True)
        return pieces(index, said, choice.logprobs, self._arrays, choice.finish_reason)

    def _ids(self, choice: int, token_ids: Sequence[int], *, is_first: bool) -> str:
        """Members with the ids of what is told, and of the prompt where a choice begins."""
        prompt = self._prompt_token_ids(choice) if is_first else None
        return f',"token_ids":{encode(token_ids)},"prompt_token_ids":{encode(prompt)}'
