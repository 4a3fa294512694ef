"""The ``openai`` package's own client against a replica."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.deployments.fake_backend import token_id
from tests.support.deployments.replica_server import MODEL, SECRET, build, served

QUESTION = [{"role": "user", "content": "say this word by word"}]


def ask_in_every_way(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0)
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, seed=1, user="me")
    assert whole.choices[0].message.content == "say this word by word"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == 10
    assert whole.usage.prompt_tokens_details.cached_tokens == 0

    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"top_k": 5},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage

    completion = client.completions.create(model=MODEL, prompt=["a b", "c"], n=2, logprobs=1)
    assert [choice.text for choice in completion.choices] == ["a b", "b a", "c", "c"]
    assert completion.choices[0].logprobs.tokens == ["a", " b"]

    tools = [{"type": kind} for kind in ("web_search", "code_interpreter", "web_search")]
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, service_tier="auto", metadata={"a": "b"}, tools=tools
    )
    assert raw.headers["X-Pomona-Dropped"] == "web_search, code_interpreter"
    assert raw.parse().service_tier == "default"
    assert raw.parse().choices[0].message.content == text
    tiers = client.chat.completions.create(
        model=MODEL, messages=QUESTION, service_tier="default", stream=True
    )
    assert {chunk.service_tier for chunk in tiers} == {"default"}
    assert {chunk.service_tier for chunk in chunks} == {whole.service_tier} == {None}

    tell_usage_and_tokens(client)
    tell_of_prompts(client)

    with client.chat.completions.stream(model=MODEL, messages=QUESTION) as events:
        assert events.get_final_completion().choices[0].message.content == text

    for kind, fields in (
        (openai.BadRequestError, {"temperature": 9}),
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "x " * 500}]}),
    ):
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": MODEL, "messages": QUESTION} | fields)
        assert caught.value.param == next(iter(fields))
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").completions.create(model=MODEL, prompt="x")
    with pytest.raises(openai.APIError, match="fake step failed"):
        list(client.completions.create(model=MODEL, prompt="boom b c d", stream=True))
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt="boom b c d")
    client.close()


def tell_usage_and_tokens(client: OpenAI) -> None:
    words = ["say", " this", " word", " by", " word"]
    ids = [token_id(word) for word in words]
    prompt_ids = [token_id(word.strip()) for word in words]
    fields = {"model": MODEL, "extra_body": {"return_token_ids": True}}
    told = fields | {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    whole = client.chat.completions.create(messages=QUESTION, **fields)
    assert whole.prompt_token_ids == prompt_ids
    assert whole.choices[0].token_ids == ids
    *chunks, last = client.chat.completions.create(messages=QUESTION, **told)
    with_text = [chunk for chunk in chunks if chunk.choices[0].delta.content]
    assert [chunk.usage.completion_tokens for chunk in with_text] == [1, 2, 3, 4, 5]
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {5}
    assert chunks[-1].usage.total_tokens == last.usage.total_tokens == 10
    assert chunks[0].prompt_token_ids == prompt_ids
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in chunks[1:])
    assert [one for chunk in chunks for one in getattr(chunk.choices[0], "token_ids", ())] == ids

    prompt = " ".join(word.strip() for word in words)
    completion = client.completions.create(prompt=[prompt, "c"], n=2, logprobs=0, **fields)
    assert completion.choices[0].token_ids == ids
    assert completion.choices[1].prompt_token_ids == prompt_ids
    assert completion.choices[3].prompt_token_ids == [token_id("c")]
    *chunks, last = client.completions.create(prompt=prompt, **told)
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5]
    assert [one for chunk in chunks for one in chunk.choices[0].token_ids] == ids
    assert [chunk.choices[0].prompt_token_ids for chunk in chunks] == [prompt_ids] + [None] * 4

    as_ids = {"model": MODEL, "extra_body": {"return_tokens_as_token_ids": True}}
    named = client.completions.create(prompt=prompt, logprobs=1, **as_ids).choices[0].logprobs
    assert named.tokens == [f"token_id:{one}" for one in ids]
    assert [*named.top_logprobs[0]] == [f"token_id:{ids[0]}"]
    content = (
        client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=1, **as_ids)
        .choices[0]
        .logprobs.content
    )
    assert [one.token for one in content] == named.tokens
    assert content[0].top_logprobs[0].token == named.tokens[0]
    assert bytes(content[1].bytes).decode() == " this"


def tell_of_prompts(client: OpenAI) -> None:
    def ask(prompt: Any, **fields: Any) -> list[Any]:
        return client.completions.create(**{"model": MODEL, "prompt": prompt, **fields}).choices

    for max_tokens, said in ((0, ""), (1, "a")):
        [plain] = ask("a bc", echo=True, max_tokens=max_tokens)
        assert plain.text == f"a bc{said}"
        assert plain.logprobs is None
        # As evaluation harnesses ask.
        [told] = ask("a bc", echo=True, max_tokens=max_tokens, logprobs=1)
        assert told.text == plain.text
        logprobs = told.logprobs
        assert logprobs.tokens == ["a", " bc", *said]
        assert logprobs.token_logprobs == [None, -2.0, -0.5][: 2 + max_tokens]
        assert logprobs.top_logprobs[:2] == [None, {" bc?0": -1.0, " bc": -2.0}]
        assert logprobs.text_offset == [0, 1, 4][: 2 + max_tokens]
    first, *_, last = ask(["a", [7, 8]], n=2, echo=True, max_tokens=1, logprobs=0)
    assert (first.text, last.text) == ("aa", "t7 t8t8")
    assert last.logprobs.text_offset == [0, 2, 5]

    streamed: dict[int, list[Any]] = {}
    fields = {"n": 2, "echo": True, "logprobs": 1}
    for chunk in client.completions.create(
        model=MODEL, prompt=["a bc", "d"], stream=True, **fields
    ):
        streamed.setdefault(chunk.choices[0].index, []).append(chunk.choices[0])
    for whole in ask(["a bc", "d"], **fields):
        chunks = streamed[whole.index]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            arrays = [getattr(chunk.logprobs, name) for chunk in chunks]
            assert [*itertools.chain(*arrays)] == getattr(whole.logprobs, name)

    asked = {"extra_body": {"prompt_logprobs": 1}}
    expected = [
        None,
        {
            str(token_id(" bc")): {"logprob": -2.0, "rank": 2, "decoded_token": " bc"},
            str(token_id(" bc?0")): {"logprob": -1.0, "rank": 1, "decoded_token": " bc?0"},
        },
    ]
    assert [choice.prompt_logprobs for choice in ask("a bc", n=2, **asked)] == [expected] * 2
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a bc"}], **asked
    )
    assert chat.prompt_logprobs == expected
    assert chat.choices[0].message.content == "a bc"
    assert not hasattr(ask("a bc")[0], "prompt_logprobs")


async def test_the_synchronous_client() -> None:
    app, backend = await build(
        options={"faults": {"boom": "step_error"}, "delay_s": 0.002}, prefix_caching=False
    )
    async with served(app) as url:
        await asyncio.to_thread(ask_in_every_way, url)
    assert backend.live.value == 0


async def test_the_asynchronous_client() -> None:
    app, backend = await build(keep_alive_interval_s=0.01)
    backend.hold(after_tokens=2)
    async with served(app) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0)
        chunks = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, logprobs=True, top_logprobs=2
        )
        texts = []
        async for chunk in chunks:
            texts.append(chunk.choices[0].delta.content or "")
            if len(texts) == 2:
                backend.release()
        assert "".join(texts) == "say this word by word"

        backend.hold(after_tokens=2)
        chunks = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        await backend.held.reaches(1)
        await chunks.close()
        await backend.live.reaches(0)
        await client.close()
