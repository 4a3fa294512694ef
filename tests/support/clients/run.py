"""A client's command, in a home of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PATIENCE_S = 300


def run(*command: str | Path, at: Path, **environment: str) -> str:
    """What it printed. ``at``: its working directory, beside which its home is."""
    home = at.with_name("home")
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [*map(str, command)],
        cwd=at,
        env={**os.environ, "HOME": str(home), "PWD": str(at), "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
