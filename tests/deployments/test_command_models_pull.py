"""`pomona models pull` from a hub on loopback: its bar, and lines that break."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from backend_metal.models.load.find import DEMO_DIRECTORY
from deployments.command import models
from tests.support.documents import REPOSITORY
from tests.support.hub import COMMIT, Hub, hub_of

pytestmark = pytest.mark.serve

MODEL = "org/good"
SIZE = struct.pack("HHHH", 40, 100, 0, 0)
"""Of a terminal: rows and columns."""
PADDING = "notes.txt"
CHUNK = constants.DOWNLOAD_CHUNK_SIZE
"""What is received of a file is kept in pieces of so many bytes."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Of the demo model, with a file that has more than one piece."""
    folder = tmp_path / "served"
    shutil.copytree(DEMO_DIRECTORY, folder)
    (folder / PADDING).write_bytes(bytes(3 * CHUNK))
    with hub_of(MODEL, folder) as hub:
        yield hub


@pytest.fixture
def cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this process, which finds ``hub``."""
    folder = tmp_path / "cache"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Its client rests before it tries again.
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return folder


def snapshot(cache: Path) -> Path:
    return cache / "models--org--good" / "snapshots" / COMMIT


def in_a_terminal(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Status, standard output, and what the terminal was shown."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, SIZE)
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=its, text=True
    )
    os.close(its)
    shown = b""
    # Linux ends it with an error, others with nothing.
    try:
        while read := os.read(ours, 1 << 16):
            shown += read
    except OSError:
        pass
    os.close(ours)
    out, _ = process.communicate()
    return process.returncode, out, shown.decode()


def test_a_download_shows_a_bar_and_goes_on_where_its_line_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cuts[PADDING] = 1
    cache = tmp_path / "cache"
    environment = {name: value for name, value in os.environ.items() if name[:3] != "HF_"}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-m", "deployments.command", "models", "pull", MODEL]
    status, out, shown = in_a_terminal(command, environment)
    assert status == 0, shown
    assert out == f"{snapshot(cache)}\n"
    wanted = {name: content for name, content in hub.files.items() if name != "README.md"}
    assert {path.name: path.read_bytes() for path in snapshot(cache).iterdir()} == wanted
    all_of_it = f"{sum(map(len, wanted.values())) / 1e6:.1f}MB"
    assert re.search(rf"100%\|█+\| *{all_of_it} / *{all_of_it}", shown)
    # What had come is not asked for again, and the break is told once.
    assert [asked for name, asked in hub.got if name == PADDING] == ["", f"bytes={CHUNK}-"]
    assert shown.count("Trying to resume download...") == 1
    assert "Traceback" not in shown


def test_a_download_that_stays_broken_is_one_line_and_the_next_gets_the_rest(
    hub: Hub, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.cuts["model.safetensors"] = 1000
    assert models.run(["pull", MODEL]) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert "was broken off: peer closed connection without sending complete message body" in told
    assert "files that are whole are kept, and another attempt gets the others" in told
    assert not (snapshot(cache) / "model.safetensors").exists()
    assert [one.reason for one in models.cached_models()] == [
        "it holds no model*.safetensors; `mlx_lm.convert` makes them from other formats"
    ]
    hub.cuts.clear()
    hub.got.clear()
    assert models.run(["pull", MODEL]) == 0
    assert capsys.readouterr().out == f"{snapshot(cache)}\n"
    assert [one.plan is not None for one in models.cached_models()] == [True]
    # The others were whole, or had never been begun.
    assert ("model.safetensors", "") in hub.got
    assert "config.json" not in {name for name, _ in hub.got}


def test_a_model_that_a_hub_does_not_have_is_one_line(
    hub: Hub, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.run(["pull", "org/absent"]) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert "'org/absent' is neither a local directory nor on the hub" in told
