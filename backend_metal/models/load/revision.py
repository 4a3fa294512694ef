"""What tells two models apart that have the same name: a digest of all that determines tokens."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import xxhash
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

PAGE_BYTES = 4096
NUM_PAGES = 256
"""Of each file of weights, read evenly from its beginning, which has the header, to its end."""


def revision_of(checkpoint: Path, *choices: object) -> str:
    """``choices`` are the settings that change tokens, too. Of a repository's files those count
    that engines download, so that a host on which there are all of them has the same revision.
    Reads about a megabyte a file of weights, so it does not see every edit of one, but every other
    training or quantization."""
    digest = xxhash.xxh3_128(repr(choices).encode())
    for path in sorted(checkpoint.iterdir()):
        if not any(fnmatchcase(path.name, pattern) for pattern in DEFAULT_ALLOW_PATTERNS):
            continue
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        if path.suffix == ".safetensors":
            _sample(path, digest)
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _sample(path: Path, digest: xxhash.xxh3_128) -> None:
    last = max(path.stat().st_size - PAGE_BYTES, 0)
    with path.open("rb") as file:
        for number in range(NUM_PAGES):
            file.seek(last * number // (NUM_PAGES - 1))
            digest.update(file.read(PAGE_BYTES))
