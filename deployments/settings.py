"""What ``args:`` of a Serve config file may hold: the settings of one application."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from deployments.backend import EngineConfig

LONGEST_PATIENCE_S = 300.0


class GatewaySettings(BaseModel):
    """The gateways: who may ask, how much, and how long it may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str | None = Field(
        None,
        min_length=1,
        description="Every host that declares this resource gets a gateway, as soon as it joins; "
        "by default `gateway`, or none and so every host, if none declares it at the deployment.",
    )
    engines: str | None = Field(
        None,
        min_length=1,
        description="Serve application that has the engines, built by "
        "`deployments.app:build_engines`; the gateways' own by default. Two applications are "
        "updated apart: one that changes leaves the other running.",
    )
    api_keys: tuple[SecretStr, ...] = Field(
        (),
        description="Keys that clients may use. Ray writes `args` to its own logs: prefer "
        "`api_keys_file`. Without any key only clients on the same machine are served.",
    )
    api_keys_file: Path | None = Field(
        None,
        description="File with one key a line, where blank lines and lines that start with `#` are "
        "skipped, or `*.yaml` with names and limits. Read where the application is built, then by "
        "each gateway on its own host, again whenever it changes.",
    )
    limits_scope: Literal["cluster", "gateway"] = Field(
        "cluster",
        description="What a key's limits are for: all gateways together, each of which enforces "
        "an equal part, or each gateway. Parts of `max_concurrent_requests` are rounded up: three "
        "gateways allow a key of 1 three sequences at a time, one each.",
    )
    isolate_tenants: bool = Field(
        False,
        description="Keep the prefix caches of different keys apart; what they have in common is "
        "then computed and kept for each of them. Without it `cached_tokens`, and the time of a "
        "first token, tell a key what others have asked.",
    )
    allowed_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call this server from a browser (CORS), such as "
        "`https://chat.example.com`, or `*` for any; none by default.",
    )
    log_prompts: bool = Field(
        False,
        description="Write the body of each generation request, prompt included, to the log, as "
        "one line whose control characters are escaped.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024, ge=1024, description="Largest request body; a larger one gets a 413."
    )
    max_total_body_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Bytes of request bodies that a gateway reads or parses at once, at least "
        "`max_body_bytes`; a request over it gets a 503. One key's bodies may take as much of it "
        "as they leave to others.",
    )
    max_sequences_per_request: int = Field(
        128,
        ge=1,
        description="Most answers that one request may ask for, prompts times `n`; a request for "
        "more gets a 400.",
    )
    keep_alive_interval_s: float = Field(
        5.0, gt=0.0, description="A silent stream carries an SSE comment this often."
    )
    stall_timeout_s: float = Field(
        12.0,
        gt=0.0,
        description="A replica silent for this long, keep-alives included, counts as lost, and "
        "another one goes on with its requests; at least twice `keep_alive_interval_s`.",
    )
    resume_timeout_s: float | None = Field(
        None,
        ge=0.0,
        description="How long a request waits for a replica if none can take it, or if it has lost "
        "its own. By default twice what the slowest engine of its model took to start, at least 30 "
        "and at most 300, so that streams outlive a restart of all engines.",
    )
    connect_timeout_s: float = Field(
        3.0, gt=0.0, description="Longest wait for a connection to a replica."
    )
    client_timeout_s: float = Field(
        60.0,
        gt=0.0,
        description="On `port`, the longest time that a request may take to arrive, and a client "
        "to read on while more of its answer waits; then it is cut off.",
    )
    request_timeout_s: float = Field(
        3600.0, gt=0.0, description="Longest time a request may take, streams included."
    )
    max_attempts: int = Field(
        3,
        ge=1,
        description="Full replicas that a new request is refused by before its client is told.",
    )
    allow_priority: bool = Field(
        False,
        description="Let requests set `priority`, with which any client can pass all others.",
    )
    port: int = Field(
        8000,
        ge=0,
        le=65535,
        description="Port on which each gateway serves clients; 0 takes a free one, which its log "
        "names. Serve's own proxy carries no requests: `proxy_location: Disabled`.",
    )
    host: str | None = Field(
        None, min_length=1, description="Address of that port; the node's by default."
    )
    page: bool = Field(
        True,
        description="Serve a page at `/` to chat and to watch the fleet, and what it watches at "
        "`/v1/fleet`, to whoever has a key.",
    )
    drain_notice_s: float = Field(
        10.0,
        ge=0.0,
        description="How long a gateway that is to stop goes on taking requests at that port, "
        "while `/ready` says no: what load balancers need to notice. The only gateway stays ready "
        "meanwhile, for want of another, until its successor listens. Ctrl-C, or an application "
        "that is deleted, is not noticed beforehand.",
    )
    metrics_host: str | None = Field(
        None,
        min_length=1,
        description="Address of each gateway's own `/metrics` server; the node's by default.",
    )
    metrics_port: int = Field(
        0, ge=0, le=65535, description="Port of that server; 0 takes a free one."
    )

    @property
    def longest_patience_s(self) -> float:
        """The longest that any request waits for a replica."""
        return LONGEST_PATIENCE_S if self.resume_timeout_s is None else self.resume_timeout_s

    @model_validator(mode="after")
    def _the_largest_body_fits(self) -> GatewaySettings:
        if self.max_total_body_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_total_body_bytes must be at least max_body_bytes ({self.max_body_bytes}), "
                f"not {self.max_total_body_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _keep_alives_arrive_before_a_stall(self) -> GatewaySettings:
        if self.stall_timeout_s < 2 * self.keep_alive_interval_s:
            raise ValueError(
                f"stall_timeout_s must be at least twice keep_alive_interval_s "
                f"({self.keep_alive_interval_s:g}), not {self.stall_timeout_s:g}"
            )
        return self


class ResponsesSettings(BaseModel):
    """Responses that are kept for clients that come back to them: in memory, for all gateways."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Memory that they may take, with the prompts that they answer; then those that "
        "were not used for longest go. 0 keeps nothing, and what needs it is refused.",
    )
    max_bytes_per_key: int = Field(
        16 * 1024 * 1024,
        ge=1,
        description="What of it one key may take, where there are keys.",
    )
    max_age_s: float = Field(
        86400.0, gt=0.0, description="How long one is kept at most, used or not."
    )


class RoutingSettings(BaseModel):
    """How a gateway chooses a replica for a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["prefix_affinity", "least_outstanding_tokens"] = Field(
        "prefix_affinity",
        description="`prefix_affinity`: the replica that has the longest prefix of the prompt "
        "cached, unless it has too much to do. `least_outstanding_tokens`: the one with the least "
        "to do.",
    )
    load_bound: float = Field(
        1.4,
        ge=1.0,
        description="Times its fair share of the load that a replica gets because of what it has "
        "cached; past that a prefix spreads to another one, once more waits for the replica than "
        "another would have to compute again. Lower: evener load; higher: more hits.",
    )
    free_tokens: int = Field(
        4096,
        ge=0,
        description="A replica with fewer tokens to do has room, whatever its share, unless its "
        "streams are far slower than those of others.",
    )
    load_half_life_s: float = Field(
        10.0,
        gt=0.0,
        description="A finished request counts as half its load after this long, a quarter after "
        "twice as long.",
    )
    min_match: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="Part of a prompt that a replica must have cached to be preferred; what "
        "matches less, such as a common system prompt, is worth a copy on every replica.",
    )
    max_prefixes: int = Field(
        65536,
        ge=1,
        description="Prefixes that a gateway remembers, some dozens for a long prompt, at about "
        "250 bytes each.",
    )
    weigh_capacity: bool = Field(
        True,
        description="Give replicas shares in proportion to the speed of their streams, for fleets "
        "of unlike machines and for hosts that something else slows down.",
    )
    session_header: tuple[str, ...] = Field(
        (
            "X-Session-Id",
            "X-Claude-Code-Session-Id",
            "session-id",
            "thread-id",
            "X-Session-Affinity",
        ),
        description="Requests with the same value of one of these headers, of which the first that "
        "is there counts, go to the same replica, unless another has `min_match` of their prompt "
        "cached and that one does not; without such a header, those with the same "
        "`prompt_cache_key`.",
    )


class ReplicaSettings(BaseModel):
    """The engine replicas: where they are, and where each one's own HTTP server listens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str | None = Field(
        None,
        min_length=1,
        description="Every host that declares this resource may have an engine, as soon as it "
        "joins; by default `mlx`, or none and so every host, if none declares it at the "
        "deployment.",
    )
    host: str | None = Field(
        None, min_length=1, description="Address to listen on; the node's own by default."
    )
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    drain_timeout_s: float = Field(
        120.0,
        ge=0.0,
        description="Longest wait for running requests when a deployment is updated or deleted. "
        "Ctrl-C on `make serve` or `serve run` does not wait: it cuts streams.",
    )


class AutoscalingSettings(BaseModel):
    """How many engines there are: one on every host that may have one, unless this says less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_replicas: int | None = Field(
        None, ge=1, description="Most engines; as many as there are hosts by default."
    )
    min_replicas: int | None = Field(
        None,
        ge=1,
        description="Fewest engines: with it their number follows the load, from here up to "
        "`max_replicas`. Without it, all of them are always there.",
    )
    target_load: float = Field(
        0.7,
        gt=0.0,
        le=1.0,
        description="Part of what an engine can do that it is to have to do: sequences of "
        "`max_num_seqs`, or KV cache if that is the larger part, and requests that wait.",
    )
    upscale_delay_s: float = Field(
        10.0, ge=0.0, description="How long a load must call for more engines until there are more."
    )
    downscale_delay_s: float = Field(
        600.0,
        ge=0.0,
        description="How long it must leave some to spare until they end, after their requests.",
    )

    @model_validator(mode="after")
    def _fewest_is_not_more_than_most(self) -> AutoscalingSettings:
        if (self.min_replicas or 0) > (self.max_replicas or math.inf):
            raise ValueError(
                f"min_replicas must be at most max_replicas ({self.max_replicas}), "
                f"not {self.min_replicas}"
            )
        return self


class ObservabilitySettings(BaseModel):
    """Logs and traces; metrics are always there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_format: Literal["text", "json"] = Field(
        "text",
        description="`json`: a JSON object a line; what a line says of a request, its id first, is "
        "in members of their own.",
    )
    traces_endpoint: str | None = Field(
        None,
        min_length=1,
        description="Where OpenTelemetry traces go, over OTLP/HTTP, such as "
        "`http://127.0.0.1:4318/v1/traces`; needs `pip install 'pomona-serve[traces]'`. No traces "
        "by default.",
    )
    traces_ratio: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Part of the requests that are traced, unless their clients have decided.",
    )


class AppSettings(BaseModel):
    """Everything under ``args:``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineConfig = Field(default_factory=lambda: EngineConfig.model_validate({}))
    gateway: GatewaySettings = Field(default_factory=lambda: GatewaySettings.model_validate({}))
    responses: ResponsesSettings = Field(
        default_factory=lambda: ResponsesSettings.model_validate({})
    )
    routing: RoutingSettings = Field(default_factory=lambda: RoutingSettings.model_validate({}))
    replica: ReplicaSettings = Field(default_factory=lambda: ReplicaSettings.model_validate({}))
    autoscaling: AutoscalingSettings = Field(
        default_factory=lambda: AutoscalingSettings.model_validate({})
    )
    observability: ObservabilitySettings = Field(
        default_factory=lambda: ObservabilitySettings.model_validate({})
    )


class SettingsError(ValueError):
    """The settings are wrong; the message has a line for each mistake."""

    def __init__(self, message: str, mistakes: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.mistakes = dict(mistakes or {})
        """What is wrong with a key such as ``engine.max_num_seqs``."""


def parse_settings(args: Mapping[str, Any]) -> AppSettings:
    """Raises ``SettingsError`` naming every wrong key and what is allowed."""
    try:
        return AppSettings.model_validate(dict(args))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    mistakes = {_key(mistake): _explain(mistake) for mistake in found}
    lines = "\n".join(f"  {key}: {told}" for key, told in mistakes.items())
    raise SettingsError(f"the settings under `args:` are wrong:\n{lines}", mistakes)


def _key(mistake: ErrorDetails) -> str:
    return ".".join(str(part) for part in mistake["loc"]) or "args"


def _explain(mistake: ErrorDetails) -> str:
    path = [str(part) for part in mistake["loc"]]
    if mistake["type"] == "extra_forbidden":
        allowed = ", ".join(sorted(_section(path[:-1]).model_fields))
        return f"unknown key; allowed here: {allowed}"
    message = mistake["msg"].removeprefix("Value error, ")
    if isinstance(mistake["input"], (str, int, float, bool)) and "api_keys" not in path:
        return f"{message}, not {mistake['input']!r}"
    return message


def _section(path: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = AppSettings
    for name in path:
        annotation = section.model_fields[name].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    return section
