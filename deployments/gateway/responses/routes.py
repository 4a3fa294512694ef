"""What clients ask of responses that are kept. Another key's are as if there were none."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.gateway.responses.accepting import tenant_of
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import StoredItem, StoredResponse, StoreUnavailableError
from deployments.http.errors import UNAVAILABLE_RETRY_AFTER_S, ApiError, shown
from deployments.protocol import RESPONSES_PATH
from deployments.protocol.responses.token_count import INPUT_TOKENS_PATH

ONE_PATH = f"{RESPONSES_PATH}/{{response_id}}"
INPUT_ITEMS_PATH = f"{ONE_PATH}/input_items"
CANCEL_PATH = f"{ONE_PATH}/cancel"
COMPACT_PATH = f"{RESPONSES_PATH}/compact"
MOST_ITEMS = 100
ITEMS = 20

_AS_IT_WAS = "a response is told as it was made"
_REFUSED = {
    "stream": f"{_AS_IT_WAS}, whole",
    "starting_after": f"{_AS_IT_WAS}, whole",
    "include": _AS_IT_WAS,
    "include[]": _AS_IT_WAS,
}
"""Parameters of OpenAI's that nothing stands behind."""
_NEUTRAL = ("", "false")
_INTEGER = re.compile("[1-9][0-9]{0,2}")
_WITHOUT_EFFECT = frozenset({"include_obfuscation"})
"""Of streams alone."""


def response_routes(store: SharedStore | None) -> list[Route]:
    """None: nothing is kept, and nothing found."""
    kept = _Kept(store)
    return [
        Route(INPUT_TOKENS_PATH, _only_post, methods=["GET", "DELETE"]),
        Route(COMPACT_PATH, _compact, methods=["GET", "DELETE", "POST"]),
        Route(ONE_PATH, kept.retrieve, methods=["GET"]),
        Route(ONE_PATH, kept.delete, methods=["DELETE"]),
        Route(INPUT_ITEMS_PATH, kept.input_items, methods=["GET"]),
        Route(CANCEL_PATH, kept.cancel, methods=["POST"]),
    ]


async def _only_post(request: Request) -> Response:
    raise HTTPException(405)


async def _compact(request: Request) -> Response:
    raise ApiError(
        404,
        f"{COMPACT_PATH} is not served: a client sums up what was said itself.",
        code="unknown_url",
    )


class _Kept:
    def __init__(self, store: SharedStore | None) -> None:
        self._store = store

    async def retrieve(self, request: Request) -> Response:
        _check_parameters(request)
        response = await self._find(request)
        return Response(response.json(), media_type="application/json")

    async def delete(self, request: Request) -> Response:
        _check_parameters(request)
        response_id = _id_of(request)
        if self._store is None:
            raise _not_found(response_id)
        try:
            had = await self._store.delete(tenant_of(request.scope), response_id)
        except StoreUnavailableError as error:
            raise _unavailable() from error
        if not had:
            raise _not_found(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        _check_parameters(request, "limit", "order", "after")
        limit, order = _limit(request), _order(request)
        found = (await self._find(request)).input
        ordered = found if order == "asc" else found[::-1]
        items = _after(ordered, request.query_params.get("after"))
        return JSONResponse(_page(items[:limit], has_more=len(items) > limit))

    async def cancel(self, request: Request) -> Response:
        _check_parameters(request)
        await self._find(request)
        raise ApiError(
            400,
            "Only a response with background set to true can be cancelled, and it is not supported "
            "here: closing its connection ends a response that runs.",
            param="response_id",
        )

    async def _find(self, request: Request) -> StoredResponse:
        response_id = _id_of(request)
        if self._store is None:
            raise _not_found(response_id)
        try:
            response = await self._store.get(tenant_of(request.scope), response_id)
        except StoreUnavailableError as error:
            raise _unavailable() from error
        if response is None:
            raise _not_found(response_id)
        return response


def _id_of(request: Request) -> str:
    response_id: str = request.path_params["response_id"]
    return response_id


def _check_parameters(request: Request, *allowed: str) -> None:
    for name, value in request.query_params.multi_items():
        if name in _REFUSED:
            if value.lower() not in _NEUTRAL:
                raise ApiError(400, f"{name} is not supported: {_REFUSED[name]}.", param=name)
        elif name not in allowed and name not in _WITHOUT_EFFECT:
            raise ApiError(400, f"{shown(name)} is not a known parameter.", param=name[:80])


def _limit(request: Request) -> int:
    given = request.query_params.get("limit", str(ITEMS))
    if not _INTEGER.fullmatch(given) or int(given) > MOST_ITEMS:
        raise ApiError(
            400,
            f"limit must be an integer from 1 to {MOST_ITEMS}, not {shown(given)}.",
            param="limit",
        )
    return int(given)


def _order(request: Request) -> str:
    given = request.query_params.get("order", "desc")
    if given not in ("asc", "desc"):
        raise ApiError(400, f'order must be "asc" or "desc", not {shown(given)}.', param="order")
    return given


def _after(items: Sequence[StoredItem], after: str | None) -> Sequence[StoredItem]:
    """Those behind the item of that id."""
    if after is None:
        return items
    for index, item in enumerate(items):
        if item.id == after:
            return items[index + 1 :]
    raise ApiError(400, f"after must be the id of an item, not {shown(after)}.", param="after")


def _page(items: Sequence[StoredItem], *, has_more: bool) -> dict[str, Any]:
    # Answers tell a call of a custom tool without its status, lists with it.
    data = [{"status": "completed", **json.loads(item.json)} for item in items]
    ends = {"first_id": items[0].id, "last_id": items[-1].id} if items else {}
    return {"object": "list", "data": data, "first_id": "", "last_id": "", **ends} | {
        "has_more": has_more
    }


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        404, f"Response with id {shown(response_id)} not found.", code="response_not_found"
    )


def _unavailable() -> ApiError:
    return ApiError(
        503,
        "The store of responses does not answer now.",
        type="service_unavailable",
        code="unavailable",
        headers={"Retry-After": str(UNAVAILABLE_RETRY_AFTER_S)},
    )
