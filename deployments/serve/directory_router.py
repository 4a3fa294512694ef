"""Keeps the gateway's directory of replicas up to date, from what Serve's controller pushes.

Serve hands every change in a deployment's set of running replicas, with the metadata that each
replica recorded when it started, to the request router inside each handle. The router here
passes that on to the process's ``ReplicaDirectory``: a replica that restarts or leaves is gone
from the list at the next push, and no request waits for a call.

Ray pickles this module by value, so the directory itself lives in a module of its own.
"""

from __future__ import annotations

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
)

from deployments.fleet.directory import Replica, process_directory


class DirectoryRouter(FIFOMixin, RequestRouter):
    """Serve's request router for the engine deployment; requests reach replicas over HTTP."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        process_directory().replace(
            [Replica.from_metadata(replica.replica_metadata) for replica in replicas]
        )

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        return [candidate_replicas]
