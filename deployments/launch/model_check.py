"""``python -m deployments.launch.model_check CONFIG``: whether this machine's engines can serve it.

A process of its own, beside Ray's start: a backend's libraries would stay in the launcher's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from deployments.backend import create_backend
from deployments.launch.serve_config import engine_configs

WITHOUT_GPU = (
    "MLX ends whoever imports it where macOS shows no GPU: in a daemon without a login session, in "
    "a sandbox, over some ssh connections. Start it in the session of a user who is logged in"
)


def end_of_import(status: int) -> str:
    """Why a process that imports MLX has ended, by its exit status."""
    if status >= 0:
        return f"it ended with status {status}"
    told = f"signal {-status} ended it"
    return f"{told}; {WITHOUT_GPU}" if sys.platform == "darwin" else told


class ModelCheck:
    """The running check of the config at ``path``."""

    def __init__(self, path: Path) -> None:
        # Ctrl-C goes to the whole foreground group, and is for the launcher.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def raise_mistake(self) -> None:
        """Raises ``ValueError`` once it is known that a model can't be served."""
        if status := self._process.poll():
            assert self._process.stdout is not None
            told = self._process.stdout.read()
            raise ValueError(told or f"the check of the model failed: {end_of_import(status)}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(path: str) -> int:
    try:
        for engine in engine_configs(yaml.safe_load(Path(path).read_text())):
            create_backend(engine.backend).check(engine)
    except (OSError, ValueError) as error:
        sys.stdout.write(str(error))
        return 2
    return 0


if __name__ == "__main__":
    # What starts beside it is what will serve.
    os.nice(5)
    sys.exit(main(sys.argv[1]))
