"""What clients ask of responses that were kept. None is: gateways share nothing to keep them in,
and what one of them kept the others would not find."""

from __future__ import annotations

from typing import NoReturn

from starlette.requests import Request
from starlette.routing import Route

from deployments.http.errors import ApiError, shown
from deployments.protocol import RESPONSES_PATH


def response_routes() -> list[Route]:
    one = f"{RESPONSES_PATH}/{{response_id}}"
    return [
        Route(one, _not_kept, methods=["GET", "DELETE"]),
        Route(f"{one}/input_items", _not_kept, methods=["GET"]),
        Route(f"{one}/cancel", _not_kept, methods=["POST"]),
    ]


async def _not_kept(request: Request) -> NoReturn:
    response_id = request.path_params["response_id"]
    raise ApiError(
        404,
        f"Response with id {shown(response_id)} not found: no response is kept here. Closing its "
        "connection ends one that runs.",
        code="response_not_found",
    )
