"""What `ops.cluster` writes for Prometheus, and the load balancers' view of the same list."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.cluster.host_list import HostListError
from ops.load_balancer.__main__ import main as load_balancer
from tests.support.ops.host_lists import generated

SHIPPED_RULES = Path(__file__).resolve().parents[2] / "ops" / "prometheus" / "rules"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool is not installed: it is in Debian's package prometheus",
)


def set_engines(tmp_path: Path, **sections: dict[str, Any]) -> None:
    """Adds ``sections`` to the settings of the application with the engines."""
    path = tmp_path / "cluster.yaml"
    config = yaml.safe_load(path.read_text())
    config["applications"][0]["args"] |= sections
    path.write_text(yaml.safe_dump(config))


def prometheus(out: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((out / "prometheus" / "prometheus.yml").read_text())
    return config


def asked_gateways(out: Path) -> list[str]:
    [job] = [job for job in prometheus(out)["scrape_configs"] if job["job_name"] == "pomona"]
    return [one["url"] for one in job["http_sd_configs"]]


def listed(out: Path, name: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = json.loads((out / "prometheus" / name).read_text())
    return groups


def wanted(out: Path) -> dict[str, str]:
    rules = yaml.safe_load((out / "prometheus" / "cluster.rules.yml").read_text())
    [group] = rules["groups"]
    return {
        rule["labels"]["component"]: rule["expr"]
        for rule in group["rules"]
        if rule["record"] == "pomona:replicas:wanted"
    }


def test_prometheus_knows_when_the_stores_certificates_end(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    rules = yaml.safe_load((out / "prometheus" / "cluster.rules.yml").read_text())
    ends = {
        rule["labels"]["file"]: float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in rules["groups"][0]["rules"]
        if rule["record"] == "pomona:certificate:expiry_timestamp_seconds"
    }
    assert set(ends) == {"store-ca.pem", "store-server.pem", "store-client.pem"}
    assert all(3648 < (end - time.time()) / 86400 < 3650 for end in ends.values())


@needs_promtool
def test_prometheus_accepts_its_folder(content: dict[str, Any], tmp_path: Path) -> None:
    config = generated(content, tmp_path) / "prometheus" / "prometheus.yml"
    command = ["promtool", "check", "config", "--lint=all", "--lint-fatal", str(config)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(list(SHIPPED_RULES.iterdir())) + 1} rule files found" in run.stdout
    assert "WARNING" not in run.stdout


def test_every_gateway_is_asked_for_the_others(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    assert asked_gateways(out) == [
        "http://10.0.0.2:8000/targets",
        "http://10.0.0.3:8000/targets",
    ]


def test_gateways_are_asked_at_the_port_that_their_settings_say(
    content: dict[str, Any], tmp_path: Path
) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(config.read_text().replace("port: 8000", "port: 9000"))
    assert asked_gateways(generated(content, tmp_path))[0] == "http://10.0.0.2:9000/targets"


def test_a_gateways_default_port_is_known(content: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(config.read_text().replace("port: 8000", "keep_alive_interval_s: 6"))
    assert asked_gateways(generated(content, tmp_path))[0] == "http://10.0.0.2:8000/targets"


def test_a_port_that_nobody_can_know_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(config.read_text().replace("port: 8000", "port: 0"))
    with pytest.raises(HostListError, match=r"gateway\.port: 0 is any port"):
        generated(content, tmp_path)


def test_ray_is_watched_on_every_host_that_it_runs_on(
    content: dict[str, Any], tmp_path: Path
) -> None:
    store = {"name": "store", "address": "10.0.0.9", "system": "linux", "roles": ["store"]}
    content["hosts"][0]["roles"] = ["gateway", "engine"]
    content["hosts"][3]["roles"] = ["head", "engine"]
    content["hosts"][2]["roles"] = ["engine"]
    content["hosts"].append(store)
    groups = listed(generated(content | {"metrics_port": 8092}, tmp_path), "hosts.json")
    # The head's host has two Rays, of which either may end alone.
    assert groups[0] == {
        "targets": ["10.0.0.11:8091"],
        "labels": {"host": "studio-1", "node": "10.0.0.11", "roles": "head"},
    }
    assert groups[1] == {
        "targets": ["10.0.0.2:8092"],
        "labels": {"host": "edge-1", "node": "10.0.0.2", "roles": "gateway,engine"},
    }
    hosts = [group["labels"]["host"] for group in groups]
    assert hosts == ["studio-1", "edge-1", "edge-2", "head", "studio-1", "studio-2", "mini-1"]
    assert groups[4]["labels"]["roles"] == "engine"


def test_balancers_are_watched_where_the_list_says(content: dict[str, Any], tmp_path: Path) -> None:
    groups = listed(generated(content, tmp_path), "balancers.json")
    assert groups == [{"targets": ["10.0.0.2:8405"]}, {"targets": ["10.0.0.3:8405"]}]


@pytest.mark.parametrize(
    ("sections", "engines"),
    [
        ({}, 3),
        ({"autoscaling": {"max_replicas": 2}}, 2),
        ({"autoscaling": {"min_replicas": 1}}, 1),
        ({"autoscaling": {"min_replicas": 2, "max_replicas": 3}}, 2),
        ({"autoscaling": {"min_replicas": 5}}, 3),
        ({"replica": {"resource": "mlx"}}, 3),
        ({"replica": {"resource": "of-ones-own"}}, 0),
    ],
    ids=str,
)
def test_as_many_engines_are_missed_as_the_settings_promise(
    sections: dict[str, Any], engines: int, content: dict[str, Any], tmp_path: Path
) -> None:
    set_engines(tmp_path, **sections)
    out = generated(content, tmp_path)
    assert wanted(out) == {"engine": f"vector({engines})", "gateway": "vector(2)"}


def test_rules_are_those_that_are_shipped_and_no_older_ones(
    content: dict[str, Any], tmp_path: Path
) -> None:
    folder = generated(content, tmp_path) / "prometheus"
    (folder / "old.rules.yml").write_text("groups: []")
    generated(content, tmp_path)
    shipped = {path.stem: path.read_text() for path in SHIPPED_RULES.iterdir()}
    written = {
        path.name.removesuffix(".rules.yml"): path.read_text()
        for path in folder.glob("*.rules.yml")
    }
    assert written.keys() - shipped.keys() == {"cluster"}
    assert written.items() >= shipped.items()


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_load_balancers_have_the_gateways_and_settings_of_the_list(
    kind: str, content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(
        config.read_text().replace("port: 8000", "port: 8000\n        request_timeout_s: 70")
    )
    generated(content, tmp_path)
    assert load_balancer([kind, "--hosts", str(tmp_path / "hosts.yaml")]) == 0
    text = capsys.readouterr().out
    assert "10.0.0.2:8000" in text
    assert "10.0.0.3:8000" in text
    assert "100s" in text


def test_a_load_balancer_needs_either_the_list_or_gateways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_balancer(["haproxy"])
    assert "--hosts --gateway is required" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        load_balancer(["haproxy", "--hosts", str(tmp_path / "nowhere.yaml")])
    assert "nowhere.yaml" in capsys.readouterr().err
