"""Pages in browsers: refused where no key is asked for, unless their origin is allowed."""

from __future__ import annotations

import pytest

from tests.support.deployments.answers import error_of
from tests.support.deployments.gateway_harness import CHAT, fake_replica, gateway

PATH = "/v1/chat/completions"
PAGE = "https://chat.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
}


@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1", "http://localhost:3000", ""])
async def test_without_keys_pages_are_refused(origin: str) -> None:
    async with fake_replica() as one, gateway([one]) as running:
        response = await running.client.post(PATH, json=CHAT, headers={"Origin": origin})
        assert (response.status_code, error_of(response)["code"]) == (403, "origin_not_allowed")
        assert "gateway.allowed_origins" in error_of(response)["message"]
        own = {"Origin": running.url}
        assert (await running.client.post(PATH, json=CHAT, headers=own)).status_code == 200


async def test_unless_set_no_page_is_told_anything() -> None:
    async with fake_replica() as one, gateway([one], keys=["key"]) as running:
        preflight = await running.client.options(PATH, headers=PREFLIGHT)
        assert preflight.status_code == 401
        headers = {"Origin": PAGE, "Authorization": "Bearer key"}
        answer = await running.client.post(PATH, json=CHAT, headers=headers)
        # Who has a key is served; that the page may not read it is the browser's to enforce.
        assert answer.status_code == 200
        for response in (preflight, answer):
            assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("keys", [[], ["key"]])
async def test_allowed_origins(keys: list[str]) -> None:
    async with (
        fake_replica() as one,
        gateway([one], keys=keys, allowed_origins=[PAGE]) as running,
    ):
        preflight = await running.client.options(PATH, headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
        headers = {"Origin": PAGE, "Authorization": "Bearer key"}
        answer = await running.client.post(PATH, json=CHAT, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-ratelimit-remaining-tokens" in answer.headers["access-control-expose-headers"]
        other = {**PREFLIGHT, "Origin": "https://evil.example.com"}
        refused = await running.client.options(PATH, headers=other)
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        if keys:
            wrong = await running.client.post(PATH, json=CHAT, headers={"Origin": PAGE})
            assert wrong.status_code == 401
            # The page can read why.
            assert wrong.headers["access-control-allow-origin"] == PAGE
