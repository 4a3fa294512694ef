"""Every request that ends with an error is counted, by the gateway or by the replica, once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.fleet.directory import Replica
from deployments.gateway import accepting as gateway_accepting
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import CHAT, Running, failures, fake_replica, gateway

PATH = "/v1/chat/completions"
FAULTS = {"boom": "step_error", "gone": "unavailable", "bug": "crash"}


def saying(words: str, **fields: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": words}], **fields}


async def replica_failures(replica: Replica) -> dict[str, float]:
    """Error type to what the replica has counted of it."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{replica.url}/metrics")).text
    return {
        sample.labels["error_type"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pomona_request_failure_total" and sample.value
    }


async def finished(running: Running) -> float:
    """Requests in the gateway's end-to-end histogram."""
    # An answer is accounted for after its last byte: a round trip later it has been.
    await running.client.get("/health")
    name = "pomona_e2e_request_latency_seconds_count"
    return sum(
        sample.value
        for family in running.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    )


@pytest.mark.parametrize(
    ("body", "kind", "stream"),
    [
        (saying("bug b c d"), "server_error", False),
        (saying("bug b c d"), "server_error", True),
        (saying("x " * 5000), "invalid_request_error", False),
        (saying("x " * 5000), "invalid_request_error", True),
    ],
    ids=["crash", "crash of a stream", "too long", "stream too long"],
)
async def test_what_a_replica_fails_is_the_replicas(
    body: dict[str, Any], kind: str, stream: bool
) -> None:
    backend = FakeBackend()
    async with fake_replica(backend, options={"faults": FAULTS}) as one, gateway([one]) as running:
        response = await running.client.post(PATH, json={**body, "stream": stream})
        assert "error" in response.text
        assert await replica_failures(one) == {kind: 1}
        assert await finished(running) == 0
        assert failures(running) == {}
        assert (await running.client.post(PATH, json=CHAT)).status_code == 200
        assert await finished(running) == 1


@pytest.mark.parametrize("words", ["boom b c d", "gone b c d"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_replicas_fall_at_is_the_gateways_too(
    words: str, stream: bool
) -> None:
    replicas = [fake_replica(name=name, options={"faults": FAULTS}) for name in "ab"]
    async with replicas[0] as one, replicas[1] as other, gateway([one, other]) as running:
        response = await running.client.post(PATH, json={**saying(words), "stream": stream})
        assert '"code":"replica_lost"' in response.text
        for replica in (one, other):
            assert sum((await replica_failures(replica)).values()) > 1
        assert await finished(running) == 0
        assert failures(running) == {("demo", "server_error"): 1}


async def test_a_full_queue_is_the_replicas() -> None:
    backend = FakeBackend()
    backend.hold()
    async with (
        fake_replica(backend, max_num_seqs=1, max_queued_requests=0) as one,
        gateway([one]) as running,
    ):
        first = asyncio.create_task(running.client.post(PATH, json=CHAT))
        await backend.held.reaches(1)
        assert (await running.client.post(PATH, json=CHAT)).status_code == 429
        assert await replica_failures(one) == {"rate_limit_error": 1}
        assert failures(running) == {}
        backend.release()
        await first


async def test_a_refusal_after_which_another_replica_answers_is_no_failure_of_the_gateway() -> None:
    ill = FakeBackend()
    async with (
        fake_replica(ill, options={"faults": {"one": "unavailable"}}) as first,
        fake_replica(name="replica-2") as second,
        gateway([first, second]) as running,
    ):
        assert (await running.client.post(PATH, json=CHAT)).status_code == 200
        assert await finished(running) == 1
        assert failures(running) == {}


async def test_what_no_replica_hears_of_is_the_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway([]) as running:
        assert (await running.client.post(PATH, json=CHAT)).status_code == 503
        assert failures(running) == {("unknown", "service_unavailable"): 1}
        # A probe is answered, not failed.
        assert (await running.client.get("/ready")).status_code == 503
        assert failures(running) == {("unknown", "service_unavailable"): 1}

    async def broken(*args: object) -> None:
        raise RuntimeError("a fault of the gateway")

    monkeypatch.setattr(gateway_accepting, "whole_body", broken)
    async with gateway([]) as running:
        assert (await running.client.post(PATH, json=CHAT)).status_code == 500
        assert failures(running) == {("unknown", "server_error"): 1}


async def test_a_stream_whose_replica_is_lost_is_the_gateways() -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=2)
    async with fake_replica(backend) as one, gateway([one], request_timeout_s=0.3) as running:
        response = await running.client.post(PATH, json={**CHAT, "stream": True})
        assert '"code":"timeout"' in response.text
        assert await finished(running) == 0
        assert failures(running) == {("demo", "server_error"): 1}
