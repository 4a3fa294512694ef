"""``python -m ops.bench.sessions.record FOLDER [--claude COMMAND]``

Records sessions of Claude Code, two in each of two folders of sources, one after another: it talks
to a model on this machine whose answers are written beforehand, and works with its own tools. Needs
neither a network nor an account. What it sends is for ``python -m ops.bench.sessions FOLDER``; its
instructions and tools are Anthropic's, so recordings stay where they were made.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

from tqdm import tqdm

from deployments.http.server import HttpServer
from ops.bench.sessions.claude_code import claude_code, installed
from ops.bench.sessions.recording import save
from ops.bench.sessions.scripted_model import ScriptedModel
from ops.bench.sessions.scripts import GUIDE, SESSIONS, SOURCES, session

TURN_S = 120.0
"""A client that takes longer for a turn does not do what the script expects of it."""
PAUSE_S = 5.0
"""In which a person reads an answer."""


async def record(folder: Path, command: Path) -> None:
    model = ScriptedModel()
    server = HttpServer(model.app, host="127.0.0.1", port=0)
    url = await server.start()
    with tempfile.TemporaryDirectory() as base:
        home = Path(base) / "home"
        home.mkdir()
        with tqdm(total=SESSIONS * len(SOURCES), unit="session") as progress:
            for name, sources in SOURCES.items():
                work = Path(base) / name
                _fill(work, sources)
                for number in range(SESSIONS):
                    await _record(model, command, work, home, url, number)
                    save(model.end(), folder / name / f"{number + 1}.jsonl")
                    progress.update()
    await server.stop()


async def _record(
    model: ScriptedModel, command: Path, work: Path, home: Path, url: str, number: int
) -> None:
    model.begin()
    async with claude_code(command, work, home, url=url) as client:
        for turn in session(work, number):
            model.prepare(turn.answers)
            await client.say(turn.asked)
            async with asyncio.timeout(TURN_S):
                await model.turn_end()
            await asyncio.sleep(PAUSE_S)


def _fill(work: Path, sources: Path) -> None:
    work.mkdir()
    for path in sorted(sources.glob("*.py")):
        shutil.copy(path, work)
    (work / "CLAUDE.md").write_text(GUIDE.format(name=work.name))
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.sessions.record")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--claude", default="claude", help="the command, by name or path")
    arguments = parser.parse_args()
    asyncio.run(record(arguments.folder, installed(arguments.claude)))


if __name__ == "__main__":
    main()
