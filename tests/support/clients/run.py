"""A client's command, in a home of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clients import NODE, PATH, PythonClient

PATIENCE_S = 300


def named(clients: Iterable[PythonClient]) -> list[Any]:
    """Parameters of a test."""
    return [pytest.param(one, id=one.name) for one in clients]


def variables(url: str, model: str) -> dict[str, str]:
    """What a script is told; ``url``: of the server."""
    return {"POMONA_URL": f"{url}/v1", "POMONA_KEY": "none", "POMONA_MODEL": model}


def run(*command: str | Path, at: Path, **environment: str) -> str:
    """What it printed. ``at``: its working directory, beside which its home is."""
    home = at.with_name("home")
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "PATH": PATH, "PWD": str(at), "NO_COLOR": "1"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=at,
        env={**os.environ, **own, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_node(script: Path, at: Path, **environment: str) -> str:
    """As ``run``, with the packages from npm."""
    # It finds them beside itself.
    copy = NODE / script.name
    copy.write_text(script.read_text())
    return run("node", copy, at=at, **environment)
