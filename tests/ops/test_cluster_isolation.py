from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]
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


def test_a_head_that_loses_all_hosts_at_once_is_isolated() -> None:
    silence = heard()
    assert not after(silence, LOST_AFTER_PROBES - 1, "abcde")
    assert after(silence, 1, "abcde")


@pytest.mark.parametrize("silent", ["ab", "abc", "abcd"])
def test_a_head_that_reaches_a_host_is_not_isolated(silent: str) -> None:
    assert not after(heard(), LOST_AFTER_PROBES + AT_ONCE_PROBES, silent)


def test_two_of_three_hosts_may_be_gone_themselves() -> None:
    silence = Silence()
    after(silence, 1, hosts=("a", "b", "c"))
    for _ in range(LOST_AFTER_PROBES + AT_ONCE_PROBES):
        assert not after(silence, 1, "ab", hosts=("a", "b", "c"))


def test_a_short_cut_isolates_nobody() -> None:
    silence = heard()
    for _ in range(3):
        assert not after(silence, LOST_AFTER_PROBES - 1, "abcde")
        assert not after(silence, 1)


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
    after(silence, LOST_AFTER_PROBES - 1, "abc", hosts=("a", "b", "c", "d", "e"))
    assert not after(silence, 1, "de", hosts=("d", "e"))


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


LOST = [{"a": True, "b": True}, *[{"a": False, "b": False}] * LOST_AFTER_PROBES]
HOST_PORTS, STORE = {"a": 1, "b": 2}, {"s": 3}


class Watched:
    """The watchdog of a head: the probes of its hosts, and what it ended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "isolated"
        self.killed: list[int] = []
        self.store_answers = False
        self._probes = iter(LOST)
        monkeypatch.setattr(isolation, "GcsClient", lambda address: address)
        told = iter([RpcError("not yet"), *[HOST_PORTS] * len(LOST)])
        monkeypatch.setattr(isolation, "_other_hosts", lambda gcs, own: self._told(next(told)))
        monkeypatch.setattr(isolation, "probe", self._probe)
        monkeypatch.setattr(isolation, "_kill_gcs", self.killed.append)
        monkeypatch.setattr(isolation, "PAUSE_S", 0)

    def watch(self, store: dict[str, int]) -> None:
        """Until the head is isolated, or all probes are made."""
        with suppress(StopIteration):
            isolation.watch(self.file, "head:6379", store, os.getppid())

    def _told(self, answer: dict[str, int] | RpcError) -> dict[str, int]:
        if isinstance(answer, RpcError):
            raise answer
        return answer

    def _probe(self, ports: Mapping[str, int]) -> dict[str, bool]:
        if ports == HOST_PORTS:
            return next(self._probes)
        return dict.fromkeys(ports, self.store_answers)


@pytest.mark.parametrize("store", [{}, STORE], ids=["on the head's host", "elsewhere"])
def test_the_watchdog_ends_the_gcs_and_says_who_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: dict[str, int]
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.watch(store)
    assert watched.killed == [os.getppid()]
    assert json.loads(watched.file.read_text()) == HOST_PORTS | store


def test_a_head_that_reaches_its_store_is_not_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.store_answers = True
    watched.watch(STORE)
    assert (watched.killed, watched.file.exists()) == ([], False)


@dataclass
class Node:
    node_manager_address: str
    is_head_node: bool = False
    node_manager_port: int = 7
    state: int = GcsNodeInfo.ALIVE


class Gcs:
    """Three hosts, of which the head's has two raylets."""

    def get_all_node_info(self, timeout: float) -> dict[str, Node]:
        nodes = Node("head", is_head_node=True), Node("head"), Node("a"), Node("b")
        return dict(zip("1234", nodes, strict=True))


def test_what_the_heads_own_host_has_beside_it_says_nothing_of_the_network() -> None:
    assert isolation._other_hosts(Gcs(), "head") == {"a": 7, "b": 7}


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
    assert f'{watching} "$state/isolated" 10.0.0.4:8266 --store 10.0.0.2:6379 &' in script(out)
    assert watching not in (out / "studio-1" / "pomona-ray").read_text()
    content["hosts"][0]["roles"], content["hosts"][2]["roles"] = ["gateway"], ["head", "store"]
    assert f'{watching} "$state/isolated" 10.0.0.4:8266 &' in script(generated(content, tmp_path))
    for host in content["hosts"]:
        host["roles"] = [role for role in host["roles"] if role != "store"]
    out = generated(content, tmp_path)
    assert watching not in script(out)


def script(out: Path) -> str:
    return (out / "head" / "pomona-head").read_text()
