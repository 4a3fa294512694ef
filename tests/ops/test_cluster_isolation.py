from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RpcError

from ops.cluster import isolation
from ops.cluster.isolation import AT_ONCE_PROBES, LOST_AFTER_PROBES, Silence, probe
from tests.support.ops.host_lists import generated

pytestmark = pytest.mark.serve

HOSTS = ("a", "b", "c", "d", "e")


def after(
    silence: Silence, num_probes: int, silent: str = "", hosts: tuple[str, ...] = HOSTS
) -> bool:
    for _ in range(num_probes):
        silence.take({host: host not in silent for host in hosts})
    return silence.is_isolation


def heard() -> Silence:
    silence = Silence()
    assert not after(silence, 1)
    return silence


def test_a_head_that_loses_most_hosts_at_once_is_isolated() -> None:
    silence = heard()
    assert not after(silence, LOST_AFTER_PROBES - 1, "abc")
    assert after(silence, 1, "abc")


def test_a_short_cut_isolates_nobody() -> None:
    silence = heard()
    for _ in range(3):
        assert not after(silence, LOST_AFTER_PROBES - 1, "abcde")
        assert not after(silence, 1)


def test_half_of_the_hosts_are_not_most() -> None:
    assert not after(heard(), LOST_AFTER_PROBES, "ab")
    silence = Silence()
    after(silence, 1, hosts=("a", "b", "c", "d"))
    assert not after(silence, LOST_AFTER_PROBES, "ab", hosts=("a", "b", "c", "d"))


def test_the_only_other_host_may_be_gone_itself() -> None:
    silence = Silence()
    after(silence, 1, hosts=("a",))
    assert not after(silence, LOST_AFTER_PROBES, "a", hosts=("a",))


def test_hosts_that_are_lost_one_by_one_are_not_lost_with_the_network() -> None:
    silence = heard()
    for silent in ("a", "ab", "abc", "abcd", "abcde"):
        assert not after(silence, LOST_AFTER_PROBES + AT_ONCE_PROBES, silent)


def test_hosts_that_the_head_has_never_reached_are_no_reason_to_end() -> None:
    """Otherwise a head whose hosts are gone for good would start again for ever."""
    assert not after(Silence(), 2 * LOST_AFTER_PROBES, "abcd")


def test_hosts_that_the_gcs_has_given_up_do_not_count() -> None:
    silence = heard()
    after(silence, LOST_AFTER_PROBES - 1, "abc")
    assert not after(silence, 1, hosts=("d", "e"))


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_host_without_a_raylet_answers(listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refusing = closed.getsockname()[1]
        assert probe({"127.0.0.1": refusing}) == {"127.0.0.1": True}
    assert probe({"127.0.0.1": listening}) == {"127.0.0.1": True}
    assert probe({}) == {}

    def unreachable(*address: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert probe({"127.0.0.1": listening}) == {"127.0.0.1": False}


def test_the_watchdog_ends_the_gcs_and_says_which_hosts_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [{"a": True, "b": True, "c": True}]
    rounds += [{"a": False, "b": False, "c": True}] * LOST_AFTER_PROBES
    answers = iter(rounds)
    killed: list[int] = []
    hosts = {"a": 1, "b": 2, "c": 3}
    told = iter([RpcError("not yet"), *[hosts] * len(rounds)])

    def other_hosts(gcs: object) -> dict[str, int]:
        answer = next(told)
        if isinstance(answer, RpcError):
            raise answer
        return answer

    monkeypatch.setattr(isolation, "GcsClient", lambda address: address)
    monkeypatch.setattr(isolation, "_other_hosts", other_hosts)
    monkeypatch.setattr(isolation, "probe", lambda ports: next(answers))
    monkeypatch.setattr(isolation, "_kill_gcs", killed.append)
    monkeypatch.setattr(isolation, "PAUSE_S", 0)
    isolation.watch(tmp_path / "isolated", "head:6379", os.getppid())
    assert killed == [os.getppid()]
    assert json.loads((tmp_path / "isolated").read_text()) == hosts
    assert next(answers, None) is None


def test_a_head_that_was_isolated_waits_for_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{"a": False, "b": False}, {"a": False, "b": True}])
    monkeypatch.setattr(isolation, "probe", lambda ports: next(answers))
    monkeypatch.setattr(isolation, "PAUSE_S", 0)
    file = tmp_path / "isolated"
    isolation.wait(file)
    file.write_text('{"a": 1, "b": 2}')
    isolation.wait(file)
    assert next(answers, None) is None
    assert not file.exists()


def test_only_a_head_with_a_store_may_end(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    watching = "python -m ops.cluster.isolation watch"
    assert watching in (out / "head" / "pomona-ray").read_text()
    assert watching not in (out / "studio-1" / "pomona-ray").read_text()
    for host in content["hosts"]:
        host["roles"] = [role for role in host["roles"] if role != "store"]
    out = generated(content, tmp_path)
    assert watching not in (out / "head" / "pomona-ray").read_text()
