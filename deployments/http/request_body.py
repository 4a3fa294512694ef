"""Reading a request's body no further than a limit."""

from __future__ import annotations

from starlette.requests import Request

from deployments.http.errors import body_too_large


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
