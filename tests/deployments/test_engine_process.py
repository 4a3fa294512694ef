"""A backend in a process of its own is the same backend; and what each process hears of the other's
end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

from deployments.backend import (
    Backend,
    BackendError,
    ChatPrompt,
    Delta,
    EngineConfig,
    EngineStoppedError,
    GenerationRequest,
    InvalidRequestError,
    PoolingInput,
    PoolingRequest,
    Prefill,
    SamplingParams,
    StepError,
    UnavailableError,
)
from deployments.backend.apart import EngineProcess, engine_process
from tests.support.backend_metal import tiny_models
from tests.support.deployments.fake_backend import FakeBackend, Fault, token_id
from tests.support.deployments.faulty_backend import FaultyBackend
from tests.support.e2e.serve_process import plugin

pytestmark = pytest.mark.serve

FAULTS: Sequence[Fault] = get_args(Fault)
CONFIG = EngineConfig.model_validate(
    {
        "model": "/models/demo",
        "backend": "fake",
        "options": {"faults": {f"fault-{one}": one for one in FAULTS}},
    }
)
SAMPLING = SamplingParams(temperature=0.0, logprobs=2)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Backends that tests alone have."""
    fake = f"{FakeBackend.__module__}:{FakeBackend.__name__}"
    faulty = f"{FaultyBackend.__module__}:{FaultyBackend.__name__}"
    folder = plugin(
        tmp_path_factory.mktemp("plugin"),
        fake=fake,
        faulty=faulty,
        missing="no_such_package:Backend",
    )
    with pytest.MonkeyPatch.context() as patch:
        for one in reversed(folder.split(os.pathsep)):
            patch.syspath_prepend(one)
        yield


@asynccontextmanager
async def apart(config: EngineConfig = CONFIG) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(config.backend)
    await engine.start(config)
    try:
        yield engine
    finally:
        await engine.stop()
        assert not children()


def children() -> list[psutil.Process]:
    """The engines of this process."""
    return [
        one
        for one in psutil.Process().children()
        if EngineProcess.__module__.rpartition(".")[0] in one.cmdline()
    ]


async def outcome(backend: Backend, request: GenerationRequest | PoolingRequest) -> list[Any]:
    """All that comes of a request, its error last."""
    run = backend.pool if isinstance(request, PoolingRequest) else backend.generate
    items: list[Any] = []
    try:
        async for item in run(request):  # type: ignore[operator]
            items.append(item)
    except BackendError as error:
        items.append((type(error), error.args, vars(error)))
    except (RuntimeError, asyncio.CancelledError) as error:
        items.append(str(error))
    return items


REQUESTS = {
    "text": GenerationRequest("a", "one two three", SAMPLING),
    "two": GenerationRequest("a", "one two three four", SAMPLING, n=2, tells_prompt=True),
    "chat": GenerationRequest("a", ChatPrompt(({"role": "user", "content": "hi"},)), SAMPLING),
    "too long": GenerationRequest("a", "word " * 5000, SAMPLING),
    "key's limit": GenerationRequest("a", "one two three", SAMPLING, max_prompt_tokens=2),
    "resumed": GenerationRequest(
        "a", "one two three", SamplingParams(seed=1), resume=((token_id("one"),),)
    ),
    **{
        fault: GenerationRequest("a", f"one two fault-{fault}", SAMPLING)
        for fault in FAULTS
        if fault not in ("cancel", "crash")
    },
}
POOLING = {
    "vectors": PoolingRequest("a", tuple(PoolingInput(text, "input") for text in ("one", "two"))),
    "full": PoolingRequest("a", (PoolingInput("fault-queue_full", "input"),)),
}


async def test_it_answers_as_the_backend_does() -> None:
    own = FakeBackend()
    expected = await own.start(CONFIG)
    engine = EngineProcess("fake")
    assert await engine.start(CONFIG) == expected
    try:
        for name, request in REQUESTS.items():
            assert await outcome(engine, request) == await outcome(own, request), name
        for name, wanted in POOLING.items():
            items = map(repr, await outcome(engine, wanted))
            assert [*items] == [*map(repr, await outcome(own, wanted))], name
        assert engine.stats().request_success == own.stats().request_success
        assert engine.stats().request_failure == own.stats().request_failure
        text = REQUESTS["text"]
        for adds in (True, False):
            token_ids = await engine.tokenize(text, add_special_tokens=adds)
            assert token_ids == await own.tokenize(text, add_special_tokens=adds)
        assert await engine.detokenize([72, 105]) == "Hi"
        assert await engine.spell([72, 300]) == await own.spell([72, 300])
        with pytest.raises(InvalidRequestError, match="token id 1114112") as caught:
            await engine.detokenize([0x110000])
        assert caught.value.param == "tokens"
        await engine.check_health()
    finally:
        await engine.stop()


async def test_what_a_backend_should_not_do_ends_its_request_alone() -> None:
    async with apart() as engine:
        crash, cancel = [
            await outcome(engine, GenerationRequest("a", f"one two fault-{one}", SAMPLING))
            for one in ("crash", "cancel")
        ]
        assert "RuntimeError" in crash[-1]
        assert cancel[-1][0] is StepError
        assert len(await outcome(engine, REQUESTS["text"])) == 4


async def test_a_fault_is_that_requests_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = EngineProcess("faulty")
    await engine.start(CONFIG.model_copy(update={"backend": "faulty"}))
    try:
        innocent = asyncio.create_task(outcome(engine, REQUESTS["text"]))
        asked = {
            word: asyncio.create_task(outcome(engine, GenerationRequest(word, word, SAMPLING)))
            for word in ("panic", "unsendable", "log")
        }
        assert "Panic: of a library" in (await asked["panic"])[-1]
        assert "cannot pickle" in (await asked["unsendable"])[-1]
        assert len(await asked["log"]) == 2
        with pytest.raises(StepError, match="cancelled the request"):
            await engine.tokenize(REQUESTS["text"])
        assert len(await innocent) == 4
        unsendable: Any = (threading.Lock(),)
        with pytest.raises(RuntimeError, match="cannot pickle"):
            await engine.detokenize(unsendable)

        def deaf(item: Any) -> None:
            raise KeyError("on_made")

        request = replace(REQUESTS["text"], on_made=deaf)
        with pytest.raises(KeyError, match="on_made"):
            await anext(engine.generate(request))
        assert len(await outcome(engine, REQUESTS["text"])) == 4
        assert not engine.lost.is_set()
        noted, failed = [one for one in caplog.records if one.name == "tests.faulty"]
        assert noted.getMessage() == "noted"
        assert failed.getMessage() == "failed"
        assert failed.exc_text is not None
        assert "KeyError: 'seen'" in failed.exc_text
    finally:
        await engine.stop()
    assert "a device that is gone" in caplog.text
    assert not children()


@pytest.mark.parametrize("name", ["text", "two", "resumed"])
async def test_what_is_made_is_heard_in_order(name: str) -> None:
    heard: list[Any] = []
    async with apart() as engine:
        request = replace(REQUESTS[name], on_made=heard.append)
        assert await outcome(engine, request) == heard
        told: list[Any] = []
        wanted = replace(POOLING["vectors"], on_made=lambda *one: told.append(one))
        items = await outcome(engine, wanted)
    assert told == [*zip((0, 0, 1, 1), items, strict=True)]


async def test_who_leaves_is_forgotten() -> None:
    async with apart() as engine:
        stream = engine.generate(GenerationRequest("a", "one two", ENDLESS))
        assert isinstance(await anext(stream), Prefill)
        await anext(stream)
        await stream.aclose()
        waiting = asyncio.create_task(
            outcome(engine, GenerationRequest("b", "one two", ENDLESS)),
        )
        await until(lambda: engine.stats().requests_running == 1)
        waiting.cancel()
        await until(lambda: engine.stats().requests_running == 0)


async def test_what_is_wrong_with_a_config_is_told_and_no_process_stays() -> None:
    with pytest.raises(ValueError, match=r"engine\.backend must be one of .*'fake'"):
        EngineProcess("nothing")
    with pytest.raises(ValueError, match=r"'missing' can't be loaded here: .*no_such_package"):
        await EngineProcess("missing").start(CONFIG)
    wrong = CONFIG.model_copy(update={"options": {"speed": "high"}})
    engine = EngineProcess("fake")
    with pytest.raises(ValueError, match="speed"):
        engine.check(wrong)
    with pytest.raises(ValueError, match="speed"):
        await engine.start(wrong)
    assert not children()
    with pytest.raises(UnavailableError, match="has not started"):
        await EngineProcess("fake").check_health()


async def test_streams_end_at_once_when_the_engine_does() -> None:
    async with apart() as engine:
        stream = engine.generate(GenerationRequest("a", "one two", ENDLESS))
        await anext(stream)
        draining = asyncio.create_task(engine.drain())
        await until(lambda: engine.stats().requests_running == 1)
        [process] = children()
        process.kill()
        with pytest.raises(EngineStoppedError, match="process has ended"):
            async for _ in stream:
                pass
        with pytest.raises(UnavailableError, match="process has ended"):
            await draining
        await engine.lost.wait()
        for asked in (engine.check_health(), engine.tokenize(REQUESTS["text"])):
            with pytest.raises(UnavailableError, match="process has ended"):
                await asked
        assert [kind for kind, *_ in await outcome(engine, REQUESTS["text"])] == [UnavailableError]


async def test_one_that_answers_nothing_is_ill_and_can_be_ended() -> None:
    config = CONFIG.model_copy(update={"step_timeout_s": 0.5})
    async with apart(config) as engine:
        [process] = children()
        process.suspend()
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"has not answered for 0\.5 s"):
                await engine.check_health()
        process.resume()
        await until_well(engine)
        process.suspend()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_process, "END_S", 0.1)
            await engine.stop()
        assert not process.is_running()


async def test_a_stop_ends_streams_as_the_backend_does() -> None:
    async with apart() as engine:
        stream = engine.generate(GenerationRequest("a", "one two", ENDLESS))
        await anext(stream)
        await engine.stop()
        assert [item async for item in stream][-1].finish_reason == "abort"
        with pytest.raises(UnavailableError, match="is not running"):
            await engine.check_health()
        assert not engine.lost.is_set()
        assert not children()
        await engine.stop()


async def test_the_engine_ends_with_who_started_it() -> None:
    code = (
        "import asyncio, sys\n"
        "from deployments.backend.apart import EngineProcess\n"
        f"from {__name__} import CONFIG\n"
        "async def main():\n"
        "    engine = EngineProcess('fake')\n"
        "    await engine.start(CONFIG)\n"
        "    print(engine._process.pid, flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True
    ) as starter:
        assert starter.stdout is not None
        engine = psutil.Process(int(starter.stdout.readline()))
        assert engine.is_running()
        starter.send_signal(signal.SIGKILL)
    await asyncio.to_thread(engine.wait, 60)


async def test_its_log_is_this_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Over a real engine, which loads a model."""
    caplog.set_level(logging.INFO)
    async with tiny_engine():
        loaded = [one for one in caplog.records if one.name == "backend_metal.models.load.loader"]
        assert any(one.getMessage().startswith("loading ") for one in loaded)


async def test_a_real_engine_waits_for_who_reads_slowly() -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    wanted = GenerationRequest("a", (1, 2, 3), sampling, n=2)
    async with tiny_engine() as engine:
        undisturbed = await outcome(engine, wanted)
        before = engine.stats().generation_tokens
        stream = engine.generate(replace(wanted, request_id="slow"))
        read = [await anext(stream) for _ in range(2)]
        await until(lambda: engine.stats().generation_tokens > before)
        await until(lambda: engine.stats().requests_running == 0)
        assert engine.stats().generation_tokens - before < 2 * 400, "it ran to its end"
        read += [item async for item in stream]
        assert tokens(read) == tokens(undisturbed)


@asynccontextmanager
async def tiny_engine() -> AsyncIterator[EngineProcess]:
    with tempfile.TemporaryDirectory() as folder:
        tiny_models.save("qwen3", Path(folder))
        config = EngineConfig(model=folder, num_kv_blocks=256, max_num_seqs=8)
        async with apart(config) as engine:
            yield engine


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def until_well(engine: EngineProcess) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                return await engine.check_health()
            except UnavailableError:
                await asyncio.sleep(0.01)


def tokens(items: list[Any]) -> dict[int, list[int]]:
    """By sequence."""
    made: dict[int, list[int]] = {}
    for item in items:
        if isinstance(item, Delta):
            made.setdefault(item.index, []).extend(item.token_ids)
    return made
