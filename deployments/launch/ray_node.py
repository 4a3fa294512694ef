"""This machine's Ray, without the processes that serving does not need at its start."""

from __future__ import annotations

import os

import ray
from ray._private import worker
from ray._private.node import Node

SERVE_NAMESPACE = "serve"
_start_dashboard = Node.start_api_server


def start_ray(*, verbose: bool) -> None:
    """Join the cluster that runs already, or start one. ``verbose``: print all that its processes
    do."""
    _leave_out("start_monitor", "start_api_server", *([] if verbose else ["start_log_monitor"]))
    ray.init(namespace=SERVE_NAMESPACE, log_to_driver=verbose)


def starts_own() -> bool:
    """Whether this process started Ray."""
    return worker._global_node is not None and worker._global_node.head


def start_dashboard() -> str:
    """Start Ray's dashboard, for `serve status`, and return its URL. It takes as much of the
    processors as a model's start, so it comes last and gives way."""
    os.nice(10)
    node = worker._global_node
    assert node is not None
    _start_dashboard(node, include_dashboard=True, raise_on_failure=False)
    return f"http://{node.webui_url}"


def _leave_out(*methods: str) -> None:
    """Ray's autoscaler, dashboard and log reader import most of Ray, each in its own process."""
    for name in methods:
        setattr(Node, name, lambda *_, **__: None)
