"""Reading a request's body no further than a limit, and parsing it at nobody else's cost."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from deployments.errors import body_too_large
from deployments.protocol import ChatCompletionRequest, CompletionRequest, parse_request

MAX_BYTES_ON_THE_LOOP = 64 * 1024


async def read_body(request: Request, max_body_bytes: int) -> bytes:
    """Raises ``ApiError`` 413 on the announced length, or at the chunk that passes the limit."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_body_bytes:
        raise body_too_large(max_body_bytes)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_body_bytes:
            raise body_too_large(max_body_bytes)
        body += chunk
    return bytes(body)


async def parse_body(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """``parse_request``, in a thread where the body is large: every stream waits for the loop."""
    if len(body) <= MAX_BYTES_ON_THE_LOOP:
        return parse_request(path, body)
    return await asyncio.to_thread(parse_request, path, body)
