"""Keeps the list of gateways up to date, from what Serve's controller pushes to each handle.

Ray pickles this module by value, so the list itself lives in a module of its own.
"""

from __future__ import annotations

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import RunningReplica

from deployments.fleet.peers import process_peers
from deployments.fleet.targets import GatewayAddress


class PeersRouter(PowerOfTwoChoicesRequestRouter):
    """Serve's default, and the list."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        process_peers().replace(
            [GatewayAddress(**replica.replica_metadata) for replica in replicas]
        )
