"""Whether a safetensors file is all there: a copy or download that broke off leaves less."""

from __future__ import annotations

import json
from pathlib import Path

LENGTH_BYTES = 8
"""Of the header's length, at the file's beginning."""
LONGEST_HEADER = 100_000_000
"""As in the format's own library."""


def check_complete(file: Path) -> None:
    """Raises ``ValueError`` unless ``file`` is as long as its header says."""
    size = file.stat().st_size
    needed = _needed(file)
    if needed is None:
        raise ValueError(
            f"{file} begins with no header of safetensors: it is no such file, or a download of it "
            "broke off; get it again"
        )
    if size < needed:
        raise ValueError(
            f"{file} is not all there: it has {size:,} of {needed:,} bytes; a copy or download of "
            "it broke off, get it again"
        )


def _needed(file: Path) -> int | None:
    """The bytes that the file should have, as far as it tells; None: its header can't be read."""
    with file.open("rb") as opened:
        first = opened.read(LENGTH_BYTES)
        length = int.from_bytes(first, "little")
        if len(first) < LENGTH_BYTES or not 2 <= length <= LONGEST_HEADER:
            return None
        text = opened.read(length)
    if len(text) < length:
        return LENGTH_BYTES + length
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        ends = [int(tensor["data_offsets"][1]) for tensor in header.values()]
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return LENGTH_BYTES + length + max(ends, default=0)
