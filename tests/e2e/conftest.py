"""One real `serve run` a config, shared by the tests that need it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deployments.wire.envelope import Envelope
from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.serve_process import (
    FAKE_BACKEND,
    LAUNCH,
    READY_TIMEOUT_S,
    ServeProcess,
    plugin,
    serve_process,
    shipped_config,
)
from tests.support.e2e.shaped_model import save, shaped_gateway


@pytest.fixture(scope="module")
def fake_serve(fake_plugin: dict[str, str]) -> Iterator[ServeProcess]:
    """The shipped application over a backend that was written against the protocol alone."""
    config = shipped_config("app.yaml")
    config["applications"][0]["args"]["engine"] = {
        "backend": "fake",
        "model": "somebody/echo",
        "max_num_seqs": 256,
        # A stream that goes on is more than sockets can hold.
        "max_model_len": 1_000_000,
        "options": {"faults": {"boom": "step_error", "crowd": "queue_full"}},
    }
    # A busy machine takes long to start another engine for one that was killed.
    config["applications"][0]["args"]["gateway"]["resume_timeout_s"] = READY_TIMEOUT_S
    with serve_process(config, environment=fake_plugin) as running:
        yield running


@pytest.fixture(scope="package")
def demo_serve() -> Iterator[ServeProcess]:
    """The default config, started as `make serve &` starts it in a script."""
    with serve_process(
        shipped_config("app.yaml"), command=LAUNCH, stop_signal=signal.SIGTERM
    ) as running:
        yield running


@pytest.fixture(scope="package")
def fake_plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the fake backend is installed."""
    return {"PYTHONPATH": plugin(tmp_path_factory.mktemp("plugin"), fake=FAKE_BACKEND)}


@pytest.fixture(scope="session")
def shaped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shaped")
    save(directory)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shaped(shaped_model: Path) -> AsyncIterator[Running]:
    # Who brings no seed gets the same in every run, too.
    def seal(**fields: Any) -> Envelope:
        return Envelope("0" * 32, 4_000_000_000, 42, **fields)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Envelope, "seal", seal)
        async with shaped_gateway(shaped_model) as running:
            yield running
