"""The fleet's table, from servers that answer as tests say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deployments.command import status
from deployments.command.fleet import Fleet, Member, parse_samples, read_fleet
from deployments.command.server_url import server_url
from tests.support.deployments.told_server import told_server
from tests.support.e2e.serve_process import free_port

ENGINE_TEXT = b"""
pomona_requests_running{model="demo"} 3.0
pomona_requests_waiting{model="demo"} 1.0
pomona_generation_tokens_total{model="demo"} 100.0
pomona_kv_cache_usage_ratio{model="demo"} 0.256
pomona_prefix_cache_query_tokens_total{model="demo"} 200.0
pomona_prefix_cache_hit_tokens_total{model="demo"} 50.0
pomona_memory_active_bytes{model="demo"} 2.5e9
pomona_attention_path_info{actual="metal",wanted="metal"} 1.0
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
