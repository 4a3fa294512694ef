from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from ops.cluster.__main__ import generate, main
from ops.cluster.credentials import STORE_FILES
from tests.support.ops.host_lists import (
    API_KEY,
    EXAMPLE,
    HUB_TOKEN,
    REPOSITORY,
    files_of,
    generated,
)

SECRET_FILES = {
    "auth_token",
    "environment",
    "head_environment",
    *STORE_FILES,
    "api_keys.yaml",
    "heartbeat_key",
}


def test_the_shipped_example_is_valid(tmp_path: Path) -> None:
    for shipped in (EXAMPLE, REPOSITORY / "configs" / "cluster.yaml"):
        shutil.copy(shipped, tmp_path)
    (tmp_path / "api_keys").write_text(API_KEY)
    assert main([str(tmp_path / EXAMPLE.name), str(tmp_path / "out"), "--new-cluster"]) == 0
    names = {host["name"] for host in yaml.safe_load(EXAMPLE.read_text())["hosts"]}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"secrets", "prometheus"}


def test_each_role_brings_its_files(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    names = {host: {path.name for path in (out / host).iterdir()} for host in os.listdir(out)}
    everywhere = {"environment", "auth_token", "pomona"}
    everywhere |= {"install", "uninstall", "pomona-start", "pomona-stop", "pomona-clean"}
    mac = {"com.pomona.clean.plist"}
    mac_ray = {"com.pomona.ray.plist", "pomona-ray"}
    store = {"pomona-store", "pomona-store.service", "redis.conf"}
    server = {"store-ca.pem", "store-server.pem", "store-server.key"}
    client = {"store-ca.pem", "store-client.pem", "store-client.key"}
    head = {"com.pomona.head.plist", "pomona-head", "head_environment"}
    deployed = {"pomona-deploy", "cluster.yaml", "api_keys.yaml"}
    edge = {
        "pomona-ray",
        "pomona-ray.service",
        "pomona-clean.service",
        "pomona-clean.timer",
        "api_keys.yaml",
    }
    assert names["studio-1"] == everywhere | mac | mac_ray
    assert names["head"] == everywhere | mac | head | client | deployed
    assert names["edge-1"] == everywhere | edge | store | server
    heartbeat = {"pomona-heartbeat", "pomona-heartbeat.service", "heartbeat_key"}
    assert names["edge-2"] == everywhere | edge | heartbeat


def test_without_the_role_every_host_is_a_gateway(content: dict[str, Any], tmp_path: Path) -> None:
    content["hosts"] = [host for host in content["hosts"] if "gateway" not in host["roles"]]
    content["heartbeat"]["host"] = "head"
    out = generated(content, tmp_path)
    assert (out / "studio-1" / "api_keys.yaml").exists()
    assert not (out / "head" / "store-client.key").exists()
    assert "REDIS" not in (out / "head" / "head_environment").read_text()
    # Not on the head's own raylet, which would put two on its host.
    for host in ("head", "studio-1"):
        assert '"gateway": 1' in (out / host / "pomona-ray").read_text()
    assert "--resources" not in (out / "head" / "pomona-head").read_text()


def test_secrets_are_in_private_files_alone(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    token = (out / "secrets" / "auth_token").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    keys = [path.read_text() for path in (out / "secrets").glob("*.key")]
    assert len(keys) == 2
    for path in files_of(out):
        mode = path.stat().st_mode & 0o777
        if path.name in SECRET_FILES:
            assert mode == 0o600, path
        else:
            text = path.read_text()
            assert not any(secret in text for secret in (token, API_KEY, HUB_TOKEN, *keys)), path
            assert mode in (0o644, 0o755), path
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in out.iterdir())
    assert HUB_TOKEN in (out / "studio-1" / "environment").read_text()


def test_a_second_run_changes_nothing(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_of(out)}
    assert generate(tmp_path / "hosts.yaml", out) == ()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_of(out)} == before


def test_a_new_host_changes_no_other_and_shares_their_secrets(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    new = {"name": "new", "address": "10.0.0.20", "system": "macos", "roles": ["engine"]}
    content["hosts"].append(new)
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(content))
    assert generate(tmp_path / "hosts.yaml", out) == ("new", "prometheus")
    tokens = {(out / host / "auth_token").read_text() for host in ("new", "head", "studio-1")}
    assert len(tokens) == 1


def test_what_a_host_no_longer_needs_is_removed(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    content["hosts"][0]["roles"] = ["gateway"]
    generated(content, tmp_path)
    assert not list((out / "edge-1").glob("*store*"))


def test_a_mode_that_somebody_loosened_is_set_again(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    (out / "head" / "environment").chmod(0o644)
    assert generate(tmp_path / "hosts.yaml", out) == ("head",)
    assert (out / "head" / "environment").stat().st_mode & 0o777 == 0o600
