from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml
from ray.serve.config import ProxyLocation
from ray.serve.schema import ServeDeploySchema

from deployments.gateway.access.api_keys import is_loopback
from deployments.gateway.access.watched_keys import KeySource
from deployments.launch.serve_config import ENGINES, GATEWAYS, applications, check
from deployments.serve.shipped_settings import GatewayReplicaSettings
from deployments.settings import SettingsError, parse_settings

pytestmark = pytest.mark.serve

CONFIGS = sorted(Path("configs").glob("*.yaml"))


def test_every_default_holds_without_any_args() -> None:
    settings = parse_settings({})
    assert settings.engine.backend == "mlx"
    assert settings.gateway.max_attempts == 3
    assert settings.replica.port == 0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            {"enginee": {}},
            "enginee: unknown key; allowed here: autoscaling, engine, gateway, observability, "
            "replica, responses, routing",
        ),
        (
            {"gateway": {"adress": "x"}},
            "gateway.adress: unknown key; allowed here: allow_priority, allowed_origins, "
            "api_keys, api_keys_file",
        ),
        ({"engine": {"block_size": 7}}, "engine.block_size: Input should be 8, 16 or 32, not 7"),
        ({"engine": {"max_num_seqs": 0}}, "engine.max_num_seqs: "),
        ({"replica": {"port": 70000}}, "replica.port: "),
        ({"routing": {"policy": "random"}}, "'least_outstanding_tokens', not 'random'"),
        ({"gateway": []}, "gateway: "),
        (
            {"gateway": {"stall_timeout_s": 6}},
            "gateway: stall_timeout_s must be at least twice keep_alive_interval_s (5), not 6",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(
    args: dict[str, object], expected: str
) -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings(args)
    assert expected in str(error.value)


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings({"engine": {"modle": "x", "max_num_seqs": "many"}, "replica": {"prot": 1}})
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert any(line.strip().startswith("replica.prot: unknown key") for line in lines)


def test_a_wrong_key_in_the_settings_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings({"gateway": {"api_keys": "hunter2"}})
    assert "hunter2" not in str(error.value)


def test_what_is_bound_has_no_key_in_it() -> None:
    settings = parse_settings({"gateway": {"api_keys": ["hunter2"], "max_attempts": 2}})
    assert "hunter2" not in repr(settings)
    bound = GatewayReplicaSettings.of(settings)
    assert b"hunter2" not in pickle.dumps(bound)
    assert bound.gateway.max_attempts == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configs_are_valid(path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key\n")
    config = yaml.safe_load(path.read_text())
    for application in config["applications"]:
        assert application["import_path"] in (GATEWAYS, ENGINES)
        if "api_keys_file" in application["args"].get("gateway", {}):
            application["args"]["gateway"]["api_keys_file"] = str(keys)
    assert ServeDeploySchema.model_validate(config).proxy_location is ProxyLocation.Disabled
    check(config)
    [(url, settings)] = applications(config)
    # Nobody may listen beyond loopback without keys.
    assert KeySource.of(settings.gateway) or settings.gateway.host == "127.0.0.1"
    assert url == "http://127.0.0.1:8000"


def test_a_file_that_is_no_serve_config_is_refused() -> None:
    with pytest.raises(SettingsError, match="applications"):
        check({"engine": {}})
