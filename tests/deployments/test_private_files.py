"""The modes of what a launched server writes, and of Ray's token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.launch.private_files import keep_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loosely(home: Path) -> tuple[Path, Path]:
    """As ``ray get-auth-token --generate`` leaves them."""
    token = home / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("a-token")
    token.parent.chmod(0o755)
    token.chmod(0o644)
    return token.parent, token


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_what_is_written_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_private()
    (tmp_path / "folder").mkdir()
    child = f"open({str(tmp_path / 'file')!r}, 'w')"
    subprocess.run([sys.executable, "-c", child], check=True)
    assert (mode(tmp_path / "folder"), mode(tmp_path / "file")) == (0o700, 0o600)


@pytest.mark.usefixtures("usual_umask")
def test_a_token_that_others_can_read_is_tightened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, token = loosely(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_private()
    assert (mode(folder), mode(token)) == (0o700, 0o600)
    assert token.read_text() == "a-token"


def test_the_launcher_sees_to_it(tmp_path: Path) -> None:
    folder, token = loosely(tmp_path)
    launch = [sys.executable, "-m", "deployments.launch", str(tmp_path / "no-such.yaml")]
    environment = {**os.environ, "HOME": str(tmp_path)}
    assert subprocess.run(launch, env=environment, check=False).returncode == 2
    assert (mode(folder), mode(token)) == (0o700, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_gets_neither_the_token_nor_into_its_folder() -> None:
    """In a home that others may enter, so that nothing else keeps them out."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        Path(home).chmod(0o755)
        folder, token = loosely(Path(home))
        assert can_read(token)
        launch = [sys.executable, "-m", "deployments.launch", f"{home}/no-such.yaml"]
        subprocess.run(launch, env={**os.environ, "HOME": home}, check=False)
        assert not can_read(token)
        assert not can_read(folder)


def can_read(path: Path) -> bool:
    """Whether another user can."""
    tried = ["ls" if path.is_dir() else "cat", str(path)]
    return subprocess.run(tried, user=65_534, check=False).returncode == 0
