"""Open WebUI's first message, in a real browser: answered, with a tool of its own, and what it asks
for besides."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.clients.clients import OPEN_WEBUI
from tests.support.clients.held import Held, held
from tests.support.clients.open_webui import PATIENCE_S, open_webui
from tests.support.clients.wiretap import Exchange, wiretap
from tests.support.e2e.serve_process import ServeProcess

BROWSER = Path(__file__).parent / "scripts" / "open_webui_turn.py"
TASKS = {"title", "follow_ups", "tags"}
"""What it asks the model for by itself, as JSON with a member of that name."""

pytestmark = pytest.mark.clients


def tasks(exchanges: list[Exchange]) -> set[str]:
    """Those that have been answered."""
    asked = [
        one.asked["messages"][-1]["content"]
        for one in exchanges
        if one.path == "/v1/chat/completions" and one.is_over
    ]
    prompts = [text for text in asked if text.startswith("### Task:")]
    return {name for name in TASKS if any(f'"{name}"' in text for text in prompts)}


def test_first_message(scripted_serve: ServeProcess, work: Path) -> None:
    with wiretap(scripted_serve.url) as tap, open_webui(tap.url, work) as url:
        browser = subprocess.Popen(
            [OPEN_WEBUI.python, BROWSER, "CALL get_current_timestamp", "The tool said:"],
            env=os.environ | {"OPEN_WEBUI_URL": url, "HOME": str(work)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with browser:
            assert browser.stdout is not None
            is_answered = browser.stdout.readline() == "answered\n"
            deadline = time.monotonic() + PATIENCE_S
            while is_answered and tasks(tap.exchanges) < TASKS and time.monotonic() < deadline:
                time.sleep(0.1)
            _, errors = browser.communicate("")
        assert is_answered, errors
        assert browser.returncode == 0, errors
    chats = [one for one in tap.exchanges if one.path == "/v1/chat/completions"]
    assert tasks(chats) == TASKS
    assert held(chats) == Held(calls=0, forms=0)
    assert {one.status for one in tap.exchanges} == {200}
    # The message, what the tool said to it, and the tasks.
    streamed = [one for one in chats if one.asked.get("stream")]
    assert len(streamed) == 2
    assert streamed[1].asked["messages"][-1]["role"] == "tool"
    assert "Traceback" not in scripted_serve.log.read_text(errors="replace")
