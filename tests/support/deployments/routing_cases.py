"""Replicas and work for tests of routers and of what they go by."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.gateway.replicas.state import ReplicaState
from deployments.gateway.replicas.suspect import Suspect
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import Router, Work
from deployments.gateway.routing.affinity import prefix_affinity
from tests.support.clock import Clock


def replica(name: str, *, model: str = "demo", max_model_len: int = 100) -> Replica:
    return Replica(name, "node", f"http://{name}", model, max_model_len, "hunter2")


def work(prompt: str = "", *, tokens: int = 100, prompt_tokens: int = 0) -> Work:
    affinity = prefix_affinity([prompt])
    return Work(model="demo", tokens=tokens, prompt_tokens=prompt_tokens, affinity=affinity)


def table_of(
    *names: str, clock: Clock | None = None, half_life_s: float = 10.0
) -> tuple[ReplicaTable, list[ReplicaState]]:
    """A gateway's table of so many replicas, and its records in this order."""
    directory = ReplicaDirectory([replica(name) for name in names])
    table = ReplicaTable(directory, load_half_life_s=half_life_s, now=clock or Clock())
    return table, table.serving("demo")


class Routed:
    """A router and the table of its gateway, with replicas a to d."""

    def __init__(
        self, router: Router, clock: Clock | None = None, *, half_life_s: float = 10.0
    ) -> None:
        self.router = router
        self.table, self.replicas = table_of(*"abcd", clock=clock, half_life_s=half_life_s)
        self._for_good: list[ExitStack] = []

    def choose(self, asked: Work, among: Sequence[ReplicaState] | None = None) -> ReplicaState:
        return self.router.choose(asked, among or self.replicas)

    @property
    def loads(self) -> list[float]:
        return [one.load.recent_tokens for one in self.replicas]

    def start(self, asked: Work, state: ReplicaState) -> ExitStack:
        """Closing it ends the request."""
        stack = ExitStack()
        asked = replace(asked, cached_tokens=self.router.placed(asked, state).cached_tokens)
        stack.enter_context(self.table.attempt(asked, Suspect(asked.num_sequences), state))
        return stack

    def place(self, asked: Work, among: Sequence[ReplicaState] | None = None) -> ReplicaState:
        """It never ends."""
        chosen = self.choose(asked, among)
        self._for_good.append(self.start(asked, chosen))
        return chosen

    def serve(self, asked: Work, among: Sequence[ReplicaState] | None = None) -> ReplicaState:
        chosen = self.choose(asked, among)
        with self.start(asked, chosen):
            chosen.answered()
        return chosen
