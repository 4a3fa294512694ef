from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle
from ray.serve import Application, Deployment
from ray.serve._private.common import DeploymentID

from deployments.app import build_app, build_engines
from deployments.settings import SettingsError

pytestmark = pytest.mark.serve


def test_an_application_is_a_gateway_in_front_of_engines() -> None:
    app = build_app({"autoscaling": {"max_replicas": 3}, "replica": {"drain_timeout_s": 7}})
    gateway = app._bound_deployment
    settings, keys, engines = gateway.init_args
    engine = engines._bound_deployment
    assert (gateway.name, engine.name) == ("Gateway", "EngineReplica")
    assert not keys
    assert settings.gateway.max_attempts == 3
    policy = engine._deployment_config.autoscaling_config.policy
    assert policy.policy_kwargs["max_replicas"] == 3
    # One engine a host, and no limit of Serve's that would throttle before the engines' queues do.
    assert engine._replica_config.max_replicas_per_node == 1
    assert gateway.max_ongoing_requests >= 10_000
    # A single machine declares no resource, and must get its engine all the same.
    assert not engine.ray_actor_options["resources"]
    assert not gateway.ray_actor_options["resources"]
    assert engine._deployment_config.graceful_shutdown_timeout_s == 7
    # Serve must not end a gateway before its streams have had their time.
    assert gateway._deployment_config.graceful_shutdown_timeout_s > 7


def test_responses_are_kept_by_one_deployment_of_their_own() -> None:
    store = build_app({"responses": {"max_bytes": 5}})._bound_deployment.init_kwargs["responses"]
    deployment = store._bound_deployment
    assert (deployment.name, deployment.num_replicas) == ("ResponseStore", 1)
    assert deployment.ray_actor_options["num_cpus"] == 0
    assert [settings.max_bytes for settings in deployment.init_args] == [5]
    nothing = build_app({"responses": {"max_bytes": 0}})._bound_deployment
    assert nothing.init_kwargs["responses"] is None
    others = build_app({"gateway": {"engines": "others"}})._bound_deployment
    assert others.init_kwargs["responses"] is not None


def test_engines_are_bound_nothing_that_is_the_gateways() -> None:
    first = build_app({"engine": {"model": "a"}})
    second = build_app(
        {
            "engine": {"model": "a"},
            "gateway": {"max_attempts": 9, "port": 8000, "api_keys": ["key"]},
            "routing": {"policy": "least_outstanding_tokens"},
        }
    )
    bound = [app._bound_deployment.init_args[-1]._bound_deployment for app in (first, second)]
    assert bound[0].init_args == bound[1].init_args
    assert bound[0].init_args[0].engine.model == "a"


def test_gateways_may_have_the_engines_of_another_application() -> None:
    gateway = build_app({"gateway": {"engines": "others", "port": 8000}})._bound_deployment
    engines = build_engines({"engine": {"model": "a"}})._bound_deployment
    handle = gateway.init_args[-1]
    assert handle.deployment_id == DeploymentID(name=engines.name, app_name="others")
    assert engines.init_args[0].engine.model == "a"


@pytest.mark.parametrize(
    ("build", "args", "expected"),
    [
        (build_app, {"gateway": {"engines": "others"}, "engine": {"model": "a"}}, "'others'"),
        (build_engines, {"routing": {}}, "routing: goes to the gateways' application"),
        (build_engines, {"responses": {}}, "responses: goes to the gateways' application"),
        (build_engines, {"engine": {"modle": "a"}}, "engine.modle: unknown key"),
    ],
)
def test_a_setting_of_the_other_application_is_refused(
    build: Callable[[dict[str, Any]], Application], args: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(expected)):
        build(args)


def hosts(*declared: dict[str, float]) -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": resources} for resources in declared]


@pytest.mark.parametrize(
    ("nodes", "gateways", "per_host", "engines"),
    [
        (hosts({"mlx": 1}, {"mlx": 1}, {}), 3, 1, 2),
        (hosts({"mlx": 1}, {"mlx": 1, "gateway": 1}, {"gateway": 1}), 2, 1, 2),
        # One that is alone has room for its successor.
        (hosts({"mlx": 1}, {"mlx": 1}, {"gateway": 1}), 1, 2, 2),
        ([*hosts({}, {}), {"Alive": False, "Resources": {}}], 2, 1, 2),
    ],
)
def test_replicas_go_where_their_resource_is(
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, Any]],
    gateways: int,
    per_host: int,
    engines: int,
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    gateway = build_app({})._bound_deployment
    engine = gateway.init_args[-1]._bound_deployment
    assert [initial(gateway), initial(engine)] == [gateways, engines]
    assert gateway._replica_config.max_replicas_per_node == per_host
    for deployment, resource in ((gateway, "gateway"), (engine, "mlx")):
        declared = any(resource in node["Resources"] for node in nodes)
        assert (resource in deployment.ray_actor_options["resources"]) == declared


def initial(deployment: Deployment) -> int | None:
    config = deployment._deployment_config.autoscaling_config
    assert config is not None
    return config.initial_replicas


def test_a_resource_that_is_named_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: hosts({"CPU": 8}))
    engine = build_engines({"replica": {"resource": "mlx"}})._bound_deployment
    assert initial(engine) == 0
    assert engine.ray_actor_options["resources"] == {"mlx": 1}


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
