"""``GET /v1/fleet``: the fleet once as JSON, or every second as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.watch.watch import FleetWatch, WatchEndedError
from deployments.http import sse
from deployments.http.errors import ApiError

FLEET_PATH = "/v1/fleet"
MOST_EVENTS = 30
"""Then a stream ends, and whoever goes on looking asks again: with a key that is still good, and
maybe another gateway, if this one is to stop."""


def fleet_routes(watch: FleetWatch | None) -> list[Route]:
    """None without a watch."""
    if watch is None:
        return []

    async def fleet(request: Request) -> Response:
        key: ApiKey | None = request.scope.get(API_KEY)
        tenant = None if key is None or key.is_operator else key.tenant
        try:
            number, told = await watch.latest(tenant)
        except WatchEndedError as error:
            raise _ending() from error
        if sse.CONTENT_TYPE.partition(";")[0] in request.headers.get("accept", ""):
            events = _events(watch, tenant, number, told)
            return StreamingResponse(events, headers=sse.HEADERS, media_type=sse.CONTENT_TYPE)
        headers = {"Cache-Control": "no-store"}
        return Response(told, headers=headers, media_type="application/json")

    return [Route(FLEET_PATH, fleet)]


async def _events(
    watch: FleetWatch, tenant: str | None, number: int, told: bytes
) -> AsyncIterator[bytes]:
    with watch.looking():
        yield sse.event(told)
        for _ in range(MOST_EVENTS - 1):
            try:
                number, told = await watch.after(number, tenant)
            except WatchEndedError:
                return
            yield sse.event(told)


def _ending() -> ApiError:
    return ApiError(
        503,
        "This gateway is about to stop.",
        type="service_unavailable",
        code="draining",
        headers={"Retry-After": "1"},
    )
