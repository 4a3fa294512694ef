from __future__ import annotations

from collections.abc import Iterable

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import CHAT, fake_replica, gateway

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def values(families: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels; when each counter was created is told in other ways."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.parametrize("of", ["gateway", "replica"])
async def test_scrapers_choose_the_format_and_read_the_same(of: str) -> None:
    async with fake_replica(FakeBackend()) as one, gateway([one]) as running:
        await running.client.post("/v1/chat/completions", json=CHAT)
        # A request is counted after its last byte: a round trip later it has been.
        await running.client.get("/health")
        url = f"{one.url if of == 'replica' else running.url}/metrics"
        async with httpx.AsyncClient() as client:
            plain = await client.get(url)
            openmetrics = await client.get(url, headers=OPENMETRICS)
    assert plain.headers["content-type"].startswith("text/plain")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    read = values(openmetrics_families(openmetrics.text))
    assert read == values(text_families(plain.text))
    assert ("pomona_steps_total" if of == "replica" else "pomona_gateway_requests_total") in {
        name for name, _ in read
    }


@pytest.mark.parametrize("media", ["text/plain", "application/openmetrics-text"])
@pytest.mark.parametrize(
    "version", ["x", "1.x", "1.0.0.é", "", "-1", "9" * 5000, "1.0.0; version=x"]
)
async def test_a_version_that_is_none_is_not_asked_for(media: str, version: str) -> None:
    """Nobody needs a key to ask."""
    accept = f"{media}; version={version}, text/html; q=0.5"
    async with gateway([]) as running:
        answer = await running.client.get("/metrics", headers=[(b"accept", accept.encode())])
    assert answer.status_code == 200
    assert "pomona_gateway_requests_total" in answer.text
