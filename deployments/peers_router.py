"""Counts the gateways, from what Serve's controller pushes to each handle to them.

Ray pickles this module by value, so the count itself lives in a module of its own.
"""

from __future__ import annotations

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import RunningReplica

from deployments.peers import process_peers


class PeersRouter(PowerOfTwoChoicesRequestRouter):
    """Serve's default, which its proxies choose gateways with, and a count."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        process_peers().num_running = len(replicas)
