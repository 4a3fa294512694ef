"""``text_completion``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deployments.backend import Delta
from deployments.http import sse
from deployments.protocol import CompletionRequest
from deployments.replica.answer_json import Frame, elements, encode, pieces
from deployments.replica.fold import Choice, RunningUsage, Usage
from deployments.replica.logprobs import CompletionLogprobs
from deployments.replica.prompts import Prompts
from deployments.wire.envelope import Envelope

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class CompletionRenderer:
    """``text_completion``, whose chunks have the same shape as the whole."""

    def __init__(self, request: CompletionRequest, envelope: Envelope, prompts: Prompts) -> None:
        self._frame = Frame(
            "cmpl", envelope, request.model, chunks_have_usage=request.include_usage
        )
        self._head, self._tail = self._frame.chunk_frame("text_completion")
        self._request = request
        self._has_logprobs = request.num_logprobs is not None
        self._arrays = ARRAYS if self._has_logprobs else ()
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._choices: defaultdict[int, Choice] = defaultdict(Choice)
        self._running = RunningUsage() if request.continuous_usage else None
        self._prompts = prompts
        self._begun: set[int] = set()

    def chunks(self, choice: int, delta: Delta) -> bytes:
        tail = self._tail
        if self._running is not None:
            self._running.add(choice, delta)
            tail = self._frame.tail_with(self._running.as_json(choice))
        is_first = choice not in self._begun
        echoes = is_first and self._request.echo
        has_ids = self._request.return_token_ids and delta.token_ids
        if not (delta.text or delta.logprobs or delta.finish_reason or has_ids or echoes):
            return b""
        self._begun.add(choice)
        text = self._prompts.text(choice) + delta.text if echoes else delta.text
        logprobs = "null"
        if self._has_logprobs:
            added = self._logprobs_of(choice).add(delta.logprobs)
            logprobs = self._with_echo(choice, added) if echoes else encode(added)
        finish_reason = f'"{delta.finish_reason}"' if delta.finish_reason else "null"
        ids = self._ids(choice, delta.token_ids, is_first=is_first)
        return (
            f'{self._head}{choice},"text":{encode(text)},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{ids}{tail}'
        ).encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._begun.add(choice)
        if self._running is not None:
            self._running.add(choice, delta)
        if self._has_logprobs:
            self._logprobs_of(choice).skip(delta.logprobs)

    def end(self, usage: Usage) -> bytes:
        told = b""
        if self._request.include_usage:
            told = self._frame.usage_chunk("text_completion", usage)
        return told + sse.DONE

    def add(self, choice: int, delta: Delta) -> None:
        logprobs = {}
        if self._has_logprobs:
            added = self._logprobs_of(choice).add(delta.logprobs)
            logprobs = {member: elements(values) for member, values in added.items()}
        self._choices[choice].add(delta, logprobs)

    def whole(self, usage: Usage) -> bytes:
        choices = (self._whole(*item) for item in sorted(self._choices.items()))
        return self._frame.whole("text_completion", choices, usage)

    def _whole(self, index: int, choice: Choice) -> list[bytes]:
        text = "".join(choice.text)
        arrays: Mapping[str, Sequence[bytes]] = choice.logprobs
        if self._request.echo:
            text = self._prompts.text(index) + text
            arrays = self._echoed(index, choice.logprobs)
        said = f'"text":{encode(text)}{self._ids(index, choice.token_ids, is_first=True)}'
        said += self._prompts.logprobs(index)
        return pieces(index, said, arrays, self._arrays, choice.finish_reason)

    def _logprobs_of(self, choice: int) -> CompletionLogprobs:
        if choice not in self._logprobs:
            self._logprobs[choice] = CompletionLogprobs(
                as_ids=self._request.return_tokens_as_token_ids,
                start=len(self._prompts.text(choice)) if self._request.echo else 0,
            )
        return self._logprobs[choice]

    def _echoed(
        self, choice: int, arrays: Mapping[str, Sequence[bytes]]
    ) -> Mapping[str, Sequence[bytes]]:
        """``arrays``, in pieces, behind those of the prompt."""
        prompt = self._prompts.arrays(choice)
        own = {name: [piece for piece in arrays.get(name, ()) if piece] for name in ARRAYS}
        return {name: [*prompt.get(name, ()), *own[name]] for name in ARRAYS}

    def _with_echo(self, choice: int, added: Mapping[str, list[Any]]) -> str:
        arrays = self._echoed(choice, {name: [elements(added[name])] for name in ARRAYS})
        return (
            "{"
            + ",".join(f'"{name}":[{b",".join(arrays[name]).decode()}]' for name in ARRAYS)
            + "}"
        )

    def _ids(self, choice: int, token_ids: Sequence[int], *, is_first: bool) -> str:
        """Members with the ids of what is told, and of the prompt where a choice begins."""
        if not self._request.return_token_ids:
            return ""
        prompt = self._prompts.token_ids(choice) if is_first else None
        return f',"token_ids":{encode(token_ids)},"prompt_token_ids":{encode(prompt)}'
