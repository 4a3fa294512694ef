"""The heartbeat's service: its script, and an API key of its own."""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import yaml

from deployments.gateway.access.keys_file import MIN_WEIGHT, YAML_SUFFIXES
from ops.cluster.host_list import Heartbeat, Host, HostList, HostListError
from ops.cluster.scripts import beginning

KEY_FILE = "heartbeat_key"
KEY_NAME = "heartbeat"


def heartbeat_key(token: str) -> str:
    """Made from the cluster's token, so that there is no other secret to keep; nobody gets the
    token from it."""
    return hmac.digest(token.encode(), b"pomona heartbeat", "sha256").hex()


def with_heartbeat_key(path: Path, text: str, key: str) -> str:
    """The API keys of the file ``path``, and the heartbeat's after them; in YAML with the least
    weight, so that clients keep their parts of an engine. A file of lines has no weights.

    Raises ``HostListError`` if its name is taken.
    """
    if path.suffix not in YAML_SUFFIXES:
        return f"{text.rstrip()}\n{key}\n"
    content = yaml.safe_load(text)
    if any(entry["name"] == KEY_NAME for entry in content["keys"]):
        raise HostListError(f"api_keys: the name {KEY_NAME} is taken by the heartbeat's own key")
    digest = sha256(key.encode()).hexdigest()
    content["keys"].append({"name": KEY_NAME, "sha256": digest, "weight": MIN_WEIGHT})
    return yaml.safe_dump(content, sort_keys=False)


def heartbeat_script(
    host: Host, hosts: HostList, heartbeat: Heartbeat, models: Sequence[str], *, has_key: bool
) -> str:
    start = beginning("Asks what clients ask, every few seconds; a unit starts it again.")
    arguments = [
        f"--listen {host.address}:{hosts.heartbeat_port}",
        *([f'--api-key-file "$here/{KEY_FILE}"'] if has_key else []),
        *(f"--url {shlex.quote(url)}" for url in heartbeat.urls),
        *(f"--model {shlex.quote(model)}" for model in models),
    ]
    return start + " \\\n    ".join(["exec python -m ops.heartbeat", *arguments]) + "\n"
