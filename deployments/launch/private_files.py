"""File modes: what Ray and its actors write is for this user alone.

Whoever reads Ray's token may run code as the user whose it is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private() -> None:
    """From now on, for this process and those that it starts; and for the token that is there
    already. Raises ``OSError`` naming the file that can't be changed."""
    os.umask(OTHERS)
    folder = Path.home() / ".ray"
    for path in (folder, folder / "auth_token"):
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & OTHERS:
            path.chmod(mode & ~OTHERS)
