"""How many replicas there are to be, by hosts and by load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle
from ray.serve.config import AutoscalingContext

from deployments.backend import EngineConfig
from deployments.serve.autoscaling import (
    LOAD,
    LOST_HOST_S,
    Delayed,
    HostPolicy,
    autoscaling_config,
    engine_load,
    replicas_for,
)
from deployments.settings import AutoscalingSettings, SettingsError, parse_settings
from tests.support.deployments.fake_backend import FakeBackend

pytestmark = pytest.mark.serve

LOADS = st.floats(0, 100)
COUNTS = st.integers(1, 50)
TARGETS = st.floats(0.1, 1)


@given(LOADS, COUNTS, TARGETS)
def test_a_constant_load_moves_nothing_twice(load: float, current: int, target: float) -> None:
    settled = replicas_for(load, current, target)
    assert replicas_for(load, settled, target) == settled


@given(LOADS, LOADS, COUNTS, TARGETS)
def test_more_load_never_calls_for_fewer(
    one: float, other: float, current: int, target: float
) -> None:
    less, more = sorted((one, other))
    assert replicas_for(less, current, target) <= replicas_for(more, current, target)


@given(LOADS, COUNTS, TARGETS)
def test_the_load_fits(load: float, current: int, target: float) -> None:
    wanted = replicas_for(load, current, target)
    assert wanted >= load / target
    if wanted < current:
        assert wanted <= load / (target * 0.8) + 1


@given(
    st.lists(st.tuples(st.floats(0.1, 20), st.integers(0, 9)), min_size=1),
    st.floats(0, 30),
    st.floats(0, 30),
)
def test_a_delay_is_kept_in_both_directions(
    wishes: list[tuple[float, int]], up_s: float, down_s: float
) -> None:
    delayed, current, now = Delayed(up_s, down_s), 5, 0.0
    history = [(now, current)]
    for seconds, wanted in wishes:
        now += seconds
        history.append((now, wanted))
        followed = delayed.follow(now, current, wanted)
        if followed > current:
            assert all(wish >= followed for at, wish in history if at >= now - up_s)
        if followed < current:
            assert all(wish <= followed for at, wish in history if at >= now - down_s)
        current = followed


@dataclass
class Cluster:
    """Hosts by name, each with a replica unless Serve has yet to start it."""

    policy: HostPolicy
    hosts: int = 3
    running: int = 3
    target: int = 3
    now: float = 1000.0
    loads: dict[str, float] = field(default_factory=dict)

    def after(self, seconds: float) -> int:
        self.now += seconds
        self.target, _ = self.policy(
            AutoscalingContext(
                deployment_id=None,
                deployment_name="",
                app_name="",
                current_num_replicas=self.running,
                target_num_replicas=self.target,
                running_replicas=[],
                total_num_requests=0.0,
                total_queued_requests=0.0,
                aggregated_metrics={LOAD: self.loads} if self.loads else {},
                raw_metrics={},
                capacity_adjusted_min_replicas=0,
                capacity_adjusted_max_replicas=100,
                policy_state={},
                last_scale_up_time=None,
                last_scale_down_time=None,
                current_time=self.now,
                config=None,
            )
        )
        return self.target


def cluster(monkeypatch: pytest.MonkeyPatch, **scaling: Any) -> Cluster:
    made = Cluster(HostPolicy(resource="mlx", **scaling))

    def nodes() -> list[dict[str, Any]]:
        living = [{"Alive": True, "Resources": {"mlx": 1.0}} for _ in range(made.hosts)]
        others = [{"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"mlx": 1.0}}]
        return [*living, *others]

    monkeypatch.setattr(ray, "nodes", nodes)
    return made


def test_a_host_that_joins_gets_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = cluster(monkeypatch)
    assert fleet.after(1) == 3
    fleet.hosts = 4
    assert fleet.after(1) == 4
    assert cluster(monkeypatch, max_replicas=2).after(1) == 2


def test_a_lost_host_costs_no_replica_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = cluster(monkeypatch)
    fleet.after(1)
    fleet.hosts = 2
    assert fleet.after(LOST_HOST_S + 1) == 3, "Serve would choose among three, of which two live"
    fleet.running = 2
    assert fleet.after(0.1) == 2


def test_hosts_that_are_missing_for_a_moment_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = cluster(monkeypatch)
    fleet.after(1)
    # A controller that starts again counts no replica as running at first.
    fleet.hosts, fleet.running = 1, 0
    assert fleet.after(LOST_HOST_S - 1) == 3
    fleet.hosts = 3
    assert fleet.after(2) == 3


def test_a_controller_that_starts_again_before_hosts_are_back_keeps_their_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = cluster(monkeypatch)
    fleet.hosts, fleet.running = 1, 0
    assert fleet.after(0) == 3
    fleet.hosts, fleet.running = 3, 3
    assert fleet.after(LOST_HOST_S - 1) == 3
    fleet = cluster(monkeypatch)
    fleet.hosts, fleet.running = 1, 0
    fleet.after(0)
    fleet.running = 1
    assert fleet.after(LOST_HOST_S + 1) == 1, "they did not come back"


def test_load_calls_engines_quickly_and_lets_them_go_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = cluster(monkeypatch, min_replicas=1, target_load=0.5)
    fleet.hosts, fleet.running, fleet.target = 4, 1, 1
    assert fleet.after(0) == 1, "nothing is known of the load yet"
    fleet.loads = {"a": 0.9}
    assert fleet.after(1) == 1
    assert fleet.after(9.5) == 2
    fleet.loads = {"a": 5.0, "b": 5.0}
    fleet.after(1)
    assert fleet.after(10.5) == 4, "no more than there are hosts"
    fleet.running = 4
    fleet.loads = dict.fromkeys("abcd", 0.1)
    assert fleet.after(1) == 4
    assert fleet.after(590) == 4
    assert fleet.after(15) == 1


def test_a_burst_is_not_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = cluster(monkeypatch, min_replicas=1, downscale_delay_s=60)
    fleet.loads = {"a": 0.1}
    assert fleet.after(0) == 3
    fleet.loads = {"a": 1.5}
    assert fleet.after(50) == 3
    fleet.loads = {"a": 0.1}
    assert fleet.after(20) == 3
    assert fleet.after(50) == 1


async def test_a_full_engine_has_a_load_of_one_and_more_waits() -> None:
    backend = FakeBackend()
    await backend.start(EngineConfig.model_validate({"max_num_seqs": 4}))
    assert engine_load(backend.stats(), 4) == 0.0
    backend._blocks_used = 512
    assert engine_load(backend.stats(), 4) == 0.5
    backend.live.value, backend._num_waiting = 12, 8
    assert engine_load(backend.stats(), 4) == 3.0


def test_serve_gets_the_policy_and_no_bounds_of_its_own() -> None:
    config = autoscaling_config(
        resource="mlx", initial=5, scaling=AutoscalingSettings(max_replicas=2)
    )
    assert config.initial_replicas == 2
    made = config.policy.get_policy()(**config.policy.policy_kwargs)
    assert type(made).__name__ == "HostPolicy"
    assert cloudpickle.loads(config.policy.get_serialized_policy_def())


def test_few_engines_are_not_more_than_many() -> None:
    with pytest.raises(SettingsError, match=r"min_replicas must be at most max_replicas \(2\)"):
        parse_settings({"autoscaling": {"min_replicas": 3, "max_replicas": 2}})
    assert parse_settings({"autoscaling": {"min_replicas": 3}}).autoscaling.max_replicas is None
    assert math.isclose(parse_settings({}).autoscaling.target_load, 0.7)
