"""The fleet as it is told: hosts, the engines on each, and what has happened of late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from deployments.fleet.targets import GatewayAddress
from deployments.gateway.replicas.feed import FleetEvent
from deployments.gateway.watch.watched import State, Watched
from deployments.wire.reading import CacheReading, EngineReading, HostReading, Lane


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class GatewayView(_View):
    id: str
    node: str


class TokenRates(_View):
    """Tokens a second."""

    prompt: float = Field(description="Now, of prompts, those that were cached included.")
    generation: float = Field(description="Now, generated.")
    history: list[float] = Field(
        description="Generated, over the last ten minutes: a rate for each 10 seconds, the latest "
        "last."
    )


class KvCacheView(_View):
    """In blocks, of the layers that see the most tokens."""

    total: int
    held: int = Field(description="By sequences in the batch.")
    cached: int = Field(description="Free, but found by a prompt with the same beginning.")
    usage_ratio: float = Field(description="Of whatever layers have the least left.")


class LaneView(Lane):
    """A sequence."""

    tenant: str = Field("", exclude=True)


class EngineView(_View):
    id: str
    model: str
    revision: str | None = Field(
        description="Of the model; null: it does not tell. Engines with the same one continue each "
        "other's answers."
    )
    version: str | None = Field(description="Of Pomona; null: it does not tell.")
    max_model_len: int
    state: State = Field(
        description="`silent`: no answer in time; `lost`: nobody is there; `left`: it was told to "
        "go, and has. Those two are told of for a minute."
    )
    attention: str | None = Field(description="The path of attention that serves.")
    requests_running: int
    requests_waiting: int
    max_num_seqs: int = Field(description="Most sequences in the batch.")
    tokens_per_second: TokenRates
    kv_cache: KvCacheView
    memory_active_bytes: int
    prompt_tokens: int = Field(description="Since it started, like all that follow.")
    generation_tokens: int
    prefix_cache_hit_tokens: int = Field(description="Of the key's own prompts, like the next one.")
    prefix_cache_query_tokens: int
    preemptions: int
    lanes: tuple[LaneView, ...] = Field(description="The key's own sequences.")
    tenant_caches: Mapping[str, CacheReading] = Field(exclude=True)

    def seen_by(self, tenant: str) -> Self:
        own = self.tenant_caches.get(tenant, CacheReading())
        update = {
            "prefix_cache_hit_tokens": own.hit_tokens,
            "prefix_cache_query_tokens": own.query_tokens,
            "lanes": tuple(lane for lane in self.lanes if lane.tenant == tenant),
        }
        return self.model_copy(update=update)


class HostView(HostReading):
    node: str = Field(description="Its address in the cluster.")
    engines: list[EngineView]

    def seen_by(self, tenant: str) -> Self:
        return self.model_copy(update={"engines": [one.seen_by(tenant) for one in self.engines]})


class FleetView(_View):
    """As one gateway sees it."""

    object: Literal["fleet"] = "fleet"
    time: float = Field(description="In seconds, as Unix counts them.")
    version: str = Field(description="Of this gateway.")
    gateway: str = Field(description="The id of the gateway that tells.")
    gateways: list[GatewayView]
    hosts: list[HostView]
    events: tuple[FleetEvent, ...] = Field(
        description="The newest first; streams that moved are those of this gateway's clients."
    )

    def seen_by(self, tenant: str) -> Self:
        """With the sequences and cache hits of ``tenant`` alone."""
        return self.model_copy(update={"hosts": [one.seen_by(tenant) for one in self.hosts]})


def hosts_of(watched: Iterable[Watched]) -> list[HostView]:
    by_node: dict[str, list[Watched]] = {}
    for one in sorted(watched, key=lambda one: (one.replica.node, one.replica.replica_id)):
        by_node.setdefault(one.replica.node, []).append(one)
    return [_host(node, members) for node, members in by_node.items()]


def _host(node: str, members: Sequence[Watched]) -> HostView:
    told = [one.reading.host for one in members if one.reading and one.state != "lost"]
    told += [one.reading.host for one in members if one.reading]
    reading = told[0] if told else HostReading()
    return HostView(node=node, engines=[_engine(one) for one in members], **reading.model_dump())


def _engine(one: Watched) -> EngineView:
    reading = one.reading or EngineReading()
    is_there = one.state in ("ready", "draining")
    prompt, generation = one.rates.now
    free, cached = reading.kv_cache_blocks_free, reading.kv_cache_blocks_cached
    return EngineView(
        id=one.replica.replica_id,
        model=one.replica.model,
        revision=one.build.revision,
        version=one.build.version,
        max_model_len=one.replica.max_model_len,
        state=one.state,
        attention=reading.attention,
        requests_running=reading.requests_running if is_there else 0,
        requests_waiting=reading.requests_waiting if is_there else 0,
        max_num_seqs=reading.max_num_seqs,
        tokens_per_second=TokenRates(
            prompt=prompt, generation=generation, history=one.rates.generation_history
        ),
        kv_cache=KvCacheView(
            total=reading.kv_cache_blocks_total,
            held=reading.kv_cache_blocks_total - free if is_there else 0,
            cached=cached if is_there else 0,
            usage_ratio=reading.kv_cache_usage_ratio if is_there else 0.0,
        ),
        memory_active_bytes=reading.memory_active_bytes,
        prompt_tokens=reading.prompt_tokens,
        generation_tokens=reading.generation_tokens,
        prefix_cache_hit_tokens=reading.prefix_cache_hit_tokens,
        prefix_cache_query_tokens=reading.prefix_cache_query_tokens,
        preemptions=reading.preemptions,
        lanes=tuple(LaneView(**vars(one)) for one in reading.lanes) if is_there else (),
        tenant_caches=reading.tenant_caches,
    )


def gateways_of(gateways: Iterable[GatewayAddress]) -> list[GatewayView]:
    return [GatewayView(id=one.replica_id, node=one.node) for one in gateways]
