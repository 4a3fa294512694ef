"""File modes: what Ray and its actors write is for this user alone.

Whoever reads Ray's token may run code as the user whose it is. Ray opens its sessions, with their
logs and sockets, to everybody whatever the umask: what closes them is the folder around them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def ray_folder() -> Path:
    """Where Ray's files go: the user's choice, or one of this user's, the same for each terminal.

    It is short, since Ray and Python have sockets below it, whose paths may have 103 characters on
    macOS.
    """
    return Path(os.environ.get("RAY_TMPDIR") or f"/tmp/pomona-{os.getuid()}")


def keep_private(folder: Path) -> None:
    """From now on, for this process and those that it starts; for Ray's ``folder``, which is made
    if it is missing; and for the token that is there already.

    Raises ``OSError`` naming what others could get at: in /tmp they may have been first.
    """
    os.umask(OTHERS)
    folder.mkdir(parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} is not a folder of this user's. Set RAY_TMPDIR to one with mode 700."
        )
    if found.st_mode & OTHERS:
        raise PermissionError(
            f"{folder} is open to other users. chmod 700 it, or set RAY_TMPDIR to another folder."
        )
    token_folder = Path.home() / ".ray"
    for path in (token_folder, token_folder / "auth_token"):
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & OTHERS:
            path.chmod(mode & ~OTHERS)
