"""The metrics endpoint, in the format that the scraper prefers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}")


def metrics_endpoint(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(request: Request) -> Response:
        accepted = filter(_is_readable, request.headers.get("accept", "").split(","))
        encode, content_type = choose_encoder(",".join(accepted))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return metrics


def _is_readable(media_range: str) -> bool:
    """The library fails at a version that is none."""
    parameters = (one.strip().partition("=") for one in media_range.split(";"))
    return all(_VERSION.fullmatch(value) for name, _, value in parameters if name == "version")
