"""The list of gateways: each of them has all of it, and asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.fleet.targets import GatewayAddress


class Peers:
    """Written by the router's thread, read by the event loop's."""

    def __init__(self) -> None:
        self._gateways: tuple[GatewayAddress, ...] = ()

    @property
    def gateways(self) -> tuple[GatewayAddress, ...]:
        return self._gateways

    def replace(self, gateways: Sequence[GatewayAddress]) -> None:
        # One rebinding of an immutable tuple, as in ``ReplicaDirectory``.
        self._gateways = tuple(sorted(gateways, key=lambda gateway: gateway.replica_id))


_process_peers = Peers()


def process_peers() -> Peers:
    """What this process's handle to the gateways keeps up to date."""
    return _process_peers
