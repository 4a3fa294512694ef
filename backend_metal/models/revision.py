"""What tells two models apart that have the same name: a digest of all that determines tokens."""

from __future__ import annotations

from pathlib import Path

import xxhash

SUFFIXES = {".json", ".jsonl", ".jinja", ".model", ".py", ".tiktoken", ".txt"}
"""Configuration, tokenizer, templates, code: read whole."""
PAGE_BYTES = 4096
NUM_PAGES = 256
"""Of each file of weights, read evenly from its beginning, which has the header, to its end."""


def revision(checkpoint: Path, *choices: object) -> str:
    """``choices`` are the settings that change tokens, too. Reads about a megabyte a file of
    weights, so it does not see every edit of one, but every other training or quantization."""
    digest = xxhash.xxh3_128(repr(choices).encode())
    for path in sorted(checkpoint.iterdir()):
        if path.suffix in SUFFIXES:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
        elif path.suffix == ".safetensors":
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            _sample(path, digest)
    return digest.hexdigest()


def _sample(path: Path, digest: xxhash.xxh3_128) -> None:
    last = max(path.stat().st_size - PAGE_BYTES, 0)
    with path.open("rb") as file:
        for number in range(NUM_PAGES):
            file.seek(last * number // (NUM_PAGES - 1))
            digest.update(file.read(PAGE_BYTES))
