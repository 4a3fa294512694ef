"""The port that Serve opens in each replica for calls through handles: on the node's address.

Serve opens it on all interfaces whatever that address is, and has no setting for it.
"""

from __future__ import annotations

from typing import Any

import ray
from ray._common.network_utils import build_address  # type: ignore[attr-defined]
from ray._common.tls_utils import add_port_to_grpc_server
from ray.serve._private import replica


def keep_replica_port_to_node() -> None:
    """For this process, whose replica has not opened it yet."""
    replica.add_port_to_grpc_server = _add_port  # type: ignore[attr-defined]


def _add_port(server: Any, address: str) -> int:
    node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    port = int(address.rpartition(":")[2])
    opened: int = add_port_to_grpc_server(server, build_address(node, port))  # type: ignore[no-untyped-call]
    return opened
