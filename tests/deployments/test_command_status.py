"""The fleet's table, from servers that answer as tests say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deployments.command import status
from deployments.command.__main__ import main
from deployments.command.fleet import Fleet, Member, parse_samples, parse_versions, read_fleet
from deployments.command.server_url import KEY_VARIABLE, ServerError, server_url
from tests.support.deployments.told_server import Answer, told_server
from tests.support.e2e.serve_process import free_port


@pytest.fixture(autouse=True)
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no key and no question goes to."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


ENGINE_TEXT = b"""
pomona_requests_running{model="demo"} 3.0
pomona_requests_waiting{model="demo"} 1.0
pomona_generation_tokens_total{model="demo"} 100.0
pomona_kv_cache_usage_ratio{model="demo"} 0.256
pomona_prefix_cache_query_tokens_total{model="demo"} 200.0
pomona_prefix_cache_hit_tokens_total{model="demo"} 50.0
pomona_memory_active_bytes{model="demo"} 2.5e9
pomona_attention_path_info{actual="metal",wanted="metal"} 1.0
pomona_version_info{mlx="0.32.4",node="mac-1",pomona="0.1.0",python="3.11.9",ray="2.60.0"} 1.0
"""
GATEWAY_TEXT = b"""
pomona_gateway_requests_total{model="demo",outcome="success"} 5.0
pomona_gateway_requests_total{model="other",outcome="success"} 2.0
pomona_gateway_requests_total{model="demo",outcome="rate_limited"} 1.0
pomona_gateway_requests_total{model="demo",outcome="client_error"} 1.0
pomona_gateway_requests_total{model="demo",outcome="server_error"} 4.0
pomona_stream_resumes_total{model="demo"} 6.0
"""


def group(component: str, replica: str, port: int) -> dict[str, object]:
    labels = {"__metrics_path__": "/metrics", "component": component, "replica": replica}
    return {
        "targets": [f"127.0.0.1:{port}"],
        "labels": labels | {"node": "mac-1", "model": "demo" if component == "engine" else ""},
    }


def test_the_fleet_is_told_in_two_tables_and_what_is_lost_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = free_port()
    with (
        told_server({"/metrics": (200, ENGINE_TEXT)}) as engine,
        told_server({"/metrics": (200, GATEWAY_TEXT)}) as gateway,
    ):
        groups = [group("engine", "e1", engine.port), group("engine", "e2", lost)]
        groups.append(group("gateway", "g1", gateway.port))
        with told_server(
            {
                "/targets": (200, json.dumps(groups).encode()),
                "/ready": (200, b'{"status": "ready"}'),
            }
        ) as front:
            assert status.run([front.url, "--interval", "0.1"]) == 1
    told = capsys.readouterr().out
    lines = [line.split() for line in told.splitlines()]
    assert f"{front.url} is ready" in told
    assert [
        "e1",
        "mac-1",
        "demo",
        "3",
        "1",
        "0.0",
        "26%",
        "25%",
        "2.5",
        "GB",
        "-",
        "metal",
    ] in lines
    assert ["g1", "mac-1", "7", "2", "4", "6"] in lines
    assert f"engine e2 on mac-1 can't be read: nothing answers at http://127.0.0.1:{lost}" in told


def test_the_rate_is_what_two_readings_differ_by() -> None:
    samples = parse_samples(ENGINE_TEXT.decode())
    before = Member("engine", "mac-1", "e1", "demo", samples, read_at=10.0)
    later = {**samples, "pomona_generation_tokens_total": 250.0}
    now = replace(before, samples=later, read_at=12.0)
    fleet = Fleet("http://here", True, (before,))
    told = status.told(fleet, replace(fleet, members=(now,)))
    assert " 75.0 " in told
    # One that is new has no rate yet.
    assert " 75.0 " not in status.told(replace(fleet, members=()), replace(fleet, members=(now,)))


def test_versions_are_told_once_where_all_have_them_alike() -> None:
    versions = parse_versions(ENGINE_TEXT.decode())
    one = Member("engine", "mac-1", "e1", versions=versions)
    other = replace(one, node="mac-2", replica="e2")
    too_old = replace(one, node="mac-3", replica="e3", versions={})
    fleet = Fleet("http://here", True, (one, other, too_old))
    told = status.told(fleet, fleet).splitlines()
    assert told[-1] == "All have Pomona 0.1.0, Python 3.11.9, Ray 2.60.0, MLX 0.32.4."
    other = replace(other, versions={**versions, "python": "3.11.8"})
    told = status.told(fleet, replace(fleet, members=(one, other))).splitlines()
    assert "Python DIFFERS: 3.11.9 on mac-1; 3.11.8 on mac-2" in told
    assert told[-1] == "All have Pomona 0.1.0, Ray 2.60.0, MLX 0.32.4."


EMPTY_FLEET: dict[str, Answer] = {
    "/targets": (200, b"[]"),
    "/ready": (200, b'{"status": "ready"}'),
}


def alert(name: str, severity: str = "page", state: str = "firing") -> dict[str, object]:
    """As Prometheus writes it."""
    return {
        "labels": {"alertname": name, "severity": severity},
        "annotations": {"summary": f"{name} has happened.", "description": "Do something."},
        "state": state,
        "activeAt": "2026-11-24T02:57:34.123456789Z",
        "value": "1e+00",
    }


def test_alerts_that_fire_are_shown_and_no_key_goes_to_prometheus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-key")
    alerts = [alert("PomonaHeadDown"), alert("Slow", state="pending")]
    alerts.append(alert("PomonaWatchdog", "heartbeat"))
    answer = {"status": "success", "data": {"alerts": alerts}}
    answers = {"/api/v1/alerts": (200, json.dumps(answer).encode())}
    with told_server(EMPTY_FLEET) as front, told_server(answers) as prometheus:
        asked = [front.url, "--interval", "0.1", "--prometheus", prometheus.url]
        assert status.run(asked) == 0
    told = capsys.readouterr().out
    assert [line.split() for line in told.splitlines()][-2:] == [
        ["ALERT", "SEVERITY", "SINCE"],
        ["PomonaHeadDown", "page", "2026-11-24T02:57:34Z", *["PomonaHeadDown", "has", "happened."]],
    ]
    assert {key for _, _, key in prometheus.asked} == {None}


@pytest.mark.parametrize(
    ("answer", "status_code", "told"),
    [
        (b'{"status": "success", "data": {"alerts": []}}', 0, "No alert fires."),
        (b'{"status": "error"}', 1, "this is no Prometheus"),
        (b"[]", 1, "this is no Prometheus"),
        (b"<html>", 1, "its answer is no JSON"),
    ],
)
def test_what_prometheus_says_instead(
    answer: bytes, status_code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: dict[str, Answer] = {"/api/v1/alerts": (200, answer)}
    with told_server(EMPTY_FLEET) as front, told_server(answers) as prometheus:
        asked = [front.url, "--interval", "0.1", "--prometheus", prometheus.url]
        assert status.run(asked) == status_code
    assert told in "".join(capsys.readouterr())


def test_watching_goes_on_through_a_failure_until_it_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three readings: one that is fine, one while the gateway is away, one that is fine again."""
    fleet, rests = Fleet("http://here", True, ()), []
    readings = iter([fleet, fleet, ServerError("nothing answers"), fleet])

    def read(url: str) -> Fleet:
        one = next(readings)
        if isinstance(one, ServerError):
            raise one
        return one

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "read_fleet", read)
    monkeypatch.setattr(status.time, "sleep", rest)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.argv", ["pomona", "status", "http://here", "--watch"])
    assert main() == 130
    out, err = capsys.readouterr()
    assert rests == [1.0] * 4
    assert out.count(f"{status.CLEAR}http://here is ready") == 2
    assert err == "pomona: nothing answers\n"


def test_a_fleet_without_engines_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"/targets": (200, b"[]"), "/ready": (503, b'{"error": {"message": "none"}}')}
    with told_server(answers) as front:
        assert status.run([front.url, "--interval", "0.1"]) == 1
        assert not read_fleet(front.url).is_ready
    told = capsys.readouterr().out
    assert "NOT ready" in told
    assert "No engines." in told


@pytest.mark.parametrize("body", [b"{}", b'[{"a": 1}]', b'{"error": 1}'])
def test_another_kind_of_server_is_told(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with told_server({"/targets": (200, body), "/ready": (200, b"{}")}) as front:
        assert status.run([front.url, "--interval", "0.1"]) == 1
    assert "is no gateway of Pomona" in capsys.readouterr().err


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert status.run([url]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"pomona: nothing answers at {url}/targets: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("edge-1:8000", "http://edge-1:8000"),
        ("https://a.example/v1/", "https://a.example"),
        ("http://a/llm", "http://a/llm"),
    ],
)
def test_a_url_may_be_given_as_clients_have_it(given: str, url: str) -> None:
    assert server_url(given) == url


def test_what_is_no_url_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.run(["ftp://a"]) == 2
    assert "'ftp://a' is no URL of a server" in capsys.readouterr().err
