"""The backend over a tiny real model: the thread, its queues, and what cancelling does."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM
from backend_metal.backend import MlxBackend
from backend_metal.device import available_devices
from backend_metal.engine.engine import Engine, Output
from backend_metal.engine.requests.preparation import Preparation
from backend_metal.engine.text.prompt import PromptEncoder
from deployments.backend import (
    ChatPrompt,
    Delta,
    EngineConfig,
    EngineStoppedError,
    GenerationRequest,
    InvalidRequestError,
    Prefill,
    PromptTooLongError,
    QueueFullError,
    SamplingParams,
    StepError,
    UnavailableError,
    create_backend,
)
from tests.support.backend_metal import tiny_models

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return path


@pytest.fixture
async def backend(checkpoint: Path) -> AsyncIterator[MlxBackend]:
    made = create_backend("mlx")
    assert isinstance(made, MlxBackend)
    await made.start(EngineConfig(model=str(checkpoint), num_kv_blocks=256, max_num_seqs=8))
    yield made
    await made.stop()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": "/nowhere/model"}, "there is no such directory"),
        ({"options": {"speed": "high"}}, "engine.options must be empty"),
        ({"device": "metal"}, "engine.device is 'metal'"),
        ({"memory_fraction": 1e-6}, "the weights take .*: raise memory_fraction"),
    ],
)
def test_what_can_be_told_without_loading(
    checkpoint: Path, setting: dict[str, Any], message: str
) -> None:
    backend = create_backend("mlx")
    backend.check(EngineConfig(model=str(checkpoint)))
    if setting.get("device") in available_devices():
        pytest.skip("it is there")
    with pytest.raises(ValueError, match=message):
        backend.check(EngineConfig.model_validate({"model": str(checkpoint), **setting}))


async def collect(backend: MlxBackend, request: GenerationRequest) -> list[Delta]:
    admitted, *items = [item async for item in backend.generate(request)]
    assert isinstance(admitted, Prefill)
    return [item for item in items if isinstance(item, Delta)]


def tokens(items: list[Delta | Prefill]) -> list[int]:
    return [token for item in items if isinstance(item, Delta) for token in item.token_ids]


async def until_idle(backend: MlxBackend) -> None:
    while backend.stats().requests_running or backend.stats().requests_waiting:
        await asyncio.sleep(0.001)


async def test_requests_run_together_and_match_the_offline_engine(
    backend: MlxBackend, checkpoint: Path
) -> None:
    prompts = ["a", "hello there", "x" * 70, "hello there, again"]
    requests = [GenerationRequest(str(i), prompt, GREEDY) for i, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*(collect(backend, request) for request in requests))
    offline = LLM(str(checkpoint), num_kv_blocks=256).generate(prompts, GREEDY, show_progress=False)
    assert [tokens(answer) for answer in answers] == [item.token_ids for item in offline]
    assert ["".join(d.text for d in answer) for answer in answers] == [i.text for i in offline]


CHAT = ChatPrompt(({"role": "user", "content": "hi <|end|>"},))


@pytest.mark.parametrize("prompt", ["hello there", CHAT], ids=["text", "chat"])
async def test_tokens_are_those_that_would_run(
    backend: MlxBackend, prompt: str | ChatPrompt
) -> None:
    request = GenerationRequest("a", prompt, GREEDY)
    token_ids = await backend.tokenize(request)
    (first, *rest) = await collect(backend, request)
    assert first.num_prompt_tokens == len(token_ids)
    same = GenerationRequest("b", tuple(token_ids), GREEDY)
    assert tokens(await collect(backend, same)) == tokens([first, *rest])
    spelled = await backend.spell(token_ids)
    text = await backend.detokenize(token_ids)
    assert b"".join(one.utf8 for one in spelled).decode() == text
    assert text.endswith("user: hi <|end|><|end|>assistant: " if prompt is CHAT else "hello there")


async def test_no_text_is_no_tokens_and_the_other_way_round(backend: MlxBackend) -> None:
    empty = GenerationRequest("a", "", GREEDY)
    assert await backend.tokenize(empty, add_special_tokens=False) == []
    assert await backend.detokenize([]) == ""
    assert await backend.spell([]) == []


async def test_what_is_no_token(backend: MlxBackend) -> None:
    for token_id in (-1, 10**6):
        with pytest.raises(InvalidRequestError, match=f"tokens has token id {token_id}") as caught:
            await backend.detokenize([1, token_id])
        assert caught.value.param == "tokens"
        with pytest.raises(InvalidRequestError):
            await backend.spell([token_id])


async def test_the_stop_string_that_ended_it_is_told(backend: MlxBackend) -> None:
    whole = await collect(backend, GenerationRequest("a", "hello there", GREEDY))
    text = "".join(delta.text for delta in whole)
    stop = text[2:4]
    stopping = replace(GREEDY, stop=("never to be seen", stop))
    ended = await collect(backend, GenerationRequest("b", "hello there", stopping))
    assert [delta.stop_string for delta in ended] == [None] * (len(ended) - 1) + [stop]
    assert ended[-1].finish_reason == "stop"
    assert {delta.stop_string for delta in whole} == {None}


async def test_chat_prompts_go_through_the_template(backend: MlxBackend) -> None:
    chat = ChatPrompt(({"role": "user", "content": "hi"},))
    (first, *_) = await collect(backend, GenerationRequest("chat", chat, GREEDY))
    text = "user: hi<|end|>assistant: "
    assert first.num_prompt_tokens == len(text) - len("<|end|>") + 1 + 1


async def test_closing_the_iterator_frees_the_blocks(backend: MlxBackend) -> None:
    iterator = backend.generate(GenerationRequest("a", "hello", ENDLESS, n=2))
    assert isinstance(await anext(iterator), Prefill)
    assert isinstance(await anext(iterator), Delta)
    assert backend.stats().kv_cache_blocks_free < 256
    await iterator.aclose()
    await until_idle(backend)
    assert backend.stats().kv_cache_blocks_free == 256
    assert backend.stats().request_success == {"abort": 1}


async def test_cancelling_a_waiting_task_frees_the_blocks(backend: MlxBackend) -> None:
    task = asyncio.create_task(collect(backend, GenerationRequest("a", "hello", ENDLESS)))
    while not backend.stats().requests_running:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(backend)
    assert backend.stats().kv_cache_blocks_free == 256


async def test_a_stream_that_nobody_reads_waits_and_then_goes_on(backend: MlxBackend) -> None:
    sampling = replace(GREEDY, max_tokens=400)
    wanted = GenerationRequest("slow", (1, 2, 3), sampling, n=2)
    undisturbed = await collect(backend, replace(wanted, request_id="undisturbed"))
    before = backend.stats().generation_tokens
    stream = backend.generate(wanted)
    read = [await anext(stream) for _ in range(2)]
    while backend.stats().requests_running:
        await asyncio.sleep(0.01)
    unread = backend.stats().generation_tokens - before
    assert unread < 2 * 400, "it ran to its end"
    assert (await collect(backend, replace(wanted, request_id="other"))) == undisturbed
    read += [item async for item in stream]
    assert [item for item in read if isinstance(item, Delta)] == undisturbed


async def test_what_is_made_is_told_before_anybody_reads_it(backend: MlxBackend) -> None:
    made: list[Delta | Prefill] = []
    before = backend.stats().generation_tokens
    wanted = GenerationRequest("slow", (1, 2, 3), ENDLESS, n=2, on_made=made.append)
    stream = backend.generate(wanted)
    assert await anext(stream) == made[0]
    while len(tokens(made)) < 100 or backend.stats().requests_running:
        await asyncio.sleep(0.01)
    assert len(tokens(made)) == backend.stats().generation_tokens - before
    await stream.aclose()


async def test_a_prompt_of_more_tokens_than_its_key_has_left_is_refused(
    backend: MlxBackend,
) -> None:
    wanted = GenerationRequest("a", (1, 2, 3), GREEDY, max_prompt_tokens=3)
    assert len(tokens(await collect(backend, wanted))) == 12
    with pytest.raises(PromptTooLongError, match="leaves 2 tokens for the prompt now, which has 3"):
        await collect(backend, replace(wanted, max_prompt_tokens=2))


async def test_a_refused_request_raises_and_hurts_nobody(backend: MlxBackend) -> None:
    good = asyncio.create_task(collect(backend, GenerationRequest("good", "hello", GREEDY)))
    with pytest.raises(InvalidRequestError, match="5000 in the messages") as error:
        await collect(backend, GenerationRequest("long", "x" * 5000, GREEDY))
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(InvalidRequestError) as error:
        await collect(backend, GenerationRequest("ids", (1, 99999), GREEDY))
    assert error.value.param == "prompt"
    assert len(tokens(await good)) == 12


async def test_a_request_id_in_use_is_refused_and_the_first_goes_on(backend: MlxBackend) -> None:
    iterator = backend.generate(GenerationRequest("a", "hello", GREEDY))
    first = await anext(iterator)
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        await collect(backend, GenerationRequest("a", "hello", GREEDY))
    assert len(tokens([first, *[delta async for delta in iterator]])) == 12


async def test_drain_finishes_what_runs_and_refuses_what_comes(backend: MlxBackend) -> None:
    iterator = backend.generate(GenerationRequest("a", "hello", GREEDY))
    first = await anext(iterator)
    draining = asyncio.create_task(backend.drain())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="not taking requests"):
        await collect(backend, GenerationRequest("b", "hello", GREEDY))
    assert not draining.done()
    rest = [delta async for delta in iterator]
    assert len(tokens([first, *rest])) == 12
    await draining


async def test_stop_ends_streams_with_abort(backend: MlxBackend) -> None:
    iterator = backend.generate(GenerationRequest("a", "hello", ENDLESS))
    await anext(iterator)
    await backend.stop()
    assert [delta async for delta in iterator][-1].finish_reason == "abort"
    with pytest.raises(UnavailableError, match="not running"):
        await backend.check_health()
    await backend.stop()


@pytest.fixture
def held_tokenizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Prompts are tokenized only once the event is set."""
    release = threading.Event()

    encode = PromptEncoder.encode

    def held(*arguments: Any) -> list[int]:
        release.wait()
        return encode(*arguments)

    monkeypatch.setattr(PromptEncoder, "encode", held)
    yield release
    release.set()


@pytest.fixture
def long_ones_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Prompts that have a thread of their own are tokenized only once the event is set."""
    release, encode = threading.Event(), PromptEncoder.encode
    monkeypatch.setattr("backend_metal.engine.requests.preparation.SHORT_CHARS", 10)

    def held(encoder: PromptEncoder, request: GenerationRequest) -> list[int]:
        if len(str(request.prompt)) > 10:
            release.wait()
        return encode(encoder, request)

    monkeypatch.setattr(PromptEncoder, "encode", held)
    yield release
    release.set()


async def test_a_short_prompt_does_not_wait_for_long_ones(
    backend: MlxBackend, long_ones_held: threading.Event
) -> None:
    waiting = [
        asyncio.create_task(collect(backend, GenerationRequest(f"long {i}", "x" * 11, GREEDY)))
        for i in range(3)
    ]
    assert await collect(backend, GenerationRequest("short", "hello", GREEDY))
    assert not any(task.done() for task in waiting)
    long_ones_held.set()
    assert all(await asyncio.gather(*waiting))


async def test_tokenizing_that_hangs_is_unhealthy(
    backend: MlxBackend, held_tokenizer: threading.Event
) -> None:
    engine = backend._engine
    assert engine is not None
    backend._preparation = Preparation(engine, limit_s=0.0, most_waiting=1)
    hanging = asyncio.create_task(collect(backend, GenerationRequest("a", "hello", GREEDY)))
    while not backend._requests:
        await asyncio.sleep(0)
    why = r"^rendering and tokenizing a prompt has taken longer than 0 s$"
    with pytest.raises(UnavailableError, match=why):
        await backend.check_health()
    with pytest.raises(UnavailableError, match=why):
        await collect(backend, GenerationRequest("b", "hello", GREEDY))
    await backend.stop()
    with pytest.raises(UnavailableError):
        await hanging


async def test_stop_during_tokenizing_ends_the_stream(
    backend: MlxBackend, held_tokenizer: threading.Event
) -> None:
    task = asyncio.create_task(collect(backend, GenerationRequest("a", "hello", GREEDY)))
    await asyncio.sleep(0)
    await backend.stop()
    held_tokenizer.set()
    with pytest.raises(UnavailableError):
        await task


async def test_an_engine_that_breaks_ends_every_stream(
    backend: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterator = backend.generate(GenerationRequest("a", "hello", ENDLESS))
    await anext(iterator)
    broken = "the books do not balance"

    def fail(engine: Engine, deliver: object) -> None:
        raise AssertionError(broken)

    monkeypatch.setattr(Engine, "step", fail)
    assert [delta async for delta in iterator][-1].finish_reason == "abort"
    with pytest.raises(UnavailableError, match=broken):
        await backend.check_health()
    with pytest.raises(UnavailableError, match=broken):
        await collect(backend, GenerationRequest("b", "hello", GREEDY))


async def test_an_engine_that_hangs_says_so_and_stops_without_its_thread(
    backend: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, release = threading.Event(), threading.Event()

    def hang(engine: Engine, deliver: object) -> list[Output]:
        hangs.set()
        release.wait()
        return []

    iterator = backend.generate(GenerationRequest("a", "hello", ENDLESS))
    await anext(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", hang)
        await asyncio.to_thread(hangs.wait)
        await backend.check_health()
        patch.setattr(backend._loop, "_now", lambda: math.inf)
        with pytest.raises(UnavailableError, match="a step has taken longer than 120 s"):
            await backend.check_health()
        with pytest.raises(UnavailableError):
            await collect(backend, GenerationRequest("b", "hello", GREEDY))
        await backend.stop()
        with pytest.raises(EngineStoppedError):
            [delta async for delta in iterator]
        release.set()


async def test_a_request_that_cannot_be_added_fails_alone(
    backend: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = backend.generate(GenerationRequest("good", "hello", GREEDY))
    first = await anext(good)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "add_request", lambda *arguments, **options: 1 / 0)
        with pytest.raises(StepError, match="division by zero"):
            await collect(backend, GenerationRequest("bad", "hello", GREEDY))
    assert len(tokens([first, *[delta async for delta in good]])) == 12


async def test_requests_in_the_tokenizer_count_as_waiting(
    checkpoint: Path, held_tokenizer: threading.Event
) -> None:
    backend = MlxBackend()
    await backend.start(
        EngineConfig(model=str(checkpoint), num_kv_blocks=64, max_num_seqs=1, max_queued_requests=1)
    )
    tasks = [
        asyncio.create_task(collect(backend, GenerationRequest(str(i), "hello", GREEDY)))
        for i in range(2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="2 requests are waiting") as error:
        await collect(backend, GenerationRequest("third", "hello", GREEDY))
    # Both wait, and until one has ended each is taken to need a second.
    assert error.value.retry_after == 2
    # One that another backend had let in needs no place, even if it has no token yet.
    sampling = replace(GREEDY, seed=1)
    admitted = GenerationRequest("admitted", "hello", sampling, resume=((),))
    tasks.append(asyncio.create_task(collect(backend, admitted)))
    await asyncio.sleep(0)
    held_tokenizer.set()
    assert [len(tokens(await task)) for task in tasks] == [12, 12, 12]
    await backend.stop()
    assert backend.stats().request_failure == {"rate_limit_error": 1}


async def test_a_key_leaves_room_for_others_in_the_queue(
    checkpoint: Path, held_tokenizer: threading.Event
) -> None:
    backend = MlxBackend()
    await backend.start(
        EngineConfig(model=str(checkpoint), num_kv_blocks=64, max_num_seqs=1, max_queued_requests=4)
    )
    tasks = [
        asyncio.create_task(collect(backend, GenerationRequest(str(i), "hi", GREEDY, tenant="a")))
        for i in range(3)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="as many requests of this API key"):
        await collect(backend, GenerationRequest("one too many", "hi", GREEDY, tenant="a"))
    other = GenerationRequest("other", "hi", GREEDY, tenant="b")
    tasks.append(asyncio.create_task(collect(backend, other)))
    await asyncio.sleep(0)
    held_tokenizer.set()
    assert [len(tokens(await task)) for task in tasks] == [12] * 4
    again = [GenerationRequest(f"again {i}", "hi", GREEDY, tenant="a") for i in range(3)]
    answers = await asyncio.gather(*(collect(backend, request) for request in again))
    assert [len(tokens(answer)) for answer in answers] == [12] * 3
    await backend.stop()


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    backend: MlxBackend, held_tokenizer: threading.Event
) -> None:
    with pytest.raises(InvalidRequestError, match=r"you requested \d+ tokens or more") as error:
        await collect(backend, GenerationRequest("long", "x" * 100_000, GREEDY))
    assert error.value.code == "context_length_exceeded"


async def test_refusals_are_counted(backend: MlxBackend) -> None:
    with pytest.raises(InvalidRequestError):
        await collect(backend, GenerationRequest("ids", (1, 99999), GREEDY))
    await collect(backend, GenerationRequest("good", "hello", GREEDY))
    assert backend.stats().request_failure == {"invalid_request_error": 1}


async def test_a_bad_setting_is_raised_by_start() -> None:
    made = create_backend("mlx")
    with pytest.raises(ValueError, match="nowhere"):
        await made.start(EngineConfig(model="/nowhere"))
    with pytest.raises(UnavailableError, match="did not start"):
        await made.check_health()
    await made.stop()


async def test_a_budget_smaller_than_the_batch_is_a_bad_setting(checkpoint: Path) -> None:
    made = create_backend("mlx")
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least max_num_seqs"):
        await made.start(
            EngineConfig(model=str(checkpoint), max_num_seqs=32, max_num_batched_tokens=16)
        )
    await made.stop()


def test_an_unknown_backend_is_refused_with_those_installed() -> None:
    with pytest.raises(
        ValueError, match=r"engine.backend must be one of \['metal'.*\], not 'cuda'"
    ):
        create_backend("cuda")


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (
            "libmlx.so: cannot open shared object file",
            "MLX is here without its library (libmlx.so: cannot open shared object file); on Linux",
        ),
        ("no such thing", "can't be loaded here: no such thing"),
    ],
)
def test_a_backend_that_lacks_something_says_what(missing: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text(f"raise ImportError({missing!r})")
    script = (
        "from deployments.backend import create_backend\n"
        "try:\n    create_backend('mlx')\n"
        "except ValueError as error:\n    print(error)"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.startswith("engine.backend 'mlx' can't be loaded here: ")
    assert told in finished.stdout
