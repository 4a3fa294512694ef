"""Reading a request's body no further than a limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from starlette.requests import Request

from deployments.http.errors import ApiError, body_too_large, shown

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""zlib's ``wbits`` for each ``Content-Encoding``."""


async def read_body(
    request: Request, max_body_bytes: int, hold: Callable[[int], None] = lambda num_bytes: None
) -> bytes:
    """What a client sent, decoded. Raises ``ApiError`` 413 on the announced length, or at the chunk
    that passes the limit, decoded or not; 415 for an encoding that is unknown here; and what
    ``hold`` raises, which gets the number of bytes before they are kept."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW_BITS:
        raise ApiError(
            415,
            f"Content-Encoding must be gzip, deflate or identity, not {shown(encoding)}.",
            param="Content-Encoding",
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_body_bytes:
        raise body_too_large(max_body_bytes)
    if announced.isdecimal() and encoding == "identity":
        hold(int(announced))
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding]) if encoding in _WINDOW_BITS else None
    body = bytearray()
    async for chunk in request.stream():
        if decoder is not None:
            try:
                chunk = decoder.decompress(chunk, max_body_bytes - len(body) + 1)
            except zlib.error as error:
                raise _undecodable(encoding) from error
            if decoder.unused_data:
                raise _undecodable(encoding)
        if len(body) + len(chunk) > max_body_bytes:
            raise body_too_large(max_body_bytes)
        hold(len(body) + len(chunk))
        body += chunk
    if decoder is not None and not decoder.eof:
        raise _undecodable(encoding)
    return bytes(body)


def _undecodable(encoding: str) -> ApiError:
    return ApiError(
        400, f"The body is not {encoding}, as Content-Encoding says.", param="Content-Encoding"
    )
