"""The whole path through Ray Serve, with a plugged-in backend that repeats the prompt."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from prometheus_client.parser import text_string_to_metric_families

from deployments.backend import apart
from tests.support.deployments import resumable_streams
from tests.support.deployments.resumable_streams import data_of
from tests.support.e2e.serve_process import READY_TIMEOUT_S, ServeProcess, scrape_url

MODEL = "echo"
WORDS = "the quick brown fox jumps over the lazy dog"
WAIT_S = 60
RUNNING = re.compile(r"^pomona_requests_running\{.*\} [1-9]", re.MULTILINE)


@pytest.fixture
def client(fake_serve: ServeProcess) -> OpenAI:
    # Prompts are nobody's business, unless `log_prompts` is set.
    fake_serve.secrets.add(WORDS)
    return OpenAI(base_url=f"{fake_serve.url}/v1", api_key="none", max_retries=0)


def messages(text: str = WORDS) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metrics(serve: ServeProcess, component: str) -> dict[str, float]:
    """Sample names to values, summed over labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(
        httpx.get(scrape_url(serve, component), timeout=READY_TIMEOUT_S).text
    ):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_stream_adds_up_to_the_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=messages())
    stream = client.chat.completions.create(
        model=MODEL, messages=messages(), stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content == WORDS
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 9, 18)
    assert whole.usage.total_tokens == 18


async def test_the_asynchronous_client_and_completions(fake_serve: ServeProcess) -> None:
    async with AsyncOpenAI(
        base_url=f"{fake_serve.url}/v1", api_key="none", max_retries=0
    ) as client:
        whole = await client.completions.create(model=MODEL, prompt=[WORDS, "another one"])
        assert [choice.text for choice in whole.choices] == [WORDS, "another one"]
        stream = await client.completions.create(model=MODEL, prompt=WORDS, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == WORDS


def test_errors_are_typed(client: OpenAI) -> None:
    def ask(**changes: object) -> None:
        arguments = {"model": MODEL, "messages": messages(), **changes}
        client.chat.completions.create(**arguments)  # type: ignore[call-overload]

    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="nope")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(temperature=7)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="1000000") as long:
        ask(messages=messages("word " * 1_000_001))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as large:
        ask(messages=messages("x" * (9 << 20)))
    assert large.value.status_code == 413
    with pytest.raises(openai.RateLimitError) as full:
        ask(messages=messages("a crowd is here"))
    assert full.value.code == "queue_full"
    assert full.value.response.headers["retry-after"] == "2"
    with pytest.raises(openai.InternalServerError, match="alone") as failed:
        ask(messages=messages("it goes boom today"))
    assert (failed.value.status_code, failed.value.code) == (502, "replica_lost")


def test_each_answer_has_one_request_id(fake_serve: ServeProcess) -> None:
    response = httpx.get(
        f"{fake_serve.url}/nowhere", headers={"X-Request-Id": "given-1"}, timeout=READY_TIMEOUT_S
    )
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"
    assert response.headers.get_list("x-request-id") == ["given-1"]
    made = httpx.get(f"{fake_serve.url}/health", timeout=READY_TIMEOUT_S).headers.get_list(
        "x-request-id"
    )
    assert len(made) == 1


def test_a_client_behind_a_proxy_needs_a_key(fake_serve: ServeProcess) -> None:
    response = httpx.get(
        f"{fake_serve.url}/v1/models",
        headers={"X-Forwarded-For": "192.0.2.9"},
        timeout=READY_TIMEOUT_S,
    )
    assert (response.status_code, response.json()["error"]["code"]) == (403, "loopback_only")
    assert "No API key is configured" in fake_serve.log.read_text()


async def test_many_streams_with_cancellations_leave_nothing_behind(
    fake_serve: ServeProcess,
) -> None:
    before = metrics(fake_serve, "engine")
    dice = random.Random(0)
    leave_after = [dice.choice([None, None, None, dice.randint(1, 30)]) for _ in range(64)]
    async with AsyncOpenAI(
        base_url=f"{fake_serve.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    ) as client:

        async def one(number: int) -> bool:
            text = " ".join(f"w{number}-{position}" for position in range(60))
            stream = await client.chat.completions.create(
                model=MODEL, messages=messages(text), stream=True
            )
            said, seen = "", 0
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                seen += 1
                if seen == leave_after[number]:
                    await stream.close()
                    return False
            assert said == text
            return True

        finished = sum(await asyncio.gather(*map(one, range(64))))
    assert finished >= leave_after.count(None)
    wait_for(lambda: metrics(fake_serve, "engine")["pomona_requests_running"] == 0)
    after = metrics(fake_serve, "engine")
    assert after["pomona_kv_cache_blocks_free"] == after["pomona_kv_cache_blocks_total"]
    successes = "pomona_request_success_total"
    # An engine may have finished a request before it hears that the client has left.
    assert finished <= after[successes] - before[successes] <= 64


def test_leaving_a_stream_frees_the_engine(
    client: OpenAI, fake_serve: ServeProcess, record_property: Callable[[str, object], None]
) -> None:
    """Closing the socket to seeing it in the engine's metrics."""
    engine = scrape_url(fake_serve, "engine")
    took = []
    with httpx.Client() as http:
        for _ in range(5):
            stream = client.chat.completions.create(
                model=MODEL, messages=messages(), stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            assert RUNNING.search(http.get(engine).text)
            left = time.monotonic()
            stream.close()
            while RUNNING.search(http.get(engine).text):
                assert time.monotonic() - left < WAIT_S
            took.append(time.monotonic() - left)
    record_property("seconds", took)


async def test_a_client_that_was_cut_off_gets_the_rest(fake_serve: ServeProcess) -> None:
    body = {"model": MODEL, "messages": messages(), "stream": True}
    async with httpx.AsyncClient(base_url=fake_serve.url, timeout=30) as http:
        undisturbed = await resumable_streams.ask(http, body)
        assert len(undisturbed) == 1 + len(WORDS.split()) + 2
        for place, last in enumerate(undisturbed[:-1], start=1):
            rest = await resumable_streams.ask(http, body, last)
            assert data_of(undisturbed[:place] + rest) == data_of(undisturbed)
        forged = resumable_streams.Event("", "e30.c2lnbmVk")
        refused = await resumable_streams.post(http, body, forged)
        assert refused.json()["error"]["code"] == "resumption_refused"


@pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool is not installed: it is in Debian's package prometheus",
)
@pytest.mark.parametrize("component", ["gateway", "engine"])
def test_promtool_finds_no_fault(fake_serve: ServeProcess, component: str) -> None:
    text = httpx.get(scrape_url(fake_serve, component), timeout=READY_TIMEOUT_S).content
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_both_stages_measure_time_to_first_token(client: OpenAI, fake_serve: ServeProcess) -> None:
    name = "pomona_time_to_first_token_seconds_count"
    before = [metrics(fake_serve, component)[name] for component in ("gateway", "engine")]
    list(client.chat.completions.create(model=MODEL, messages=messages(), stream=True))
    after = [metrics(fake_serve, component)[name] for component in ("gateway", "engine")]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1]


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize("killed", ["replica", "engine"])
def test_a_killed_replica_is_replaced_and_found_again(
    client: OpenAI, fake_serve: ServeProcess, killed: str
) -> None:
    """So is one whose engine, in a process of its own, is killed."""
    old = scrape_url(fake_serve, "engine")
    [pid] = [
        pid
        for pid, line in fake_serve.ray_processes().items()
        if line.startswith("ray::ServeReplica:pomona:EngineReplica")
    ]
    replica = psutil.Process(pid)
    [engine] = [one for one in replica.children() if apart.__name__ in one.cmdline()]
    (replica if killed == "replica" else engine).kill()
    # Neither outlives the other.
    psutil.wait_procs([replica, engine], timeout=60)
    assert not replica.is_running()
    assert not engine.is_running()
    # Which waits for the engine that takes the place of the lost one.
    answer = client.chat.completions.create(model=MODEL, messages=messages())
    assert answer.choices[0].message.content == WORDS
    assert scrape_url(fake_serve, "engine") != old


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the store's process in /proc")
def test_a_killed_store_takes_only_what_it_had(client: OpenAI, fake_serve: ServeProcess) -> None:
    def ask(**fields: Any) -> Response:
        return client.responses.create(model=MODEL, input=WORDS, **fields)

    lost = ask()
    assert lost.to_dict()["store"] is True
    assert ask(previous_response_id=lost.id).previous_response_id == lost.id
    [pid] = [
        pid
        for pid, line in fake_serve.ray_processes().items()
        if line.startswith("ray::ServeReplica:pomona:ResponseStore")
    ]
    os.kill(pid, signal.SIGKILL)
    assert ask().output_text == WORDS
    with pytest.raises(openai.BadRequestError) as refused:
        ask(previous_response_id=lost.id)
    assert refused.value.code == "previous_response_not_found"
    # Another one takes its place.
    wait_for(lambda: bool(ask().to_dict()["store"]))
    kept = ask()
    assert ask(previous_response_id=kept.id).previous_response_id == kept.id
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(lost.id)
