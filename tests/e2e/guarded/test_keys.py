"""A server with API keys, as those meet it who have none, a wrong one, or another's."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.guarded.conftest import ALICE, BOB
from tests.support.e2e import leaks
from tests.support.e2e.serve_process import READY_TIMEOUT_S, ServeProcess, scrape_url

MODEL = "echo"
WRONG = "alices-own-key-of-some-lengthh"
PROMPT = " ".join(f"a-word-of-alice-{number}" for number in range(40))
PATH = "/v1/completions"


@pytest.fixture(autouse=True)
def secrets(guarded: ServeProcess) -> None:
    basic = base64.b64encode(f":{WRONG}".encode()).decode()
    guarded.secrets.update((ALICE, BOB, WRONG, basic, "a-word-of-alice"))


@pytest.fixture
def url(guarded: ServeProcess) -> str:
    return guarded.url


def ask(url: str, key: str | None = None, *, prompt: str = PROMPT, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **more.pop("fields", {})}
    return httpx.post(
        url + more.pop("path", PATH),
        json=body,
        headers=headers | more.pop("headers", {}),
        timeout=30,
        **more,
    )


def test_without_a_key_there_is_a_page_and_what_balancers_and_prometheus_ask(url: str) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}", "/v1/fleet", "/openapi.json", "/docs"):
        assert httpx.get(url + path, timeout=READY_TIMEOUT_S).status_code == 401, path
    # The page is the same for everybody, and asks for a key itself.
    for path in ("/", "/health", "/ready", "/metrics", "/targets"):
        assert httpx.get(url + path, timeout=READY_TIMEOUT_S).status_code == 200, path
    refused = ask(url)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"


def test_a_key_anywhere_but_where_it_belongs_opens_nothing_and_is_echoed_nowhere(url: str) -> None:
    basic = base64.b64encode(f":{WRONG}".encode()).decode()
    answers = [
        ask(url, WRONG),
        ask(url, path=f"{PATH}?api_key={WRONG}"),
        ask(url, path=f"{PATH}/{WRONG}"),
        ask(url, headers={"X-API-Key": WRONG}),
        ask(url, headers={"Authorization": WRONG}),
        ask(url, headers={"Authorization": f"Basic {basic}"}),
        ask(url, headers={"Cookie": f"key={WRONG}"}),
        ask(url, fields={"user": WRONG}),
    ]
    for answer in answers:
        assert answer.status_code == 401, answer.url
        assert WRONG not in answer.text + str(answer.headers)


def test_what_a_client_with_a_key_mistakes_for_something_else_is_not_logged(url: str) -> None:
    """Some of these are told to the client who sent them, and to nobody else."""
    answers = {
        404: [
            ask(url, ALICE, fields={"model": WRONG}),
            httpx.get(
                f"{url}/v1/models/{WRONG}",
                headers={"Authorization": f"Bearer {ALICE}"},
                timeout=READY_TIMEOUT_S,
            ),
            ask(url, ALICE, path=f"/v1/{WRONG}"),
        ],
        400: [
            ask(url, ALICE, fields={"temperature": WRONG}),
            ask(url, ALICE, fields={WRONG: 1}),
            ask(url, ALICE, content=WRONG.encode()),
        ],
        500: [ask(url, ALICE, prompt=f"boom {PROMPT}", fields={"max_tokens": 9})],
        200: [ask(url, ALICE, fields={"user": WRONG}, headers={"X-Session-Id": WRONG})],
    }
    for status, given in answers.items():
        assert [one.status_code for one in given] == [status] * len(given)


def test_a_replicas_port_answers_gateways_alone(guarded: ServeProcess) -> None:
    replica = scrape_url(guarded, "engine").removesuffix("/metrics")
    assert ask(replica).status_code == 401
    for key in (ALICE, "", "none"):
        assert ask(replica, key).status_code == 401
    [secret] = [one for one in leaks.made_secrets(guarded.home) if ask(replica, one).is_success]
    assert len(secret) == 43


@pytest.mark.parametrize("component", ["engine", "gateway"])
def test_ports_inside_the_cluster_answer_to_their_own_names(
    guarded: ServeProcess, component: str
) -> None:
    url = scrape_url(guarded, component)
    assert httpx.get(url, timeout=READY_TIMEOUT_S).status_code == 200
    refused = httpx.get(url, headers={"Host": "evil.test"}, timeout=READY_TIMEOUT_S)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")


def test_no_tenant_meets_anothers_prompts(url: str) -> None:
    def cached(key: str) -> int:
        answer = ask(url, key, prompt=f"{url} {PROMPT}")
        number: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return number

    assert cached(ALICE) == 0
    assert cached(ALICE) > 0
    assert ask(url, BOB, prompt=f"{url} {PROMPT}").status_code in (200, 429)


def test_limits_hold(url: str) -> None:
    refused = next(one for one in (ask(url, BOB) for _ in range(5)) if one.status_code == 429)
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert ask(url, ALICE).status_code == 200


def test_a_body_behind_an_upgrade_is_no_request(guarded: ServeProcess) -> None:
    hidden = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALICE}\r\n\r\n"
    start = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Content-Length: {len(hidden)}\r\n\r\n"
    )
    with socket.create_connection(address_of(guarded), timeout=30) as raw:
        raw.sendall(start.encode())
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        assert raw.recv(1 << 16) == b""


@pytest.mark.parametrize(
    ("name", "status"),
    [("Authorization", 401), ("User-Agent", 200), ("X-Request-Id", 200), ("X-Session-Id", 200)],
)
def test_a_header_that_is_no_utf8_is_no_fault_of_the_server(
    guarded: ServeProcess, name: str, status: int
) -> None:
    """The answer has the shape of all answers."""
    address = address_of(guarded)
    lines = ["GET /v1/models HTTP/1.1", f"Host: 127.0.0.1:{address[1]}", "Connection: close"]
    if name != "Authorization":
        lines.append(f"Authorization: Bearer {ALICE}")
    sent = "\r\n".join([*lines, f"{name}: caf\xe9", "", ""]).encode("latin-1")
    with socket.create_connection(address, timeout=30) as raw:
        raw.sendall(sent)
        answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert json.loads(body).keys() <= {"error", "object", "data"}


def address_of(serve: ServeProcess) -> tuple[str, int]:
    parts = urlsplit(serve.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def test_its_secrets_would_be_found(guarded: ServeProcess) -> None:
    """Each kind of place is looked at, each kind of secret known."""
    assert guarded.leaks() == []
    secrets = guarded.all_secrets()
    token = (guarded.home / ".ray" / "auth_token").read_text().strip()
    assert {token, ALICE, *leaks.made_secrets(guarded.home)} <= secrets
    looked_for = {
        "EngineReplica": leaks.command_lines(guarded.ray_processes()),
        "pomona_request_failure_total": leaks.open_pages(guarded.url),
        "ResponseStore": leaks.dashboard_pages(guarded.home),
        f"POST {PATH} 200 model={MODEL} key=alice": leaks.files(guarded.home),
    }
    for text, places in looked_for.items():
        assert leaks.leaks([text], places), text


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    log = tmp_path / "ray" / "session" / "logs" / "worker.err"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"\xff got " + ALICE.encode())
    store = tmp_path / ".ray" / "auth_token"
    store.parent.mkdir()
    store.write_text(BOB)
    leaks.recorder(tmp_path)
    assert leaks.kept_secrets(tmp_path) == {BOB}
    assert leaks.leaks({ALICE, BOB}, leaks.files(tmp_path)) == [
        "ali...: ray/session/logs/worker.err"
    ]
    lines = leaks.command_lines({1: f"serve --key {ALICE}", 2: "serve"})
    assert leaks.leaks({ALICE}, lines) == ["ali...: command line of 1"]
