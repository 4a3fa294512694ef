from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.cluster.__main__ import main
from ops.cluster.host_list import HostList, HostListError
from tests.support.ops.host_lists import EXAMPLE, generated

MISTAKES = [
    ({"hosts": []}, r"hosts: .*at least 1"),
    ({"hosts.0.roles": ["worker"]}, r"hosts\.0\.roles\.0: .*'head', 'engine'.*not 'worker'"),
    ({"hosts.0.roles": []}, r"hosts\.0\.roles: .*at least 1"),
    ({"hosts.0.address": "edge-1.local"}, r"hosts\.0\.address: .*IPv4.*not 'edge-1.local'"),
    ({"hosts.0.name": "../edge"}, r"hosts\.0\.name: .*pattern.*not '\.\./edge'"),
    ({"hosts.0.name": "secrets"}, r"hosts\.0\.name: .*secrets"),
    ({"hosts.0.name": "prometheus"}, r"hosts\.0\.name: .*prometheus is taken"),
    ({"balancers": ["10.0.0.2"]}, r"balancers\.0: .*pattern.*not '10.0.0.2'"),
    ({"hosts.0.system": "windows"}, r"hosts\.0\.system: .*'macos' or 'linux'.*not 'windows'"),
    ({"hosts.0.cpus": 4}, r"hosts\.0\.cpus: unknown key; allowed here: address, name, num_cpus"),
    ({"hosts.1.name": "edge-1"}, r"hosts: name: edge-1 comes more than once"),
    ({"hosts.1.address": "10.0.0.2"}, r"hosts: address: 10\.0\.0\.2 comes more than once"),
    ({"hosts.1.roles": ["head"]}, r"exactly one host may have the role head, not 2"),
    ({"hosts.1.roles": ["store"]}, r"at most one host may have the role store, not 2"),
    ({"ray_port": 6379}, r"_port: 6379 comes more than once"),
    ({"metrics_port": 21392}, r"metrics_port: 21392 is one of 10002 to 29999, .* workers have"),
    ({"client_port": 10002}, r"client_port: 10002 is one of 10002 to 29999, .* workers have"),
    ({"ray_port": 80}, r"ray_port: .*greater than or equal to 1024, not 80"),
    ({"state": "/a/folder/too/deep/for/the/sockets"}, r"state: .*at most 31 characters"),
    ({"services": "/etc/my pomona"}, r"services: .*pattern"),
    ({"user": "root; reboot"}, r"user: .*pattern"),
    ({"redis": "10.0.0.9"}, r"redis: unknown key; allowed here: agent_port, api_keys"),
    ({"environment": {"A B": "1"}}, r"environment\.A B"),
    ({"environment": {"HF_TOKEN": 1}}, r"environment\.HF_TOKEN: .*string$"),
    ({"config": "missing.yaml"}, r"config: .*missing\.yaml.*No such file"),
    ({"config": "keys.yaml"}, r"config: .*deployments\.app:"),
    ({"api_keys": "keys"}, r"api_keys: gateway.api_keys_file must be ~/.pomona/api_keys, not ~"),
    ({"api_keys": "missing.yaml"}, r"api_keys: .*No such file"),
    ({"api_keys": None}, r"api_keys: .*gateway\.api_keys_file is ~/\.pomona/api_keys\.yaml"),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=[str(one) for one, _ in MISTAKES])
def test_a_mistake_is_told_with_its_field(
    mistake: dict[str, Any], told: str, content: dict[str, Any], tmp_path: Path
) -> None:
    for path, value in mistake.items():
        *parents, last = path.split(".")
        section: Any = content
        for name in parents:
            section = section[int(name) if name.isdigit() else name]
        section[last] = value
    with pytest.raises(HostListError, match=told):
        generated(content, tmp_path)


def test_mistakes_end_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: 3\n")
    assert main([str(tmp_path / "hosts.yaml"), str(tmp_path / "out")]) == 2
    assert "hosts: " in capsys.readouterr().err
    (tmp_path / "hosts.yaml").write_text("[")
    assert main([str(tmp_path / "hosts.yaml"), str(tmp_path / "out"), "--new-cluster"]) == 2
    assert not (tmp_path / "out").exists()


def test_the_example_tells_the_defaults() -> None:
    example = yaml.safe_load(EXAMPLE.read_text())
    own = ("environment", "api_keys", "balancers", "heartbeat")
    for name, field in HostList.model_fields.items():
        if name in example and not field.is_required() and name not in own:
            assert example[name] == field.default, name
    assert IPv4Address(example["hosts"][0]["address"]).is_private
