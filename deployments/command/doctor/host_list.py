"""A cluster's host list, as far as the doctor needs it.

``ops/cluster`` reads the whole of it, and refuses what is wrong; but it is no part of an installed
package, and who looks after a cluster may have only that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Host(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    # Both are arguments of ssh, which takes what begins with a dash for an option.
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    address: str = Field(pattern=r"^[0-9.]+$")
    system: Literal["macos", "linux"]
    roles: tuple[Literal["head", "engine", "gateway", "store"], ...] = Field(min_length=1)


class HostList(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    hosts: tuple[Host, ...] = Field(min_length=1)
    config: Path
    user: str = Field("pomona", pattern=r"^[a-z_][a-z0-9_.-]*$")
    package: str = "/opt/pomona"
    services: str = "/etc/pomona"
    ray_port: int = 8266
    dashboard_port: int = 8265
    agent_port: int = 52365
    client_port: int = 10001
    metrics_port: int = 8090
    head_agent_port: int = 52366
    head_metrics_port: int = 8091

    @property
    def gateways(self) -> tuple[Host, ...]:
        """Without the role, every host that Ray runs on has one."""
        with_role = tuple(host for host in self.hosts if "gateway" in host.roles)
        return with_role or tuple(host for host in self.hosts if host.roles != ("store",))

    def rays_ports(self, host: Host) -> tuple[int, ...]:
        """Those that Ray listens at on ``host``."""
        found: tuple[int, ...] = ()
        if "head" in host.roles:
            found += (self.ray_port, self.dashboard_port, self.client_port)
            found += (self.head_agent_port, self.head_metrics_port)
        if "engine" in host.roles or host in self.gateways:
            found += (self.agent_port, self.metrics_port)
        return found


def read_host_list(path: Path) -> HostList:
    """The file that ``config`` names is relative to the folder of ``path``. Raises ``ValueError``
    with a line that names what is wrong."""
    try:
        found = HostList.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the top level"
        raise ValueError(f"{path}: {where}: {first['msg']}") from None
    return found.model_copy(update={"config": path.parent / found.config})
