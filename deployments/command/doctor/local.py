"""Every check of this machine, in the order of the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil

from deployments.command.doctor import macos, readings
from deployments.command.doctor.certificates import check_certificates
from deployments.command.doctor.config import Config
from deployments.command.doctor.engine import check_engine
from deployments.command.doctor.engine_reading import read_engine
from deployments.command.doctor.finding import Finding, skipped, warning
from deployments.command.doctor.hub import check_hub
from deployments.command.doctor.memory import check_disk
from deployments.command.doctor.ports import Port, check_port
from deployments.command.doctor.private import check_keys, check_modes
from deployments.command.doctor.versions import check_pins, check_python
from deployments.gateway.access.api_keys import is_loopback
from deployments.gateway.access.keys_file import read_keys_file
from deployments.launch.private_files import ray_folder
from deployments.settings import SettingsError

RAYS_PORTS = (8265, 52365)
"""Those that Ray itself takes by default on a machine alone."""
SERVICES = Path("/etc/pomona")
MACS_ALONE = "macOS's version, its limit of GPU memory, tool chain, firewall, sleep and FileVault"


@dataclass(frozen=True)
class Asked:
    """``unattended``: this is a cluster's host, which nobody sits at."""

    config: Config
    rays_ports: tuple[int, ...] = RAYS_PORTS
    services: Path = SERVICES
    unattended: bool = False
    has_engine: bool = True
    has_gateway: bool = True


Part = tuple[str, Callable[[Asked], Iterable[Finding]]]


def check_here(asked: Asked) -> Iterator[Finding]:
    for name, check in PARTS:
        try:
            yield from check(asked)
        except Exception as error:  # noqa: BLE001 - one check, whatever ails it, stops no other
            told = f"can't be checked: {type(error).__name__}: {error}".partition("\n")[0]
            yield warning(name, told, "please send us this line")


def _versions(asked: Asked) -> Iterator[Finding]:
    yield check_python(platform.python_version(), platform.machine(), platform.system())
    yield check_pins(requires("pomona-serve") or (), _installed)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _macos(asked: Asked) -> Iterator[Finding]:
    if platform.system() != "Darwin":
        yield skipped("macOS", f"this is {platform.system()}, which has no {MACS_ALONE}")
        return
    memory_bytes = psutil.virtual_memory().total
    yield macos.check_version(readings.output(macos.VERSION))
    yield macos.check_wired_limit(readings.output(macos.WIRED_LIMIT), memory_bytes)
    if asked.has_engine:
        tools = readings.output(macos.TOOLS)
        yield macos.check_tool_chain(
            tools,
            is_checkout=readings.is_checkout(),
            has_compiler=readings.has_compiler(tools),
        )
    unattended = asked.unattended
    yield macos.check_firewall(readings.output(macos.FIREWALL), unattended=unattended)
    yield from macos.check_power(readings.output(macos.POWER), unattended=unattended)
    yield macos.check_file_vault(readings.output(macos.FILE_VAULT), unattended=unattended)


def _engine(asked: Asked) -> Iterator[Finding]:
    if not asked.has_engine:
        return
    config = asked.config.engine
    yield from check_engine(
        read_engine(config),
        config.model,
        system=platform.system(),
        available_bytes=psutil.virtual_memory().available,
    )


def _disks(asked: Asked) -> Iterator[Finding]:
    places = {ray_folder(): "logs and what Ray spills"}
    if asked.has_engine:
        places[readings.hub().cache] = "models"
    for folder, what in places.items():
        yield check_disk(what, str(folder), readings.free_bytes(folder))


def _hub(asked: Asked) -> Iterable[Finding]:
    return check_hub(readings.hub()) if asked.has_engine else ()


def _ports(asked: Asked) -> Iterator[Finding]:
    gateway, host = asked.config.settings.gateway, _local(asked.config.settings.gateway.host)
    ours = {gateway.port: "the gateway", gateway.metrics_port: "its metrics"}
    wanted = [(number, purpose, host) for number, purpose in ours.items() if asked.has_gateway]
    if asked.has_engine:
        replica = asked.config.settings.replica
        wanted.append((replica.port, "the engine", _local(replica.host)))
    runs = readings.ray_runs()
    for number, purpose, at in wanted:
        if number:
            taken = readings.is_taken(number, at)
            answers = taken and readings.has_gateway(number, at)
            port = Port(number, purpose, is_taken=taken, has_gateway=answers)
            yield check_port(port, ray_runs=runs)
    for number in asked.rays_ports:
        taken = readings.is_taken(number, "127.0.0.1")
        yield check_port(Port(number, "Ray", is_rays=True, is_taken=taken), ray_runs=runs)


def _local(host: str | None) -> str:
    return host if host and host not in ("0.0.0.0", "::") else "127.0.0.1"


def _secrets(asked: Asked) -> Iterator[Finding]:
    gateway = asked.config.settings.gateway
    keys = gateway.api_keys_file and gateway.api_keys_file.expanduser()
    yield from check_modes(readings.modes(readings.secret_paths(asked.services)))
    # Its own client leaves it so, where others can't enter the home.
    yield from check_modes(readings.modes([readings.hub_token()]), warning)
    if not asked.has_gateway or gateway.api_keys:
        return
    problem, num_keys = "", 0
    if keys is not None:
        try:
            num_keys = len(read_keys_file(keys))
        except SettingsError as error:
            problem = str(error).partition("\n")[0]
        else:
            yield from check_modes(readings.modes([keys]))
    host = gateway.host or ""
    is_local = host == "localhost" or is_loopback(host)
    yield check_keys(keys, is_local=is_local, problem=problem, num_keys=num_keys)


def _certificates(asked: Asked) -> Iterator[Finding]:
    files = sorted(asked.services.glob("*.pem"))
    yield from check_certificates(files, readings.output, time.time())


PARTS: tuple[Part, ...] = (
    ("Versions", _versions),
    ("macOS", _macos),
    ("Engine", _engine),
    ("Disk", _disks),
    ("Hub", _hub),
    ("Ports", _ports),
    ("Secrets", _secrets),
    ("Certificates", _certificates),
)
