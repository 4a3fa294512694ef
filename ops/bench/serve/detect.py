"""Which server it is that answers, by what it says of its models."""

from __future__ import annotations

from typing import Any

import aiohttp

from ops.bench.serve.errors import LoadError
from ops.bench.serve.target import SERVERS, Server

OWNERS = {"pomona": "pomona", "vllm": "vllm", "llamacpp": "llama.cpp"}
"""By ``owned_by`` of a model; others say nothing that is theirs alone."""


async def served_models(url: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    """Raises ``LoadError`` if there is no list of them at ``url``."""
    place = f"{url.rstrip('/')}/v1/models"
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(place) as response,
        ):
            response.raise_for_status()
            models: list[dict[str, Any]] = (await response.json(content_type=None))["data"]
            return models
    except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"no models at {place}: {error}") from error


def server_of(models: list[dict[str, Any]]) -> Server:
    owners = [str(one.get("owned_by")) for one in models]
    known = [OWNERS[owner] for owner in owners if owner in OWNERS]
    return SERVERS[known[0] if known else "openai"]
