"""The default config, as a newcomer meets it: the real engine and the embedded model."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import httpx
import numpy as np
import openai
import pytest
from anthropic import Anthropic, BadRequestError
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, Field

from backend_metal import LLM, ChatPrompt, SamplingParams
from tests.support.deployments.bad_input import BadInput, bad_inputs
from tests.support.e2e.serve_process import READY_TIMEOUT_S, ServeProcess, scrape_url

MODEL = "demo"
QUESTIONS = ("What is Pomona?", "Tell me a joke.", "Write a short poem about the sea.")
MAX_BODY_BYTES = 8 << 20


@pytest.fixture
def client(demo_serve: ServeProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_serve.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(demo_serve: ServeProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{demo_serve.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM(MODEL, num_kv_blocks=256)


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def engine_samples(serve: ServeProcess) -> list[tuple[str, dict[str, str], float]]:
    text = httpx.get(scrape_url(serve, "engine"), timeout=READY_TIMEOUT_S).text
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def engine_total(serve: ServeProcess, name: str, **labels: str) -> float:
    return sum(
        value
        for sample, its_labels, value in engine_samples(serve)
        if sample == name and labels.items() <= its_labels.items()
    )


def test_the_demo_model_makes_vectors(client: OpenAI, offline: LLM) -> None:
    texts = [f"{question} {number}" for number in range(40) for question in QUESTIONS[:2]]
    answer = client.embeddings.create(model=MODEL, input=texts)
    vectors = np.array([one.embedding for one in answer.data], np.float32)
    np.testing.assert_allclose(vectors, offline.embed(texts), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(texts)


@pytest.mark.parametrize("question", QUESTIONS)
def test_streamed_whole_and_offline_answers_are_one(
    client: OpenAI, offline: LLM, question: str
) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=messages(question), temperature=0, max_tokens=100
    )
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=messages(question),
        temperature=0,
        max_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
        usage = chunk.usage or usage
    (expected,) = offline.generate(
        [ChatPrompt(tuple(messages(question)))],
        SamplingParams(temperature=0.0, max_tokens=100),
        show_progress=False,
    )
    assert whole.choices[0].message.content == text == expected.text
    assert reasons[-1] == whole.choices[0].finish_reason == expected.finish_reason == "stop"
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == len(expected.token_ids)
    assert usage.prompt_tokens == whole.usage.prompt_tokens == expected.num_prompt_tokens


async def test_the_asynchronous_client_streams_the_same(async_client: AsyncOpenAI) -> None:
    async def whole(question: str) -> str | None:
        answer = await async_client.chat.completions.create(
            model=MODEL, messages=messages(question), temperature=0
        )
        return answer.choices[0].message.content

    async def streamed(question: str) -> str:
        stream = await async_client.chat.completions.create(
            model=MODEL, messages=messages(question), temperature=0, stream=True
        )
        return "".join(
            [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        )

    answers = await asyncio.gather(*(ask(q) for q in QUESTIONS for ask in (whole, streamed)))
    assert answers[0::2] == answers[1::2]


def test_a_seed_makes_sampling_repeatable(client: OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=messages("Tell me a story."),
            temperature=2.0,
            seed=seed,
            n=3,
            max_tokens=60,
        )
        return [choice.message.content for choice in answer.choices]

    first = ask(1)
    assert len(set(first)) == 3
    assert ask(1) == first
    assert ask(2) != first


def test_logprobs_and_cached_tokens(client: OpenAI) -> None:
    prompt = messages("What is a KV cache? " * 4)
    for _ in range(2):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=prompt,
            temperature=0,
            max_tokens=5,
            logprobs=True,
            top_logprobs=2,
        )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


def test_completions_stop_at_a_stop_string(client: OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="Pomona is", temperature=0, max_tokens=30)
    text = free.choices[0].text
    stop = text[10:14]
    cut = client.completions.create(
        model=MODEL, prompt="Pomona is", temperature=0, max_tokens=30, stop=stop
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


class Pear(BaseModel):
    kind: Literal["Conference", "Williams"]
    weight: Annotated[int, Field(ge=0, le=999)]
    notes: Annotated[list[Annotated[str, Field(max_length=8)]], Field(max_length=2)]


def test_answers_match_what_they_are_asked_to(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=messages("A pear, please."), response_format=Pear, n=3, temperature=1
    )
    assert all(isinstance(choice.message.parsed, Pear) for choice in parsed.choices)
    with client.chat.completions.stream(
        model=MODEL, messages=messages("Another."), response_format=Pear
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Pear)
    number = client.completions.create(
        model=MODEL, prompt="1 + 1 =", extra_body={"structured_outputs": {"regex": "-?[0-9]{3}"}}
    )
    assert re.fullmatch("-?[0-9]{3}", number.choices[0].text)
    with pytest.raises(
        openai.BadRequestError, match=r'properties\.x: keyword "uniqueItems"'
    ) as error:
        client.chat.completions.create(
            model=MODEL,
            messages=messages("hi"),
            response_format={
                "type": "json_schema",
                "json_schema": {
                    "name": "set",
                    "schema": {"properties": {"x": {"uniqueItems": True}}},
                },
            },
        )
    assert error.value.param == "response_format.json_schema.schema"


FILE: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads one file of the working directory.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["a.txt", "b.txt"]}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}


def test_a_first_message_of_open_webui_is_answered(client: OpenAI) -> None:
    """With its tools, and then what it asks for by itself."""
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=messages("What is Pomona?"),
        tools=[FILE],
        tool_choice="auto",
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text = "".join(choice.delta.content or "" for one in chunks for choice in one.choices)
    assert text.startswith("Pomona is a server for language models")
    title = client.chat.completions.create(
        model=MODEL,
        messages=messages('### Task:\nGenerate a title.\n### Output:\nJSON: { "title": "..." }'),
        response_format={"type": "json_object"},
        max_completion_tokens=1000,
    )
    assert title.choices[0].message.content


def test_a_call_is_made_and_its_result_read(client: OpenAI) -> None:
    asked: list[Any] = messages("What is Pomona?")
    answer = client.chat.completions.create(
        model=MODEL, messages=asked, tools=[FILE], tool_choice="required", parallel_tool_calls=False
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["path"] in ("a.txt", "b.txt")
    asked += [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Nothing is in it."},
        *messages("What is Pomona?"),
    ]
    after = client.chat.completions.create(model=MODEL, messages=asked, tools=[FILE], temperature=0)
    assert str(after.choices[0].message.content).startswith("Pomona is a server for language")


def test_an_agent_whose_tools_fill_the_context_is_told_so(demo_serve: ServeProcess) -> None:
    tool = {"name": "t", "description": "word " * 400, "input_schema": {"type": "object"}}
    with Anthropic(base_url=demo_serve.url, api_key="none", max_retries=0) as agent:
        with pytest.raises(BadRequestError, match=r"prompt is too long: \d+ tokens > 8191 maximum"):
            agent.messages.create(
                model=MODEL,
                max_tokens=32_000,
                stream=True,
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{**tool, "name": f"t{number}"} for number in range(24)],
            )
        [model] = agent.models.list().data
    assert (model.max_input_tokens, model.max_tokens) == (8192, 8192)
    assert model.capabilities is not None
    assert not model.capabilities.thinking.supported


def test_errors_are_typed_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=messages("hi"))
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=messages("word " * 20_000))
    assert error.value.code == "context_length_exceeded"
    assert error.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], logit_bias={"99999": 1}
        )
    assert error.value.param == "logit_bias"


def test_bad_input_is_refused_by_name_and_hurts_nothing(demo_serve: ServeProcess) -> None:
    models = httpx.get(f"{demo_serve.url}/v1/models", timeout=READY_TIMEOUT_S).json()
    max_model_len = models["data"][0]["max_model_len"]
    cases: list[BadInput] = bad_inputs(
        model=MODEL, max_body_bytes=MAX_BODY_BYTES, max_model_len=max_model_len
    )
    assert len(cases) >= 40
    with httpx.Client(base_url=demo_serve.url, timeout=60) as http:
        for case in cases:
            response = http.post(
                case.path, content=case.body, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == case.status, (case.name, response.text)
            error = response.json()["error"]
            assert (error["type"], error["param"]) == (case.type, case.param), case.name
            assert all(part in error["message"] for part in case.says), (case.name, error)
        ready = http.get("/ready")
        assert ready.status_code == 200
        # The device's own kernels passed the check at start.
        assert ready.json()["attention"]["path"] in ("cpu", "metal")
        answer = http.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": "Pomona is", "max_tokens": 3},
        )
        assert answer.status_code == 200


async def test_64_streams_with_random_cancellations_add_up(
    demo_serve: ServeProcess, async_client: AsyncOpenAI
) -> None:
    names = ("pomona_prompt_tokens_total", "pomona_generation_tokens_total")
    before = {name: engine_total(demo_serve, name) for name in names}
    finished_before = engine_total(demo_serve, "pomona_request_success_total")
    aborted_before = engine_total(demo_serve, "pomona_request_success_total", finish_reason="abort")
    dice = random.Random(0)
    leave_after = [dice.choice([None, None, dice.randint(1, 20)]) for _ in range(64)]

    async def one(number: int) -> tuple[int, int] | None:
        """(prompt, completion) tokens as the client counts them; None when it left."""
        stream = await async_client.chat.completions.create(
            model=MODEL,
            messages=messages(f"Write story number {number} about the sea."),
            temperature=0.8,
            seed=number,
            max_tokens=40,
            extra_body={"ignore_eos": True},
            stream=True,
            stream_options={"include_usage": True},
        )
        num_chunks = 0
        async for chunk in stream:
            num_chunks += 1
            if num_chunks == leave_after[number]:
                await stream.close()
                return None
            if chunk.usage:
                return chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        raise AssertionError("the stream ended without usage")

    counted = await asyncio.gather(*(one(number) for number in range(64)))
    for _ in range(600):
        if not engine_total(demo_serve, "pomona_requests_running") and not engine_total(
            demo_serve, "pomona_requests_waiting"
        ):
            break
        await asyncio.sleep(0.1)
    assert engine_total(demo_serve, "pomona_requests_running") == 0
    assert engine_total(demo_serve, "pomona_requests_waiting") == 0
    assert engine_total(demo_serve, "pomona_kv_cache_blocks_free") == engine_total(
        demo_serve, "pomona_kv_cache_blocks_total"
    )
    done = [usage for usage in counted if usage is not None]
    assert len(done) >= leave_after.count(None)
    finished = engine_total(demo_serve, "pomona_request_success_total") - finished_before
    aborted = (
        engine_total(demo_serve, "pomona_request_success_total", finish_reason="abort")
        - aborted_before
    )
    assert finished == 64, "a request was lost"
    assert aborted <= 64 - len(done)
    # Who left had at least the tokens that it saw; who stayed, exactly those of its usage.
    for position, name in enumerate(names):
        told = engine_total(demo_serve, name) - before[name]
        seen = sum(usage[position] for usage in done)
        most = seen + (64 - len(done)) * (40 if position else 60)
        assert seen <= told <= most, name
    assert all(completion == 40 for _, completion in done)


def test_every_metric_of_the_contract_is_there(demo_serve: ServeProcess, client: OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="Pomona is", max_tokens=2)
    samples = engine_samples(demo_serve)
    names = {name for name, _, _ in samples}
    for name in (
        "request_success_total",
        "request_failure_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_hit_tokens_total",
        "prefix_cache_query_tokens_total",
        "preemptions_total",
        "steps_total",
        "attention_launches_total",
        "time_to_first_token_seconds_bucket",
        "time_per_output_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "queue_time_seconds_bucket",
        "step_duration_seconds_bucket",
        "requests_running",
        "requests_waiting",
        "kv_cache_usage_ratio",
        "kv_cache_blocks_total",
        "kv_cache_blocks_free",
        "memory_active_bytes",
    ):
        assert f"pomona_{name}" in names
    own = [(name, labels) for name, labels, _ in samples if name.startswith("pomona_")]
    for name, labels in own:
        # A host's figures are nobody's in particular.
        host_only = name.startswith("pomona_host_")
        assert ({"node"} if host_only else {"model", "replica", "node"}) <= labels.keys()
    assert engine_total(demo_serve, "pomona_attention_launches_total") > 0


def test_a_conversation_goes_on_by_the_id_of_its_last_response(client: OpenAI) -> None:
    ids, previous, had = [], None, 0
    for question in ("What is a KV cache? " * 4, "Why is that?", "And what is an apple?"):
        answer = client.responses.create(
            model=MODEL,
            input=question,
            previous_response_id=previous,
            temperature=0,
            max_output_tokens=30,
        )
        assert answer.usage is not None
        # All whole blocks of the prompt before, at least: it is the beginning of this one.
        assert answer.usage.input_tokens_details.cached_tokens >= had // 16 * 16
        assert answer.previous_response_id == previous
        previous, had = answer.id, answer.usage.input_tokens
        ids.append(answer.id)
        assert client.responses.retrieve(answer.id) == answer
    assert len(client.responses.input_items.list(ids[-1]).data) == 5
    client.responses.delete(ids[0])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ids[0])
    streamed = client.responses.create(
        model=MODEL,
        input="Go on.",
        previous_response_id=ids[1],
        stream=True,
        store=False,
        max_output_tokens=5,
    )
    [*_, last] = streamed
    assert last.response.previous_response_id == ids[1]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.response.id)
