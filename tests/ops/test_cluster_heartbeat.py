"""The heartbeat as a service of a host in the list."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.gateway.access.api_keys import key_digest
from deployments.gateway.access.keys_file import MIN_WEIGHT, read_keys_file
from ops.cluster.host_list import HostListError
from tests.support.ops.host_lists import API_KEY, REPOSITORY, generated

DEADLINE_S = 60.0


def arguments(out: Path) -> list[str]:
    script = (out / "edge-2" / "pomona-heartbeat").read_text()
    return shlex.split(script.partition("exec ")[2].replace("\\\n", " "))


def test_one_host_asks_what_clients_ask(content: dict[str, Any], tmp_path: Path) -> None:
    content["heartbeat"]["urls"] = ["https://one.example.com", "http://10.0.0.3:80"]
    out = generated(content, tmp_path)
    assert arguments(out) == [
        *("python", "-m", "ops.heartbeat", "--listen", "10.0.0.3:8407"),
        *("--api-key-file", "$here/heartbeat_key"),
        *("--url", "https://one.example.com", "--url", "http://10.0.0.3:80"),
        *("--model", "Qwen3-0.6B-4bit"),
    ]
    assert [path.parent.name for path in out.rglob("*heartbeat*.service")] == ["edge-2"]
    targets = json.loads((out / "prometheus" / "heartbeats.json").read_text())
    assert targets == [{"targets": ["10.0.0.3:8407"], "labels": {"host": "edge-2"}}]


@pytest.mark.parametrize("keys", ["keys.yaml", "keys"])
def test_it_has_a_key_of_its_own_that_gateways_admit(
    keys: str, content: dict[str, Any], tmp_path: Path
) -> None:
    if keys == "keys":
        (tmp_path / keys).write_text(f"{API_KEY}\n")
        (tmp_path / keys).chmod(0o600)
        config = tmp_path / "cluster.yaml"
        config.write_text(config.read_text().replace("api_keys.yaml", "api_keys"))
    out = generated(content | {"api_keys": keys}, tmp_path)
    path = out / "edge-2" / "heartbeat_key"
    assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_text()
    assert key not in (out / "secrets" / "auth_token").read_text()
    for host in ("head", "edge-1", "edge-2"):
        [installed] = (out / host).glob("api_keys*")
        admitted = [digest for one in read_keys_file(installed) for digest in one.digests]
        assert admitted == [key_digest(API_KEY), key_digest(key)]
        if keys == "keys.yaml":
            assert [one.weight for one in read_keys_file(installed)] == [1.0, MIN_WEIGHT]
    assert [found.parent.name for found in out.rglob("heartbeat_key")] == ["edge-2"]


def test_without_one_nothing_is_made_for_it(content: dict[str, Any], tmp_path: Path) -> None:
    del content["heartbeat"]
    out = generated(content, tmp_path)
    assert {path.name for path in out.rglob("*heartbeat*")} == {"heartbeats.json"}
    assert json.loads((out / "prometheus" / "heartbeats.json").read_text()) == []
    assert len(read_keys_file(out / "edge-1" / "api_keys.yaml")) == 1


def test_a_host_that_is_not_there_and_a_name_that_is_taken_are_refused(
    content: dict[str, Any], tmp_path: Path
) -> None:
    away = content | {"heartbeat": {"host": "away", "urls": ["https://a"]}}
    with pytest.raises(HostListError, match="heartbeat: there is no host away"):
        generated(away, tmp_path)
    keys = tmp_path / "keys.yaml"
    keys.write_text(keys.read_text().replace("name: one", "name: heartbeat"))
    with pytest.raises(HostListError, match="the name heartbeat is taken"):
        generated(content, tmp_path)


def test_its_script_asks_and_tells(content: dict[str, Any], tmp_path: Path) -> None:
    """As systemd and launchd start it, on a host that is this machine."""
    with socket.create_server(("127.0.0.1", 0)) as gateway, closing(socket.socket()) as probe:
        probe.bind(("127.0.0.2", 0))
        content |= {"package": str(REPOSITORY), "heartbeat_port": probe.getsockname()[1]}
        content["heartbeat"]["urls"] = [f"http://127.0.0.1:{gateway.getsockname()[1]}"]
        [host] = (one for one in content["hosts"] if one["name"] == "edge-2")
        host["address"] = "127.0.0.2"
        out = generated(content, tmp_path)
        unit = (out / "edge-2" / "pomona-heartbeat.service").read_text()
        assert "ExecStart=/etc/pomona/pomona-heartbeat\n" in unit
        probe.close()
        process = subprocess.Popen(
            [out / "edge-2" / "pomona-heartbeat"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        )
        try:
            gateway.settimeout(DEADLINE_S)
            client, _ = gateway.accept()
            with client, client.makefile("rb") as sent:
                assert sent.readline() == b"POST /v1/completions HTTP/1.1\r\n"
                key = (out / "edge-2" / "heartbeat_key").read_bytes().strip()
                assert any(key in line for line in iter(sent.readline, b"\r\n"))
            told = httpx.get(f"http://127.0.0.2:{content['heartbeat_port']}/metrics").text
            assert 'pomona_heartbeat_requests_total{model="Qwen3-0.6B-4bit"' in told
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
