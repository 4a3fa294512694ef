"""What Pomona's engines and gateways count themselves."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ops.bench.serve.errors import LoadError
from ops.bench.serve.target import Target

REQUESTS = "pomona_request_success_total"
PROMPT_TOKENS = "pomona_prompt_tokens_total"
GENERATION_TOKENS = "pomona_generation_tokens_total"
HISTOGRAMS = (
    "pomona_time_to_first_token_seconds",
    "pomona_inter_token_latency_seconds",
    "pomona_e2e_request_latency_seconds",
)
READ = {REQUESTS, PROMPT_TOKENS, GENERATION_TOKENS} | {
    f"{name}_{part}" for name in HISTOGRAMS for part in ("sum", "count")
}
TARGETS_PATH = "/targets"
SETTLE_S = 15.0
POLL_S = 0.1

Counts = dict[tuple[str, str], float]
"""By a sample's name and its label ``stage``, which is empty where there is none."""


async def find_metrics(url: str, model: str) -> tuple[str, ...]:
    """Where those have their metrics that serve ``model`` behind the gateway at ``url``; empty if
    it is no gateway of ours."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(url.rstrip("/") + TARGETS_PATH) as response,
        ):
            groups = await response.json() if response.status == 200 else []
    except (aiohttp.ClientError, ValueError):
        return ()
    return tuple(
        f"http://{address}{group['labels']['__metrics_path__']}"
        for group in groups
        if group["labels"].get("model", model) == model
        for address in group["targets"]
    )


async def read_counts(target: Target) -> Counts:
    """Of all metrics of ``target`` together; empty if it has none. Raises ``LoadError``."""
    # Without the API key, which they don't ask for.
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def read(url: str) -> str:
            try:
                async with session.get(url) as response:
                    return await response.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise LoadError(f"no metrics at {url}: {error}") from error

        texts = await asyncio.gather(*map(read, target.metrics_urls))
    counts: Counts = defaultdict(float)
    for text in texts:
        for key, value in parse_counts(text, target.model).items():
            counts[key] += value
    return counts


def parse_counts(text: str, model: str) -> Counts:
    counts: Counts = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in READ and sample.labels.get("model") == model:
                counts[sample.name, sample.labels.get("stage", "")] += sample.value
    return counts


async def settled_counts(target: Target, before: Counts, num_requests: int) -> Counts:
    """Once the end of so many requests has been counted since ``before``, which may be a moment
    after their last byte, or when that has taken too long. Raises ``LoadError``."""
    deadline = time.perf_counter() + SETTLE_S
    while target.metrics_urls:
        after = await read_counts(target)
        ended = added(before, after).get((REQUESTS, ""), 0.0)
        if ended >= num_requests or time.perf_counter() > deadline:
            return after
        await asyncio.sleep(POLL_S)
    return {}


def added(before: Counts, after: Counts) -> Counts:
    return {key: value - before.get(key, 0.0) for key, value in after.items()}
