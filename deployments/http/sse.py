"""Server-sent events as OpenAI streams them."""

from __future__ import annotations

from deployments.http.errors import ApiError

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""A proxy that buffers or caches would turn a stream into one late answer."""

EVENT_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def prefill(num_computed_tokens: int, num_prompt_tokens: int) -> bytes:
    """A keep-alive that says how much of a prompt has been computed."""
    return b": prefill %d/%d\n\n" % (num_computed_tokens, num_prompt_tokens)


def served_by(replica_id: str, node: str, num_tokens: int) -> bytes:
    """A comment that says who makes the tokens behind the first ``num_tokens``."""
    return b": served-by %s %s %d\n\n" % (replica_id.encode(), node.encode(), num_tokens)


def event(json: bytes) -> bytes:
    """``json`` must be on one line, as JSON encoders write it."""
    return b"data: " + json + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """How an error is told once the status has been sent; the stream ends without ``DONE``."""
    return event(error.json())
