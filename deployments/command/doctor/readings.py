"""What is read of this machine, for checks that read nothing themselves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil
from huggingface_hub import constants, get_token

from deployments.command.doctor.hub import Hub
from deployments.launch.direct import open_directly
from deployments.launch.private_files import ray_folder

COMMAND_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 1.0
RAYS_PROCESSES = ("raylet", "gcs_server")


def output(command: tuple[str, ...]) -> str | None:
    """What ``command`` prints; None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def is_taken(port: int, host: str) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def has_gateway(port: int, host: str) -> bool:
    """Whether it is a gateway of Pomona that listens there."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/targets"
    try:
        with open_directly(url, timeout=COMMAND_TIMEOUT_S) as response:
            groups = json.load(response)
            return any(one["labels"]["component"] == "gateway" for one in groups)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def ray_runs() -> bool:
    return any(one.info["name"] in RAYS_PROCESSES for one in psutil.process_iter(["name"]))


def hub() -> Hub:
    cache = Path(constants.HF_HUB_CACHE)
    return Hub(
        cache=cache,
        may_write=os.access(existing(cache), os.W_OK),
        has_token=get_token() is not None,
        is_offline=constants.HF_HUB_OFFLINE,
    )


def is_checkout() -> bool:
    """Whether this package is its source, and not what a wheel has of it."""
    return (Path(__file__).resolve().parents[3] / "CMakeLists.txt").is_file()


def has_compiler(tools: str | None) -> bool:
    """Whether there are Apple's compiler and ``make``; ``tools``: what ``xcode-select -p`` says."""
    folder = Path((tools or "").strip())
    own = folder / "Toolchains" / "XcodeDefault.xctoolchain"
    compilers = [one / "usr" / "bin" / "clang++" for one in (folder, own)]
    return (folder / "usr" / "bin" / "make").is_file() and any(one.is_file() for one in compilers)


def existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that there is."""
    return next(one for one in (path, *path.parents) if one.exists())


def free_bytes(path: Path) -> int:
    return shutil.disk_usage(existing(path)).free


def secret_paths(services: Path) -> list[Path]:
    """Where Ray's token and a cluster's secrets would lie; ``services`` is the folder of the
    cluster's files."""
    found = [Path.home() / ".ray", Path.home() / ".ray" / "auth_token", ray_folder()]
    found += [services / name for name in ("environment", "auth_token", "heartbeat_key")]
    return [*found, *services.glob("*.key")]


def hub_token() -> Path:
    """Where Hugging Face's client would keep it."""
    return Path(constants.HF_TOKEN_PATH)


def modes(paths: Iterable[Path]) -> dict[Path, int]:
    """Of those that are there."""
    found = {}
    for path in paths:
        try:
            found[path] = path.stat().st_mode
        except OSError:
            continue
    return found
