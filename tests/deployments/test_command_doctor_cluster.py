"""What is made of a cluster: its list of hosts, what each says over ssh, and its gateways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from email.utils import formatdate
from pathlib import Path

import pytest

from deployments.command import doctor
from deployments.command.doctor import gateways, remote
from deployments.command.doctor.cluster import ClusterReading, check_cluster, read_cluster
from deployments.command.doctor.finding import Finding, ok, warning
from deployments.command.doctor.gateways import GatewayReading, check_gateway, read_gateway
from deployments.command.doctor.host_list import Host, HostList, read_host_list
from deployments.command.doctor.remote import HostReport, parse_report
from deployments.command.fleet import Fleet, Member
from ops.cluster.host_list import HostList as GeneratorsHostList
from ops.cluster.host_list import read_host_list as generators_read
from tests.support.deployments.told_server import Answer, told_server
from tests.support.documents import REPOSITORY
from tests.support.e2e.serve_process import free_port

EXAMPLE = REPOSITORY / "ops" / "cluster" / "hosts.example.yaml"
VERSIONS = {"pomona": "0.1.0", "python": "3.11.9", "ray": "2.60.0", "mlx": "0.32.4"}
READY: dict[str, Answer] = {
    "/health": (200, b"{}"),
    "/ready": (200, b'{"status": "ready"}'),
    "/targets": (200, b"[]"),
}


@pytest.fixture
def hosts() -> HostList:
    return read_host_list(EXAMPLE)


def host(hosts: HostList, name: str) -> Host:
    return next(one for one in hosts.hosts if one.name == name)


def by_host(findings: list[Finding], check: str) -> dict[str, str]:
    return {one.host: one.verdict for one in findings if one.check == check}


def test_the_list_is_read_as_its_generator_reads_it(hosts: HostList) -> None:
    """The doctor has a parser of its own, which must not come apart from the one in ``ops``."""
    theirs = generators_read(EXAMPLE)
    for name, field in HostList.model_fields.items():
        assert field.default == GeneratorsHostList.model_fields[name].default, name
        if name != "hosts":
            assert getattr(hosts, name) == getattr(theirs, name), name
    for ours, their in zip(hosts.hosts, theirs.hosts, strict=True):
        assert (ours.name, ours.address) == (their.name, str(their.address))
        assert (ours.system, ours.roles) == (their.system, their.roles)
    assert [one.name for one in hosts.gateways] == [one.name for one in theirs.gateways]
    assert {8266, 8265, 10001, 52366, 8091} == set(hosts.rays_ports(host(hosts, "head")))
    assert set(hosts.rays_ports(host(hosts, "mini-1"))) == {52365, 8090}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[", "is no YAML"),
        ("[]", "the top level: "),
        ("config: a\nhosts: []", "hosts: "),
        ("config: a\nhosts: [{name: -o, address: 1.2.3.4, system: linux, roles: [head]}]", "name"),
        ("config: a\nhosts: [{name: a, address: 1.2.3.4, system: beos, roles: [head]}]", "system"),
    ],
)  # fmt: skip
def test_a_list_that_is_wrong_is_a_mistake_in_one_line(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(content)
    assert doctor.run(["--cluster", str(path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def printed(*findings: Finding, time: float = 1000.0) -> str:
    told = {"findings": [asdict(one) for one in findings], "versions": VERSIONS, "time": time}
    return json.dumps(told)


def test_a_host_speaks_for_itself(hosts: HostList) -> None:
    mini = host(hosts, "mini-1")
    report = parse_report(mini, printed(ok("macOS", "26.1")), "", now=995.0)
    assert [(one.host, one.told) for one in report.findings] == [("mini-1", "26.1")]
    assert (report.versions, report.offset_s) == (VERSIONS, 5.0)


@pytest.mark.parametrize(
    ("answer", "complaint", "told"),
    [
        ("", "ssh: connect to host mini-1 port 22: Connection refused\n", "Connection refused"),
        ("", "warning\npomona: there is no command 'doctor'\n", "there is no command 'doctor'"),
        ("{}", "", "its answer is none of `pomona doctor`"),
        ('{"findings": [{"a": 1}], "versions": {}, "time": 1}', "", "its answer is none of"),
        (
            '{"findings": [{"check": "a", "verdict": "?", "told": ""}], "versions": {}, "time": 1}',
            "",
            "its answer is none of",
        ),
    ],
)
def test_a_host_that_can_not_be_asked_is_a_warning(
    answer: str, complaint: str, told: str, hosts: HostList
) -> None:
    report = parse_report(host(hosts, "mini-1"), answer, complaint, now=0.0)
    [found] = report.findings
    assert (found.verdict, found.host, found.check) == ("warning", "mini-1", "Host")
    assert told in found.told
    assert "`ssh mini-1` has to work without a question" in found.remedy


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of ssh, which runs its command here; and no sudo without a password. Returns
    the folder of the package, with a ``pomona`` that tells how it was called."""
    programs, package = tmp_path / "programs", tmp_path / "the package"
    scripts = {
        programs / "ssh": 'for last; do :; done\nexec sh -c "$last"\n',
        programs / "sudo": "exit 1\n",
        package / ".venv" / "bin" / "pomona": 'echo "$@" >&2\ncat >&2\n',
    }
    for path, text in scripts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return package


def asked_with(hosts: HostList, one: Host) -> list[str]:
    done = subprocess.run(
        [*remote.SSH, one.name, "sh -c " + remote.shlex.quote(remote.script(one, hosts))],
        input="the config",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.split()


def test_a_host_is_asked_for_what_its_roles_need(hosts: HostList, ssh: Path) -> None:
    hosts = hosts.model_copy(update={"package": str(ssh), "services": "/etc/my pomona"})
    asked = asked_with(hosts, host(hosts, "mini-1"))
    assert asked[:5] == ["doctor", "--json", "--config", "/dev/stdin", "--unattended"]
    assert asked[asked.index("--roles") + 1] == "engine"
    assert asked[asked.index("--ray-ports") + 1] == "52365,8090"
    assert asked[-2:] == ["the", "config"]


def test_where_sudo_asks_nothing_the_clusters_user_does_it(hosts: HostList, ssh: Path) -> None:
    services = ssh.parent / "services"
    services.mkdir()
    own = services / "pomona"
    own.write_text('#!/bin/sh\necho "in its environment: $@" >&2\n')
    own.chmod(0o755)
    sudo = ssh.parent / "programs" / "sudo"
    # After its own flags it runs the rest, as the user that -u names.
    sudo.write_text('#!/bin/sh\nset -e\n[ "$4" = pomona ]\nshift 4\nexec "$@"\n')
    hosts = hosts.model_copy(update={"package": str(ssh), "services": str(services)})
    asked = " ".join(asked_with(hosts, host(hosts, "head")))
    assert asked.startswith("in its environment: pomona doctor --json ")


def test_one_host_is_really_asked(hosts: HostList, ssh: Path) -> None:
    """A store, which has neither model nor gateway: so it is quick."""
    own = ssh / ".venv" / "bin" / "pomona"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m deployments.command "$@"\n')
    hosts = hosts.model_copy(update={"package": str(ssh)})
    store = host(hosts, "edge-1").model_copy(update={"roles": ("store",)})
    config = (REPOSITORY / "configs" / "cluster.yaml").read_text()
    report = remote.ask(store, hosts, config)
    assert {one.host for one in report.findings} == {"edge-1"}
    assert {"Python", "Packages", "Disk"} <= {one.check for one in report.findings}
    assert report.versions.keys() == VERSIONS.keys()
    assert report.offset_s is not None
    assert abs(report.offset_s) < 60


def test_a_gateway_that_is_ready(hosts: HostList) -> None:
    edge = host(hosts, "edge-1").model_copy(update={"address": "127.0.0.1"})
    with told_server(READY) as server:
        reading = read_gateway(edge, server.port)
    assert (reading.problem, reading.not_ready) == ("", "")
    assert reading.offset_s is not None
    [found] = check_gateway(reading, knows_clock=True)
    assert (found.verdict, found.host) == ("ok", "edge-1")


def test_a_gateway_without_engines_and_one_that_is_away(hosts: HostList) -> None:
    edge = host(hosts, "edge-1").model_copy(update={"address": "127.0.0.1"})
    answers: dict[str, Answer] = {
        "/health": (200, b"{}"),
        "/ready": (503, b'{"error": {"message": "No engine answers."}}'),
    }
    with told_server(answers) as server:
        [found] = check_gateway(read_gateway(edge, server.port), knows_clock=True)
    assert found.verdict == "wrong"
    assert "503 No engine answers." in found.told
    [found] = check_gateway(read_gateway(edge, free_port()), knows_clock=False)
    assert found.verdict == "wrong"
    assert "nothing answers at http://127.0.0.1:" in found.told


def test_a_gateways_clock_is_that_of_its_answers() -> None:
    assert gateways._offset(formatdate(1000.0, usegmt=True), now=990.0) == 10.5
    assert gateways._offset(None, now=990.0) is None
    assert gateways._offset("yesterday", now=990.0) is None


def test_the_whole_cluster(hosts: HostList) -> None:
    reports = [HostReport(one, (), VERSIONS, 0.0) for one in hosts.hosts]
    reports[3] = replace(reports[3], versions={**VERSIONS, "ray": "2.59.0"}, offset_s=-120.0)
    reports[5] = HostReport(
        hosts.hosts[5], (replace(warning("Host", "silent", "ssh"), host="mini-1"),)
    )
    gateway_readings = [GatewayReading(one, "http://a", offset_s=80.0) for one in hosts.gateways]
    engine = Member("engine", "10.0.0.11", "e1", "qwen", versions=VERSIONS)
    members = (engine, replace(engine, node="10.0.0.13", replica="e3", error="refused"))
    reading = ClusterReading(reports, gateway_readings, Fleet("http://a", True, members))
    found = list(check_cluster(hosts, reading))
    assert by_host(found, "Clock") == {
        **dict.fromkeys(("edge-1", "edge-2", "head", "studio-2"), "ok"),
        "studio-1": "warning",
    }
    assert by_host(found, "Host") == {"mini-1": "warning"}
    assert by_host(found, "Gateway") == {"edge-1": "ok", "edge-2": "ok"}
    assert by_host(found, "Engine") == {"studio-1": "ok", "studio-2": "wrong", "mini-1": "warning"}
    [rays] = [one for one in found if one.check == "Ray alike"]
    assert rays.verdict == "wrong"
    assert "2.59.0 on studio-1" in rays.told


def test_without_ssh_gateways_tell_clocks_and_versions(hosts: HostList) -> None:
    def never(*_: object) -> HostReport:
        raise AssertionError

    local = tuple(one.model_copy(update={"address": "127.0.0.1"}) for one in hosts.hosts[:1])
    hosts = hosts.model_copy(update={"hosts": local})
    metrics = 'pomona_version_info{mlx="0.32.4",pomona="0.1.0",python="3.11.9",ray="2.60.0"} 1.0\n'
    with told_server({"/metrics": (200, metrics.encode())}) as member:
        labels = {"__metrics_path__": "/metrics", "component": "gateway", "replica": "g1"}
        group = {
            "targets": [f"127.0.0.1:{member.port}"],
            "labels": labels | {"node": "127.0.0.1"},
        }
        answers = READY | {"/targets": (200, json.dumps([group]).encode())}
        with told_server(answers) as gateway:
            reading = read_cluster(hosts, "", gateway.port, with_ssh=False, ask_host=never)
    found = list(check_cluster(hosts, reading))
    assert by_host(found, "Clock").keys() == {"edge-1"}
    [rays] = [one for one in found if one.check == "Ray alike"]
    assert (rays.verdict, rays.told) == ("ok", "2.60.0 on 1 of 1 hosts")
