"""What a request refers to is looked up before anything else is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import Scope

from deployments.gateway.access.api_keys import SCOPE_KEY, ApiKey
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import StoredItem, StoreUnavailableError
from deployments.http.errors import ApiError, shown
from deployments.protocol import ParsedRequest, parse_body
from deployments.protocol.responses.context import Context, UnresolvedError
from deployments.protocol.responses.request import ResponsesRequest


@dataclass(frozen=True)
class Accepted:
    parsed: ParsedRequest
    context: bytes = b""
    """For the replica: what was looked up."""
    before: tuple[StoredItem, ...] = ()
    """The items of the response that this one goes on with."""
    named: Mapping[str, bytes] = field(default_factory=dict)
    """Items as JSON by ids that the input has."""


def tenant_of(scope: Scope) -> str:
    key: ApiKey | None = scope.get(SCOPE_KEY)
    return key.tenant if key else ""


async def accept(
    path: str, body: bytes, tenant: str, store: SharedStore | None, *, max_bytes: int
) -> Accepted:
    """``max_bytes``: of what a request refers to, as of a body. Raises ``ApiError``."""
    try:
        accepted = Accepted(await parse_body(path, body, tenant=tenant))
    except UnresolvedError as error:
        if store is None:
            raise
        before = await _items_before(error.asked.previous_response_id, tenant, store)
        named = await _named(error.asked.item_ids, tenant, store)
        context = Context.encode((item.json for item in before), named)
        if len(context) > max_bytes:
            raise _too_large(error.asked, max_bytes) from error
        parsed = await parse_body(path, body, context, tenant=tenant)
        accepted = Accepted(parsed, context, before, named)
    asked = accepted.parsed.asked
    if store is None and isinstance(asked, ResponsesRequest) and asked.store:
        raise ApiError(
            400,
            "store is not supported: no response is kept here (responses.max_bytes); leave it out.",
            param="store",
        )
    return accepted


async def _items_before(
    response_id: str | None, tenant: str, store: SharedStore
) -> tuple[StoredItem, ...]:
    """A store that is gone has lost what it had: its clients send their items again."""
    if response_id is None:
        return ()
    try:
        response = await store.get(tenant, response_id)
    except StoreUnavailableError:
        response = None
    if response is None:
        # The status and the code that clients go by.
        raise ApiError(
            400,
            f"Previous response with id {shown(response_id)} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return response.items


async def _named(
    item_ids: Mapping[str, str], tenant: str, store: SharedStore
) -> Mapping[str, bytes]:
    """``item_ids``: by the fields that name them."""
    if not item_ids:
        return {}
    try:
        found = await store.items(tenant, list({*item_ids.values()}))
    except StoreUnavailableError:
        found = {}
    for param, item_id in item_ids.items():
        if item_id not in found:
            raise ApiError(
                404, f"Item with id {shown(item_id)} not found.", param=param, code="item_not_found"
            )
    return found


def _too_large(asked: ResponsesRequest, max_bytes: int) -> ApiError:
    param = "input" if asked.previous_response_id is None else "previous_response_id"
    return ApiError(
        400,
        f"{param} refers to items of more than {max_bytes} bytes (gateway.max_body_bytes).",
        param=param,
    )
