from __future__ import annotations

from pathlib import Path

import pytest
from ray import cloudpickle

from deployments.app import build_app
from deployments.environment import variables
from deployments.settings import SettingsError


def test_an_application_is_a_gateway_in_front_of_engines() -> None:
    app = build_app({"replica": {"num_replicas": 3, "drain_timeout_s": 7}})
    gateway = app._bound_deployment
    settings, keys, num_gateways, engines = gateway.init_args
    engine = engines._bound_deployment
    assert (gateway.name, engine.name) == ("Gateway", "EngineReplica")
    assert (bool(keys), num_gateways) == (False, 1)
    assert settings.gateway.max_attempts == 3
    assert engine.num_replicas == 3
    # One engine a host, and no limit of Serve's that would throttle before the engines' queues do.
    assert engine._replica_config.max_replicas_per_node == 1
    assert gateway.max_ongoing_requests >= 10_000
    # A single machine declares no resource, and must get its engine all the same.
    assert "resources" not in engine.ray_actor_options
    assert engine._deployment_config.graceful_shutdown_timeout_s == 7


def test_every_application_has_a_secret_of_its_own() -> None:
    engines = [build_app({})._bound_deployment.init_args[-1] for _ in range(3)]
    secrets = {engine._bound_deployment.init_args[1] for engine in engines}
    assert len(secrets) == 3
    assert all(len(secret) >= 32 for secret in secrets)


def test_keys_are_bound_as_digests_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("from-the-file\n")
    file.chmod(0o600)
    gateway = build_app({"gateway": {"api_keys": ["in-the-args"], "api_keys_file": str(file)}})
    *bound, engines = gateway._bound_deployment.init_args
    pickled = cloudpickle.dumps([bound, engines._bound_deployment.init_args])
    assert not any(key in pickled for key in (b"from-the-file", b"in-the-args"))
    ring = bound[1].keys()
    assert [ring.find(key).name for key in ("in-the-args", "from-the-file")] == [
        "settings-1",
        "line-1",
    ]


def test_wrong_args_are_one_readable_error() -> None:
    with pytest.raises(SettingsError, match=r"engine\.modle: unknown key"):
        build_app({"engine": {"modle": "demo"}})


def test_macs_get_the_variables_that_ray_wants_there() -> None:
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in variables("Linux")
    assert variables("Darwin").items() >= variables("Linux").items()
    assert variables("Darwin")["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"
