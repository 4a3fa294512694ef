"""``/v1/embeddings`` and ``/v1/rerank``, from a client's request to a replica and back."""

from __future__ import annotations

import asyncio
import base64
import math
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from deployments.backend import PoolingInput
from deployments.gateway.access.rate_limits import RateLimits
from deployments.wire.envelope import ENVELOPE_HEADER, Envelope
from tests.support.deployments.answers import error_of
from tests.support.deployments.fake_backend import VECTOR_SIZE, FakeBackend, values_of
from tests.support.deployments.gateway_harness import (
    SECRET,
    ScriptedReplica,
    fake_replica,
    gateway,
    outcomes,
    scripted,
)
from tests.support.deployments.limited_gateway import KEY, limited
from tests.support.deployments.replica_server import MAX_MODEL_LEN, build, in_memory

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
DOCUMENTS = ["apples and pears", "a cold day", "pears"]


def vector(prompt: Any) -> np.ndarray:
    return values_of(PoolingInput(prompt, "input"))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "input": ["one two", "three"], **fields}


def ranking(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "query": "fruit pears", "documents": DOCUMENTS, **fields}


async def test_the_openai_client_gets_vectors_as_floats_and_as_base64() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one], keys=["good"]) as running:
        url = f"{running.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="good", max_retries=0) as client:
            inputs = ["one two", "three"]
            by_default = await client.embeddings.create(model="demo", input=inputs)
            floats = await client.embeddings.create(
                model="demo", input=inputs, encoding_format="float"
            )
            tokens = await client.embeddings.create(model="demo", input=[[1, 2], [3]], user="u")
            cut = await client.embeddings.create(model="demo", input="one two", dimensions=3)
        counted = await outcomes(running)
    assert [one.index for one in by_default.data] == [0, 1]
    assert [one.embedding for one in by_default.data] == [one.embedding for one in floats.data]
    for prompt, told in zip(inputs, floats.data, strict=True):
        assert np.array_equal(np.array(told.embedding, np.float32), vector(prompt))
    assert np.array_equal(np.array(tokens.data[0].embedding, np.float32), vector((1, 2)))
    assert (by_default.usage.prompt_tokens, by_default.usage.total_tokens) == (3, 3)
    shortened = vector("one two")[:3]
    np.testing.assert_allclose(
        cut.data[0].embedding, shortened / np.linalg.norm(shortened), rtol=1e-6
    )
    assert counted == {("demo", "success"): 4}


async def test_the_body_has_what_openai_says_and_nothing_else() -> None:
    async with fake_replica() as one, gateway([one]) as running:
        answer = await running.client.post(EMBEDDINGS, json=body(encoding_format="base64"))
    told = answer.json()
    assert {*told} == {"object", "data", "model", "usage"}
    assert {*told["data"][0]} == {"object", "index", "embedding"}
    raw = base64.b64decode(told["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(raw, "<f4"), vector("one two"))


async def test_one_text_is_a_batch_of_one_and_tokens_are_an_input() -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one]) as running:
        for value, prompts in (("a b", ["a b"]), ([5, 6], [(5, 6)]), (["a", [7]], ["a", (7,)])):
            answer = await running.client.post(EMBEDDINGS, json=body(input=value))
            assert len(answer.json()["data"]) == len(prompts)
            assert [one.prompt for one in backend.pooling_requests[-1].inputs] == prompts
        fields = body(input="a b c d", truncate_prompt_tokens=2)
        answer = await running.client.post(EMBEDDINGS, json=fields)
        assert answer.json()["usage"]["prompt_tokens"] == 2


async def test_a_thousand_texts_are_one_request() -> None:
    backend = FakeBackend()
    texts = [f"text {number}" for number in range(1000)]
    async with fake_replica(backend) as one, gateway([one]) as running:
        answer = await running.client.post(EMBEDDINGS, json=body(input=texts))
    data = answer.json()["data"]
    assert [one["index"] for one in data] == [*range(1000)]
    assert np.array_equal(np.array(data[777]["embedding"], np.float32), vector(texts[777]))
    assert len(backend.pooling_requests) == 1


@pytest.mark.parametrize("path", [RERANK, "/rerank"])
async def test_documents_are_ranked_by_the_cosine_of_their_vectors(path: str) -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as one, gateway([one]) as running:
        told = (await running.client.post(path, json=ranking(top_n=2))).json()
        bare = (await running.client.post(path, json=ranking(return_documents=False))).json()
        texts = [{"text": one} for one in DOCUMENTS]
        same = (await running.client.post(path, json=ranking(documents=texts))).json()
    query = vector("question fruit pears")
    cosines = {index: float(query @ vector(one)) for index, one in enumerate(DOCUMENTS)}
    ranked = sorted(cosines, key=lambda index: -cosines[index])
    assert [one["index"] for one in told["results"]] == ranked[:2]
    assert [one["index"] for one in bare["results"]] == ranked
    assert same["results"][:2] == told["results"]
    best = told["results"][0]
    assert best["document"] == {"text": DOCUMENTS[ranked[0]]}
    assert best["relevance_score"] == pytest.approx(cosines[ranked[0]], abs=1e-6)
    assert "document" not in bare["results"][0]
    assert told["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert told["id"].startswith("rerank-")
    assert told["model"] == "demo"


async def test_a_model_that_scores_is_asked_of_each_document_with_the_query() -> None:
    backend = FakeBackend()
    async with (
        fake_replica(backend, options={"ranks_by": "score"}) as one,
        gateway([one]) as running,
    ):
        told = (await running.client.post(RERANK, json=ranking())).json()
    [request] = backend.pooling_requests
    assert request.task == "score"
    assert len(request.inputs) == len(DOCUMENTS)
    by_index = {one["index"]: one["relevance_score"] for one in told["results"]}
    assert [one["index"] for one in told["results"]] == [0, 2, 1]
    assert by_index[2] == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert by_index[1] == pytest.approx(1 / (1 + math.exp(0.5)))


async def test_who_does_not_rank_or_makes_no_vectors_says_so() -> None:
    async with fake_replica(options={"ranks_by": None}) as one, gateway([one]) as running:
        refused = await running.client.post(RERANK, json=ranking())
        assert (refused.status_code, error_of(refused)["param"]) == (400, "model")
        assert "does not rank" in error_of(refused)["message"]
        assert (await running.client.post(EMBEDDINGS, json=body())).status_code == 200
    async with fake_replica(options={"makes_vectors": False}) as one, gateway([one]) as running:
        refused = await running.client.post(EMBEDDINGS, json=body())
        assert (refused.status_code, error_of(refused)["param"]) == (400, "model")
        assert "makes no vectors" in error_of(refused)["message"]


async def test_a_replica_that_is_lost_in_the_middle_leaves_one_valid_answer() -> None:
    backend = FakeBackend()
    dying = ScriptedReplica(
        chunks=[b": keep-alive\n\n:~0=0/2\n\n", b'data: {"object":"li'], then="vanish"
    )
    async with (
        scripted(dying, name="a-dying") as first,
        fake_replica(backend, name="b-well") as second,
        gateway([first, second]) as running,
    ):
        answer = await running.client.post(EMBEDDINGS, json=body())
        assert answer.status_code == 200
        told = answer.json()
        assert [one["index"] for one in told["data"]] == [0, 1]
        assert told["usage"]["prompt_tokens"] == 3
        assert len(dying.requests) == len(backend.pooling_requests) == 1
        assert await outcomes(running) == {("demo", "success"): 1}


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [("boom", 502, "replica_lost"), ("bug", 500, "internal_error"), ("full", 429, "queue_full")],
)
async def test_faults_have_their_status(words: str, status: int, code: str) -> None:
    faults = {"boom": "step_error", "bug": "crash", "full": "queue_full"}
    async with (
        fake_replica(options={"faults": faults}) as one,
        gateway([one]) as running,
    ):
        answer = await running.client.post(EMBEDDINGS, json=body(input=["well", words]))
        assert (answer.status_code, error_of(answer)["code"]) == (status, code)
        assert (await running.client.post(EMBEDDINGS, json=body())).status_code == 200


async def test_a_long_one_is_kept_alive_and_ends_when_its_client_leaves() -> None:
    backend = FakeBackend()
    backend.hold(after_tokens=1)
    async with fake_replica(backend) as one, gateway([one]) as running:
        headers = {"Authorization": f"Bearer {SECRET}", ENVELOPE_HEADER: Envelope.seal().header()}
        async with running.client.stream(
            "POST", f"{one.url}{EMBEDDINGS}", json=body(), headers=headers
        ) as response:
            received = ""
            async for text in response.aiter_text():
                received += text
                if received.endswith(": keep-alive\n\n:~\n\n"):
                    break
        assert received.startswith(": keep-alive\n\n:~0=0/2\n\n")
        await backend.live.reaches(0)
        asking = asyncio.create_task(running.client.post(EMBEDDINGS, json=body()))
        await backend.held.reaches(1)
        asking.cancel()
        await backend.live.reaches(0)


async def test_tokens_are_charged_and_a_batch_counts_as_one_at_a_time() -> None:
    limits = RateLimits(tokens_per_minute=1000, max_concurrent_requests=2)
    backend = FakeBackend()
    async with limited(limits, backend) as running:
        fields = body(input=["a b c"] * 20)
        first = await running.client.post(EMBEDDINGS, json=fields, headers=KEY)
        assert first.status_code == 200
        second = await running.client.post(EMBEDDINGS, json=body(), headers=KEY)
        assert second.headers["x-ratelimit-remaining-tokens"] == str(1000 - 20 * 3 - 3)
        refused = await running.client.post(EMBEDDINGS, json=body(input="x" * 5000), headers=KEY)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        words = body(input=" ".join(["x"] * 480) + " ")
        await running.client.post(EMBEDDINGS, json=words, headers=KEY)
        over = await running.client.post(EMBEDDINGS, json=words, headers=KEY)
        assert over.status_code == 429


BAD = [
    # name, path, fields, param, what the message says
    ("no input", EMBEDDINGS, {"input": None}, "input", "required"),
    ("an empty string", EMBEDDINGS, {"input": ""}, "input", "non-empty string"),
    ("an empty array", EMBEDDINGS, {"input": []}, "input", "non-empty array"),
    ("a number", EMBEDDINGS, {"input": 3}, "input", "array of token ids"),
    ("an object", EMBEDDINGS, {"input": {"text": "a"}}, "input", "array of token ids"),
    ("an empty text", EMBEDDINGS, {"input": ["a", ""]}, "input[1]", "non-empty string"),
    ("no text", EMBEDDINGS, {"input": ["a", None]}, "input[1]", "non-empty string"),
    ("an empty array inside", EMBEDDINGS, {"input": ["a", []]}, "input[1]", "non-empty"),
    ("a negative token", EMBEDDINGS, {"input": [[1], [2, -1]]}, "input[1][1]", "a token id"),
    ("half a token", EMBEDDINGS, {"input": [1, 2.5]}, "input[1]", "a token id"),
    ("a token too large", EMBEDDINGS, {"input": [[2**31]]}, "input[0][0]", "a token id"),
    ("too many texts", EMBEDDINGS, {"input": ["a"] * 2049}, "input", "at most 2048"),
    ("arrays too deep", EMBEDDINGS, {"input": [[[1]]]}, "input[0][0]", "a token id"),
    ("too long", EMBEDDINGS, {"input": ["a", "b " * 201]}, "input[1]", "maximum context length"),
    ("too long alone", EMBEDDINGS, {"input": "b " * 201}, "input", "maximum context length"),
    ("an unknown format", EMBEDDINGS, {"encoding_format": "hex"}, "encoding_format", "base64"),
    ("a format in bytes", EMBEDDINGS, {"encoding_format": "bytes"}, "encoding_format", "float"),
    ("no dimensions", EMBEDDINGS, {"dimensions": 0}, "dimensions", "at least 1"),
    ("too many dimensions", EMBEDDINGS, {"dimensions": 9}, "dimensions", "at most 8"),
    ("dimensions as text", EMBEDDINGS, {"dimensions": "3"}, "dimensions", "an integer"),
    ("nothing left", EMBEDDINGS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1"),
    ("less", EMBEDDINGS, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "at least 1"),
    ("a stream", EMBEDDINGS, {"stream": True}, "stream", "not a known field"),
    ("messages", EMBEDDINGS, {"messages": [{"role": "user"}]}, "messages", "not supported"),
    ("a dtype", EMBEDDINGS, {"embed_dtype": "float16"}, "embed_dtype", "float32"),
    ("a mistake", EMBEDDINGS, {"dimension": 3}, "dimension", "Did you mean dimensions?"),
    ("no model", EMBEDDINGS, {"model": None}, "model", "required"),
    ("no query", RERANK, {"query": None}, "query", "required"),
    ("an empty query", RERANK, {"query": ""}, "query", "non-empty string"),
    ("a query as tokens", RERANK, {"query": [1]}, "query", "non-empty string"),
    ("no documents", RERANK, {"documents": []}, "documents", "non-empty array"),
    ("documents as text", RERANK, {"documents": "a"}, "documents", "non-empty array"),
    ("an empty document", RERANK, {"documents": ["a", ""]}, "documents[1]", "non-empty string"),
    ("no text", RERANK, {"documents": [{"title": "a"}]}, "documents[0]", "an object with a text"),
    ("more than a text", RERANK, {"documents": [{"text": "a", "id": 1}]}, "documents[0]", "text"),
    ("a number", RERANK, {"documents": [1]}, "documents[0]", "non-empty string"),
    ("too many", RERANK, {"documents": ["a"] * 2048}, "documents", "at most 2047"),
    ("a long document", RERANK, {"documents": ["a", "b " * 201]}, "documents[1]", "maximum"),
    ("a long query", RERANK, {"query": "b " * 201}, "query", "maximum context length"),
    ("negative", RERANK, {"top_n": -1}, "top_n", "at least 0"),
    ("top_n as text", RERANK, {"top_n": "2"}, "top_n", "an integer"),
    ("maybe", RERANK, {"return_documents": "yes"}, "return_documents", "a boolean"),
    ("fields", RERANK, {"rank_fields": ["title"]}, "rank_fields", "not supported"),
    ("cut", RERANK, {"max_tokens_per_doc": 9}, "max_tokens_per_doc", "not supported"),
    ("an instruction", RERANK, {"instruction": "x"}, "instruction", "not supported"),
]


def test_the_table_is_large() -> None:
    assert len(BAD) >= 30


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [case[1:] for case in BAD],
    ids=[f"{case[1]} {case[0]}" for case in BAD],
)
async def test_what_is_wrong_is_refused_by_its_name(
    path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    app, _ = await build()
    good = body() if path == EMBEDDINGS else ranking()
    async with in_memory(app) as client:
        answer = await client.post(path, json={**good, "model": "echo", **fields})
        assert (answer.status_code, error_of(answer)["type"]) == (400, "invalid_request_error")
        assert error_of(answer)["param"] == param
        assert says in error_of(answer)["message"]
        assert len(error_of(answer)["message"]) < 400
        assert (await client.post(path, json={**good, "model": "echo"})).status_code == 200


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"model":"demo","model":"demo"}'])
async def test_what_is_no_object_is_refused(content: bytes) -> None:
    async with fake_replica() as one, gateway([one]) as running:
        for path in (EMBEDDINGS, RERANK):
            answer = await running.client.post(path, content=content)
            assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")
        unknown = await running.client.post(EMBEDDINGS, json=body(model="other"))
        assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


async def test_a_replica_asked_directly_answers_whole_and_asks_for_the_secret() -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        told = (await client.post(EMBEDDINGS, json={"model": "echo", "input": "a b"})).json()
        assert np.array_equal(np.array(told["data"][0]["embedding"], np.float32), vector("a b"))
        assert len(told["data"][0]["embedding"]) == VECTOR_SIZE
        assert len(backend.pooling_requests) == 1
        wrong = await client.post(EMBEDDINGS, json={}, headers={"Authorization": "Bearer no"})
        assert wrong.status_code == 401
        assert MAX_MODEL_LEN == 200
