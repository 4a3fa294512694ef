"""The modes of what a launched server writes, and of Ray's token; whose folders it takes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.launch.private_files import keep_private

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files are made as users make them, for all to read."""
    before = os.umask(0o022)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    os.umask(before)


@pytest.fixture
def token(home: Path) -> Path:
    """As ``ray get-auth-token --generate`` leaves it."""
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a-token")
    assert (mode(token.parent), mode(token)) == (0o755, 0o644)
    return token


def launch(home: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deployments.command", "serve", "--config", "no-such.yaml"],
        env={**os.environ, "RAY_TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_written_is_for_its_user_alone(home: Path) -> None:
    keep_private(home / "temporary" / "ours")
    child = f"open({str(home / 'file')!r}, 'w')"
    subprocess.run([sys.executable, "-c", child], check=True)
    assert (mode(home / "temporary" / "ours"), mode(home / "file")) == (0o700, 0o600)


def test_a_token_that_others_can_read_is_tightened(home: Path, token: Path) -> None:
    keep_private(home / "ours")
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    assert token.read_text() == "a-token"


def test_a_folder_that_others_may_enter_is_refused_and_left_as_it_is(home: Path) -> None:
    folder = home / "open"
    folder.mkdir()
    with pytest.raises(PermissionError, match=r"open is open to other users\. chmod 700"):
        keep_private(folder)
    assert mode(folder) == 0o755


def test_a_link_is_refused(home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "link").symlink_to(home / "elsewhere")
    with pytest.raises(PermissionError, match="link is not a folder of this user's"):
        keep_private(home / "link")


@as_root
def test_a_folder_of_another_users_is_refused(home: Path) -> None:
    (home / "squatted").mkdir(mode=0o700)
    os.chown(home / "squatted", 65_534, 65_534)
    with pytest.raises(PermissionError, match="squatted is not a folder of this user's"):
        keep_private(home / "squatted")


def test_the_launcher_sees_to_it(home: Path, token: Path) -> None:
    assert "No such file" in launch(home, home / "ours").stderr
    assert mode(home / "ours") == 0o700
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)


def test_the_launcher_starts_nothing_where_others_may_enter(home: Path) -> None:
    (home / "open").mkdir()
    launched = launch(home, home / "open")
    assert launched.returncode == 2
    assert launched.stderr.startswith("pomona: Ray can't be kept from other users: ")
    assert len(launched.stderr.splitlines()) == 1
