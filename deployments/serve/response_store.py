"""The store of responses as a deployment of its own, and a gateway's way to it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.backend.cores import give_way
from deployments.gateway.responses.memory import MemoryStore
from deployments.gateway.responses.store import (
    ResponseStore,
    StoredResponse,
    StoreStats,
    StoreUnavailableError,
)
from deployments.serve.replica_port import keep_replica_port_to_node
from deployments.settings import ResponsesSettings

T = TypeVar("T")


class StoreReplica(MemoryStore):
    """One, in memory: who comes after it begins with nothing."""

    def __init__(self, settings: ResponsesSettings) -> None:
        keep_replica_port_to_node()
        give_way()
        super().__init__(
            max_bytes=settings.max_bytes,
            max_bytes_per_key=settings.max_bytes_per_key,
            max_age_s=settings.max_age_s,
        )


class StoreHandle(ResponseStore):
    """No answer passes here, but for what is written of it at its end."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def put(self, tenant: str, response: StoredResponse) -> bool:
        return await _answered(self._handle.put.remote(tenant, response))

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        return await _answered(self._handle.get.remote(tenant, response_id))

    async def items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        return await _answered(self._handle.items.remote(tenant, item_ids))

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await _answered(self._handle.delete.remote(tenant, response_id))

    async def stats(self) -> StoreStats:
        return await _answered(self._handle.stats.remote())


async def _answered(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except (RayError, RayServeException) as error:
        raise StoreUnavailableError(f"lost: {type(error).__name__}") from error
