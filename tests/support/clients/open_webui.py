"""Open WebUI as `open-webui serve` starts it, with nothing set but where the model is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.clients.clients import OPEN_WEBUI
from tests.support.clients.recipe import exports, recipe
from tests.support.e2e.serve_process import free_port

PATIENCE_S = 300


@contextmanager
def open_webui(model_url: str, home: Path) -> Iterator[str]:
    """Its address; ``home``: an empty folder, which is its own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "HOME": str(home),
        "DATA_DIR": str(home),
        **exports(recipe("open-webui", model_url, "")),
        # It would look for a model of its own, for documents.
        "HF_HUB_OFFLINE": "1",
    }
    log = home / "open-webui.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [
                OPEN_WEBUI.python.with_name("open-webui"),
                "serve",
                "--host=127.0.0.1",
                f"--port={port}",
            ],
            cwd=home,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"not ready:\n{log.read_text(errors='replace')[-4000:]}")
