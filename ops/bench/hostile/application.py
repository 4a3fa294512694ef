"""The application as it is shipped, started from a terminal, with a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from ops.bench.hostile.bodies import CUSTOM_TOOLS_TEMPLATE
from ops.bench.overload.servers import ONE_CORE

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
ORDINARY_KEY, ATTACKERS_KEY, LIMITED_KEY = (
    f"a-key-of-the-benchmark-{name}" for name in ("ordinary", "attacker", "limited")
)
KEYS = [
    {"name": "ordinary", "key": ORDINARY_KEY},
    {"name": "attacker", "key": ATTACKERS_KEY},
    {"name": "limited", "key": LIMITED_KEY, "tokens_per_minute": 1000},
]
_ACTORS = {"gateway": "ServeReplica:pomona:Gateway", "engine": "ServeReplica:pomona:EngineReplica"}


@dataclass(frozen=True)
class Application:
    gateway_url: str
    engine_url: str
    folder: Path
    launcher: subprocess.Popen[bytes]

    def processes(self) -> dict[str, psutil.Process]:
        """Gateway and engine as they are now: Serve replaces those that fail."""
        children = psutil.Process(self.launcher.pid).children(recursive=True)
        lines = {child: " ".join(child.cmdline()) for child in children if child.is_running()}
        return {
            name: child
            for name, actor in _ACTORS.items()
            for child, line in lines.items()
            if actor in line
        }


@contextmanager
def application() -> Iterator[Application]:
    # The paths of Ray's sockets are long, and may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="pomona-", dir="/tmp"))
    gateway, engine = free_ports(2)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(_config(folder, gateway, engine)))
    environment = {name: value for name, value in os.environ.items() if "RAY_" not in name}
    environment |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), **ONE_CORE}
    with (folder / "log").open("wb") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "deployments.command", "serve", "--config", str(config)],
            env=environment | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        gateway_url, engine_url = (f"http://{HOST}:{port}" for port in (gateway, engine))
        wait_until_ready(gateway_url, launcher, folder / "log")
        running = Application(gateway_url, engine_url, folder, launcher)
        yield running
    finally:
        launcher.send_signal(signal.SIGINT)
        launcher.wait(STOP_TIMEOUT_S)
        shutil.rmtree(folder)


def _config(folder: Path, gateway: int, engine: int) -> dict[str, object]:
    keys = folder / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": KEYS}))
    keys.chmod(0o600)
    template = folder / "template.jinja"
    template.write_text(CUSTOM_TOOLS_TEMPLATE)
    arguments = {
        "engine": {"model": "demo", "chat_template": str(template)},
        "gateway": {
            "host": HOST,
            "port": gateway,
            "metrics_host": HOST,
            "api_keys_file": str(keys),
        },
        "replica": {"host": HOST, "port": engine},
    }
    return {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": "pomona",
                "route_prefix": "/",
                "import_path": "deployments.app:build_app",
                "args": arguments,
            }
        ],
    }


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises ``RuntimeError`` with what ``process`` says when it ends first, or takes too long."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"{url} is not ready:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """All different."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
