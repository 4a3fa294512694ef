"""Replicas and work for tests of routers."""

from __future__ import annotations

from deployments.fleet.directory import Replica
from deployments.gateway.routing import Work
from deployments.gateway.routing.affinity import prefix_affinity


def replica(name: str, *, model: str = "demo", max_model_len: int = 100) -> Replica:
    return Replica(name, "node", f"http://{name}", model, max_model_len, "hunter2")


def work(prompt: str = "", *, tokens: int = 100) -> Work:
    return Work(model="demo", tokens=tokens, affinity=prefix_affinity([prompt]))
