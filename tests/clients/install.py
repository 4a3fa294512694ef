"""``python -m tests.clients.install``: every client in an environment of its own, into .clients."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from tests.clients.clients import (
    FOLDER,
    HARNESSES,
    INSTALL_SCRIPTS,
    NODE,
    NODE_PACKAGES,
    OPEN_WEBUI,
    PYTHON_CLIENTS,
)

UV = FOLDER / "uv"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    # pip takes minutes to find out which versions agree.
    _run(sys.executable, "-m", "venv", str(UV))
    _run(str(UV / "bin" / "pip"), "install", "--quiet", "uv")
    clients = [one for one in (*PYTHON_CLIENTS, *HARNESSES, OPEN_WEBUI) if not one.is_light]
    with tqdm(total=len(clients) + 1, unit="client") as progress:
        for client in clients:
            progress.set_description(client.name)
            _install_python(client.python.parents[1], client.requirements)
            progress.update()
        progress.set_description("npm")
        _install_node(NODE)
        progress.update()


def _install_python(folder: Path, requirements: tuple[str, ...]) -> None:
    uv = str(UV / "bin" / "uv")
    _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
    _run(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *requirements)


def _install_node(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise SystemExit("Node.js 20 or later is needed, with npm")
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    _run("npm", "install", "--no-audit", "--no-fund", "--silent", *NODE_PACKAGES, at=folder)
    for package, script in INSTALL_SCRIPTS.items():
        _run("node", script, at=folder / "node_modules" / package)


def _run(*command: str, at: Path | None = None) -> None:
    subprocess.run(command, cwd=at, check=True)


if __name__ == "__main__":
    main()
