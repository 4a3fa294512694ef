"""What clients live through: who they are, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tests.support.cluster import double_roles, losses, partitions, updates
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import NUM_STREAMS, Event
from tests.support.cluster.requests import Clients, long_prompt, requests

CROWD = Clients(requests(NUM_STREAMS))
FEW = {count: Clients(requests(count, tokens=(1000, 1400))) for count in (3, 6, 17)}
RESUMABLE = Clients(requests(17, tokens=(1000, 1400), resumable=True))
FEW_RESUMABLE = Clients(requests(8, tokens=(1000, 1400), resumable=True))
SHORT = Clients(requests(17))
"""Over before their gateway has drained, however slow the machine."""
LONG_PROMPT = Clients([long_prompt()])
NOT_STREAMED = Clients(requests(12, tokens=(1000, 1400), stream=False))


@dataclass(frozen=True)
class Scenario:
    event: Callable[[Cluster], Event]
    clients: Clients = CROWD
    behind_each_balancer: bool = False
    """Those that the balancer has no part in need one run."""
    may_page: Collection[str] = ("PomonaTargetDown",)
    """Alerts that people may be called by, on four hosts."""


def _engines_killed(count: int, *, apart_s: float, clients: int) -> Mapping[str, Scenario]:
    name = f"{count} engines killed, {apart_s:g} s apart, {clients} clients"
    return {name: Scenario(losses.engines_killed(count, apart_s=apart_s), FEW[clients])}


SCENARIOS: dict[str, Scenario] = {
    "an engine's host killed": Scenario(losses.engine_host_killed, behind_each_balancer=True),
    "two engines' hosts killed": Scenario(losses.two_engine_hosts_killed),
    **_engines_killed(2, apart_s=0.1, clients=3),
    **_engines_killed(2, apart_s=1, clients=17),
    **_engines_killed(2, apart_s=5, clients=6),
    **_engines_killed(3, apart_s=0.1, clients=17),
    **_engines_killed(3, apart_s=1, clients=6),
    **_engines_killed(3, apart_s=5, clients=3),
    "two engines killed, 3 s apart, answers not streamed": Scenario(
        losses.engines_killed(2, apart_s=3), NOT_STREAMED
    ),
    "an engine's host cut off": Scenario(partitions.engine_host_cut_off, behind_each_balancer=True),
    "all engines' hosts cut off for 20 s": Scenario(partitions.engines_cut_off(20)),
    "a gateway's host cut off from the head for 25 s": Scenario(
        partitions.gateway_cut_off_from_head(25)
    ),
    "the head cut off for 12 s": Scenario(partitions.head_cut_off(12)),
    "the head cut off for 20 s": Scenario(partitions.head_cut_off(20)),
    "the head cut off for 5 min": Scenario(partitions.head_cut_off(300), FEW[17]),
    "the head killed, and back": Scenario(losses.head_restarted, behind_each_balancer=True),
    "the store killed, and back": Scenario(losses.store_restarted, behind_each_balancer=True),
    "rolling update": Scenario(updates.rolling_update, behind_each_balancer=True),
    "a disk is full in a rolling update": Scenario(updates.full_disk, SHORT),
    "another model": Scenario(updates.model_changed, behind_each_balancer=True),
    "a host joins, and is killed": Scenario(
        losses.host_joins_and_leaves, behind_each_balancer=True
    ),
}


def _few(event: Callable[[Cluster], Event], *may_page: str) -> Scenario:
    return Scenario(event, FEW_RESUMABLE, may_page=("PomonaTargetDown", *may_page))


OF_DOUBLE_ROLES: dict[str, Scenario] = {
    "the store's host restarted": _few(losses.store_restarted),
    "two of the three others cut off for 25 s": _few(double_roles.two_others_cut_off(25)),
    "two of the three others cut off for 60 s": _few(double_roles.two_others_cut_off(60)),
    "the store refuses writes for 60 s, an engine killed": _few(double_roles.store_refuses_writes),
    "the store slow for 60 s, an engine killed": _few(double_roles.slow_store),
    "the store's certificate expired": _few(
        double_roles.store_certificate_expired, "PomonaHeadDown"
    ),
    "an engine at a tenth of a core for 60 s": _few(double_roles.slow_engine),
    "a gateway stopped by a signal": _few(double_roles.gateway_stopped),
    "all engines killed at once": _few(
        losses.engines_killed(double_roles.NUM_HOSTS, apart_s=0),
        "PomonaNoReplica",
        "PomonaBalancerWithoutGateway",
    ),
    "a config that can't start": _few(
        double_roles.update_that_cannot_start("absent/model", model="absent/model")
    ),
    "an update to more memory than there is": _few(
        double_roles.update_that_cannot_start("num_kv_blocks must be at most", num_kv_blocks=10**9)
    ),
    "two updates, 5 s apart": _few(double_roles.two_updates),
    "the head's host restarted in an update": _few(double_roles.head_host_restarted_in_update),
    "a fifth of a host's packets lost for 60 s": _few(double_roles.packets_lost),
    "a host restarted with a read-only disk for 60 s": _few(double_roles.read_only_disk),
    "a long prompt lost in its prefill": Scenario(double_roles.prompt_lost_in_prefill, LONG_PROMPT),
    "the store emptied, an engine killed": _few(double_roles.store_emptied),
}
"""On four hosts where clients' gateways are lost with engines. After the last one no host is what
it was."""
