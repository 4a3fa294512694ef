"""The host list: which machine does what."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

Role = Literal["head", "engine", "gateway", "store"]
# Ray's sockets are in state/ray/session_.../sockets, and macOS allows 104 bytes for all of it.
MAX_STATE_LENGTH = 31
# A host's folder has its name, and these are the secrets' and Prometheus'.
SECRETS, PROMETHEUS = "secrets", "prometheus"
# Ray's default, and on the head's host what scripts.WORKER_PORTS adds: Ray does not start if one of
# them is another port of its own.
WORKER_PORTS = range(10002, 30000)
PATH_PATTERN = r"^/[A-Za-z0-9._/-]+$"

Folder = Annotated[str, Field(pattern=PATH_PATTERN)]
Port = Annotated[int, Field(ge=1024, le=65535)]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")]
Url = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:/\[\]-]+$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class HostListError(ValueError):
    """The host list is wrong; the message has a line for each mistake."""


class Host(BaseModel):
    """One machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    address: IPv4Address
    system: Literal["macos", "linux"]
    roles: tuple[Role, ...] = Field(min_length=1)
    num_cpus: int | None = Field(None, ge=0)

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in (SECRETS, PROMETHEUS):
            raise ValueError(f"{name} is taken")
        return name


class Heartbeat(BaseModel):
    """Which host sends requests made to be watched, and where clients are told to send theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    urls: tuple[Url, ...] = Field(min_length=1)


class HostList(BaseModel):
    """A cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[Host, ...] = Field(min_length=1)
    config: Path
    api_keys: Path | None = None
    user: str = Field("pomona", pattern=r"^[a-z_][a-z0-9_.-]*$")
    package: Folder = "/opt/pomona"
    services: Folder = "/etc/pomona"
    state: Folder = Field("/var/lib/pomona", max_length=MAX_STATE_LENGTH)
    ray_port: Port = 8266
    dashboard_port: Port = 8265
    agent_port: Port = 52365
    client_port: Port = 10001
    metrics_port: Port = 8090
    # The head is a process of its own, beside what its host has for other roles.
    head_agent_port: Port = 52366
    head_metrics_port: Port = 8091
    store_port: Port = 6379
    heartbeat_port: Port = 8407
    balancers: tuple[Address, ...] = ()
    heartbeat: Heartbeat | None = None
    keep_logs_days: int = Field(14, ge=1)
    environment: dict[Variable, str] = {}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for role, least in (("head", 1), ("store", 0)):
            count = len(self.with_role(role))
            if not least <= count <= 1:
                few = "exactly one host" if least else "at most one host"
                raise ValueError(f"hosts: {few} may have the role {role}, not {count}")
        if not self.with_role("engine"):
            raise ValueError("hosts: at least one host needs the role engine")
        for field in ("name", "address"):
            _refuse_twice(f"hosts: {field}", [str(getattr(host, field)) for host in self.hosts])
        if self.heartbeat and self.heartbeat.host not in {host.name for host in self.hosts}:
            raise ValueError(f"heartbeat: there is no host {self.heartbeat.host}")
        ports = [name for name, field in type(self).model_fields.items() if name.endswith("_port")]
        _refuse_twice(", ".join(ports), [str(getattr(self, name)) for name in ports])
        for name in ports:
            if (port := getattr(self, name)) in WORKER_PORTS:
                first, last = WORKER_PORTS[0], WORKER_PORTS[-1]
                raise ValueError(
                    f"{name}: {port} is one of {first} to {last}, which Ray's workers have"
                )
        return self

    def with_role(self, role: str) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if role in host.roles)

    @property
    def head(self) -> Host:
        return self.with_role("head")[0]

    @property
    def store(self) -> Host | None:
        return next(iter(self.with_role("store")), None)

    def serves(self, host: Host) -> bool:
        """Whether it has engines or gateways."""
        return "engine" in host.roles or host in self.gateways

    def has_heartbeat(self, host: Host) -> bool:
        return self.heartbeat is not None and self.heartbeat.host == host.name

    @property
    def gateways(self) -> tuple[Host, ...]:
        """Without the role, every host that Ray runs on has a gateway."""
        return self.with_role("gateway") or tuple(host for host in self.hosts if runs_ray(host))


def runs_ray(host: Host) -> bool:
    return host.roles != ("store",)


def read_host_list(path: Path) -> HostList:
    """The list in the file ``path``; the files that it names are relative to its folder.

    Raises ``HostListError`` naming every wrong field and what is allowed.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise HostListError(f"{path}: {error}") from None
    try:
        found = HostList.model_validate(content)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        lines = "\n".join(f"  {_explain(mistake)}" for mistake in mistakes)
        raise HostListError(f"{path}:\n{lines}") from None
    folder = path.parent
    keys = found.api_keys and folder / found.api_keys
    return found.model_copy(update={"config": folder / found.config, "api_keys": keys})


def _refuse_twice(what: str, values: list[str]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{what}: {', '.join(twice)} comes more than once")


def _explain(mistake: ErrorDetails) -> str:
    where = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        model = Host if mistake["loc"][0] == "hosts" else HostList
        return f"{where}: unknown key; allowed here: {', '.join(sorted(model.model_fields))}"
    message = mistake["msg"].removeprefix("Value error, ")
    value: Any = mistake["input"]
    shown = f", not {value!r}" if isinstance(value, (str, int, float, bool)) else ""
    # What is in `environment` may be a secret.
    shown = "" if where.startswith("environment") else shown
    return f"{where}: {message}{shown}" if where else message
