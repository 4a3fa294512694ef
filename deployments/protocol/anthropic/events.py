"""Events of a streamed message, and how a stream ends."""

from __future__ import annotations

import json

from deployments.protocol.anthropic.errors import in_anthropics_shape
from deployments.protocol.parsed import StreamForm

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def event(name: str, **members: object) -> str:
    return _event(name, encode({"type": name, **members}))


def delta_event(index: int, kind: str, member: str, text: str) -> str:
    """More of a block; there is one for about every token."""
    data = (
        f'{{"type":"content_block_delta","index":{index},'
        f'"delta":{{"type":"{kind}","{member}":{encode(text)}}}}}'
    )
    return _event("content_block_delta", data)


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def _failure_event(error: bytes, told: bytes) -> bytes:
    return _event("error", in_anthropics_shape(error).decode()).encode()


STREAM_FORM = StreamForm(
    last_event=event("message_stop").encode(),
    failure_event=_failure_event,
    error_body=in_anthropics_shape,
)
