"""Claude Code in a terminal of its own, as a person uses it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

START_S = 8.0
"""Until it has drawn its screen, and reads what is typed."""
KEY_S = 0.5
"""Between words and the key that sends them: what comes at once is taken for pasted text."""
OPTIONS = ("--permission-mode", "acceptEdits", "--allowedTools", "Bash", "Read", "Edit")


class ClaudeCode:
    def __init__(self, terminal: int) -> None:
        self._terminal = terminal

    async def say(self, words: str) -> None:
        for keys in (words, "\r"):
            os.write(self._terminal, keys.encode())
            await asyncio.sleep(KEY_S)


@asynccontextmanager
async def claude_code(
    command: Path, work: Path, home: Path, *, url: str, model: str = "scripted"
) -> AsyncIterator[ClaudeCode]:
    """In the folder ``work``, with no settings but those in ``home``, while the block runs."""
    _know(work, home)
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PWD": str(work),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": model,
    }
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        command,
        *OPTIONS,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=work,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    loop = asyncio.get_running_loop()
    # Nobody looks at the screen, but it must not fill up.
    loop.add_reader(ours, _drain, ours)
    try:
        await asyncio.sleep(START_S)
        yield ClaudeCode(ours)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


def installed(command: str) -> Path:
    """Raises ``ValueError``."""
    found = shutil.which(command)
    if found is None:
        raise ValueError(
            f"{command} is no command: `npm install @anthropic-ai/claude-code` makes one"
        )
    return Path(found).absolute()


def _know(work: Path, home: Path) -> None:
    """It asks nothing about the folder, and introduces nothing."""
    path = home / ".claude.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    settings |= {"hasCompletedOnboarding": True, "theme": "dark"}
    settings["projects"] = {**settings.get("projects", {}), str(work): known}
    path.write_text(json.dumps(settings))


def _drain(terminal: int) -> None:
    # A terminal whose last process has ended.
    with suppress(OSError):
        os.read(terminal, 1 << 16)
