"""A replica's port, for whoever reaches it without the deployment's secret."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from deployments.fleet.directory import Replica
from deployments.replica import app as replica_http
from deployments.replica.app import build_replica_app
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.replica_server import (
    AUTHORIZED,
    SECRET,
    build,
    chat,
    completion,
    in_memory,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
OPEN = ("/health", "/ready", "/metrics")
GENERATION = {"/v1/chat/completions": chat(), "/v1/completions": completion()}
UNKNOWN = ("/", "", "/v1", "/v1/models", "/v1/completions/", "//v1/completions", "/docs", "/debug")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        SECRET,
        f"Basic {SECRET}",
        f"bearer {SECRET}",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET}{SECRET}",
        "Bearer \u00ff",
    ],
)
async def test_nothing_is_generated_without_the_secret(authorization: str | None) -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        del client.headers["Authorization"]
        headers = (
            {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
        )
        for path, body in GENERATION.items():
            refused = await client.post(path, json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                401,
                "invalid_api_key",
            )
            # Nobody without it learns what a valid request is either.
            assert (await client.post(path, content=b"{", headers=headers)).status_code == 401
    assert backend.requests == []


async def test_every_other_path_and_method_is_unknown_or_open() -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        del client.headers["Authorization"]
        for path in (*GENERATION, *OPEN, *UNKNOWN):
            for method in METHODS:
                response = await client.request(method, path, json=chat())
                if path in GENERATION and method == "POST":
                    expected = 401
                elif path in OPEN and method in ("GET", "HEAD"):
                    expected = 200
                else:
                    expected = 404 if path in UNKNOWN else 405
                assert response.status_code == expected, (method, path)
                assert SECRET not in response.text
                assert SECRET not in str(response.headers)
    assert backend.requests == []


async def test_the_secret_opens_and_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, backend = await build()
    compared: list[int] = []
    compare = replica_http.hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append(len(other))
        return compare(one, other)

    monkeypatch.setattr(replica_http.hmac, "compare_digest", recorded)
    async with in_memory(app) as client:
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
        wrong = {"Authorization": "Bearer wrong"}
        refused = await client.post("/v1/completions", json=completion(), headers=wrong)
        assert refused.status_code == 401
    assert compared == [len(AUTHORIZED["Authorization"])] * 2
    assert len(backend.requests) == 1


async def test_a_replica_is_never_built_without_a_secret() -> None:
    backend = FakeBackend()
    with pytest.raises(ValueError, match="secret must not be empty"):
        build_replica_app(
            backend=backend,
            model=None,  # type: ignore[arg-type]
            secret="",
            registry=CollectorRegistry(),
            on_failure=lambda error_type: None,
            max_body_bytes=1024,
            keep_alive_interval_s=1.0,
        )


def test_the_secret_is_in_no_repr() -> None:
    replica = Replica("r", "n", "http://r", "m", 1, SECRET)
    assert SECRET not in repr(replica)
