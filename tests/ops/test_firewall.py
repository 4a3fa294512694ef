"""The runbook's firewalls: both know the example's hosts, and nftables' lets in whom it lists."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cluster.host_list import read_host_list
from tests.support.documents import block
from tests.support.e2e.neighbours import OtherHost, other_host, why_not
from tests.support.ops.host_lists import EXAMPLE

NEIGHBOUR = "10.77.0.2"
LISTED = re.compile(r"\b(hosts|prometheus|balancers)\b.*?\{ ([\d., ]+) \}")


@pytest.mark.parametrize("name", ["nftables", "pf"])
def test_it_lists_who_is_in_the_example(name: str) -> None:
    hosts = read_host_list(EXAMPLE)
    listed = {who: addresses.split(", ") for who, addresses in LISTED.findall(block(name))}
    assert listed["hosts"] == [str(host.address) for host in hosts.hosts]
    assert listed["balancers"] == [one.rpartition(":")[0] for one in hosts.balancers]
    assert listed.keys() == {"hosts", "prometheus", "balancers"}


@pytest.fixture
def neighbour() -> Iterator[OtherHost]:
    if missing := why_not():
        pytest.skip(missing)
    if shutil.which("nft") is None:
        pytest.skip("Not installed: nft.")
    with other_host() as host:
        yield host


@pytest.mark.parametrize(
    ("role", "reached"),
    [(None, {"low"}), ("hosts", {"low", "gateway", "other"}), ("balancers", {"low", "gateway"})],
)
def test_it_lets_in_whom_it_lists(
    neighbour: OtherHost, role: str | None, reached: set[str], tmp_path: Path
) -> None:
    rules = block("nftables")
    if role is not None:
        rules = re.sub(rf"(set {role} .*elements = )\{{[^}}]*\}}", rf"\1{{ {NEIGHBOUR} }}", rules)
    (tmp_path / "rules").write_text(rules)
    with (
        socket.create_server(("0.0.0.0", 22)) as low,
        socket.create_server(("0.0.0.0", 8000)) as gateway,
        socket.create_server(("0.0.0.0", 0)) as other,
    ):
        servers = {"low": low, "gateway": gateway, "other": other}
        ports = {server.getsockname()[1]: name for name, server in servers.items()}
        assert neighbour.reaches(ports) == ports.keys()
        subprocess.run(["nft", "-f", tmp_path / "rules"], check=True)
        assert {ports[port] for port in neighbour.reaches(ports)} == reached
