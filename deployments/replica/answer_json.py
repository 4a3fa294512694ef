"""The JSON of answers, put together in pieces.

A stream's chunks are constant text but for what a delta adds, since there is one for every token. A
whole answer is put together from what each delta added to it: encoded at once, the logprobs of a
long one would hold up all requests for seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deployments.replica.fold import Usage
from deployments.wire.envelope import Envelope

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Frame:
    """The members that every object of one answer shares."""

    def __init__(
        self,
        prefix: str,
        envelope: Envelope,
        model: str,
        *,
        chunks_have_usage: bool,
        service_tier: str | None = None,
    ) -> None:
        self._members = {
            "id": f"{prefix}-{envelope.answer_id}",
            "created": envelope.created,
            "model": model,
        }
        if service_tier is not None:
            self._members["service_tier"] = service_tier
        self._chunks_have_usage = chunks_have_usage

    def chunk_frame(self, object_name: str) -> tuple[str, str]:
        """What stands before the choice's index and after its last member in an event."""
        head = encode({"object": object_name, **self._members})[:-1]
        usage = ',"usage":null' if self._chunks_have_usage else ""
        return f'data: {head},"choices":[{{"index":', f"}}]{usage}}}\n\n"

    def tail_with(self, usage: Mapping[str, int]) -> str:
        """What stands after a choice's last member in an event that tells its usage so far."""
        return f'}}],"usage":{encode(usage)}}}\n\n'

    def usage_chunk(self, object_name: str, usage: Usage) -> bytes:
        members = {"object": object_name, **self._members, "choices": [], "usage": usage.as_json()}
        return f"data: {encode(members)}\n\n".encode()

    def whole(
        self,
        object_name: str,
        choices: Iterable[list[bytes]],
        usage: Usage,
        more: str = "",
    ) -> bytes:
        """``choices``: the JSON of each, in pieces; ``more``: that of other members."""
        members = encode({"object": object_name, **self._members})[:-1] + more
        parts = [members.encode(), b',"choices":[']
        for choice in choices:
            parts += choice
            parts.append(b",")
        parts[-1] = f'],"usage":{encode(usage.as_json())}}}'.encode()
        return b"".join(parts)


def elements(values: list[Any]) -> bytes:
    """The JSON of an array without its brackets."""
    return encode(values)[1:-1].encode()


def pieces(
    index: int,
    said: str,
    logprobs: Mapping[str, Sequence[bytes]],
    arrays: Sequence[str],
    finish_reason: str | None,
    rest: bytes = b"",
) -> list[bytes]:
    """The JSON of a whole choice. ``said``: the member with its text; ``logprobs``: of each of
    ``arrays``, which are none if it has no such, what each delta added; ``rest``: what follows."""
    made = [f'{{"index":{index},{said},"logprobs":{"{" if arrays else "null"}'.encode()]
    for number, name in enumerate(arrays):
        made.append(f'{"," if number else ""}"{name}":['.encode())
        made.append(b",".join(logprobs[name]))
        made.append(b"]")
    if arrays:
        made.append(rest + b"}")
    made.append(f',"finish_reason":{encode(finish_reason)}}}'.encode())
    return made
