"""What llama.cpp's server is held to of embeddings, rankings and tokens, as far as OpenAI and Jina
say the same: shapes alone, of a model with random weights."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.shaped_model import BOS_ID, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMBEDDINGS = "/v1/embeddings"
MEANING = "I believe the meaning of life is"
TEXTS = [MEANING, "Write a joke about AI", "This is a test", "This is another test"]
DOCUMENTS = [
    "A machine is a physical system that uses power.",
    "Learning is the process of acquiring new understanding.",
    "Machine learning is a field of study in artificial intelligence.",
    "Paris, capitale de la France, est une grande ville européenne.",
]


async def embedded(running: Running, value: Any, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = await told(
        running.client, EMBEDDINGS, model="demo", input=value, **fields
    )
    return body


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("string", 1),
        ([12, 34, 56], 1),
        (TEXTS, 4),
        ([[12, 34, 56], [12, 34, 56]], 2),
        (["string", [12, 34, 56]], 2),
    ],
)
async def test_inputs_become_vectors_of_length_1(shaped: Running, value: Any, count: int) -> None:
    body = await embedded(shaped, value)
    assert body["object"] == "list"
    assert [one["index"] for one in body["data"]] == [*range(count)]
    assert {one["object"] for one in body["data"]} == {"embedding"}
    for one in body["data"]:
        assert len(one["embedding"]) > 1
        assert sum(x * x for x in one["embedding"]) == pytest.approx(1.0, abs=1e-5)


async def test_the_same_text_has_the_same_vector(shaped: Running) -> None:
    first, *others = (one["embedding"] for one in (await embedded(shaped, [MEANING] * 5))["data"])
    assert len(others) == 4
    for other in others:
        assert other == pytest.approx(first, abs=1e-5)


async def test_tokens_of_inputs_are_counted(shaped: Running) -> None:
    tokens = (await told(shaped.client, "/tokenize", prompt=MEANING))["tokens"]
    for value, count in ((MEANING, 1), ([MEANING, MEANING], 2)):
        usage = (await embedded(shaped, value))["usage"]
        assert usage["prompt_tokens"] == usage["total_tokens"] == count * len(tokens)


async def test_base64_is_the_same_vector(shaped: Running) -> None:
    floats = (await embedded(shaped, MEANING))["data"][0]["embedding"]
    written = (await embedded(shaped, MEANING, encoding_format="base64"))["data"][0]["embedding"]
    raw = base64.b64decode(written, validate=True)
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(floats, abs=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize(("top_n", "count"), [(None, 4), (2, 2), (4, 4), (99, 4)])
async def test_documents_are_ranked(
    shaped: Running, path: str, top_n: int | None, count: int
) -> None:
    fields = {"query": "Machine learning is", "documents": DOCUMENTS}
    if top_n is not None:
        fields["top_n"] = top_n
    body = await told(shaped.client, path, model="demo", **fields)
    scores = [one["relevance_score"] for one in body["results"]]
    assert len(scores) == count
    assert scores == sorted(scores, reverse=True)
    indices = [one["index"] for one in body["results"]]
    assert len({*indices}) == count
    assert {*indices} <= {*range(4)}
    for one in body["results"]:
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0


async def test_a_text_is_the_same_after_its_tokens(shaped: Running) -> None:
    content = "What is the capital of France ?"
    for field in ("content", "prompt"):
        told_tokens = (await told(shaped.client, "/tokenize", **{field: content}))["tokens"]
        special = told_tokens[:1] == [BOS_ID]
        # llama.cpp adds special tokens for who asks, vLLM unless it is told not to.
        assert special == (field == "prompt")
        back = await told(shaped.client, "/detokenize", tokens=told_tokens[special:])
        assert back["content"] == back["prompt"] == content


async def test_tokens_begin_with_the_special_one_for_who_asks(shaped: Running) -> None:
    body = await told(shaped.client, "/tokenize", content="What?", add_special=True)
    assert body["tokens"][0] == BOS_ID
    assert BOS_ID not in body["tokens"][1:]


async def test_pieces_add_up_to_the_text(shaped: Running) -> None:
    content = "A string with unicode 媽 and emoji 🤗"
    body = await told(shaped.client, "/tokenize", content=content, with_pieces=True)
    pieces = [token["piece"] for token in body["tokens"]]
    assert all(token["id"] > 0 for token in body["tokens"])
    # What is no text by itself is told by its bytes.
    written = [one.encode() if isinstance(one, str) else bytes(one) for one in pieces]
    assert all(written)
    assert b"".join(written).decode() == content
