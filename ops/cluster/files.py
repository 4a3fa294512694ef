"""Writing a host's folder so that it holds what was generated, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PRIVATE, PUBLIC, PROGRAM = 0o600, 0o644, 0o755


@dataclass(frozen=True)
class GeneratedFile:
    content: str
    mode: int = PUBLIC


def write_folder(folder: Path, files: Mapping[str, GeneratedFile]) -> bool:
    """Whether anything had to change. Files that are not in ``files`` are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stale = [path for path in folder.iterdir() if path.name not in files]
    for path in stale:
        path.unlink()
    changed = [write(folder / name, file) for name, file in files.items()]
    return bool(stale) or any(changed)


def write(path: Path, file: GeneratedFile) -> bool:
    content = file.content.encode()
    same_content = path.exists() and path.read_bytes() == content
    if same_content and path.stat().st_mode & 0o777 == file.mode:
        return False
    path.unlink(missing_ok=True)
    # Never readable by others, not even before its mode is set.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as opened:
        opened.write(content)
    path.chmod(file.mode)
    return True


def write_private(path: Path, text: str) -> None:
    write(path, GeneratedFile(text, PRIVATE))
