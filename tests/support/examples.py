"""How many random examples a test tries."""

from __future__ import annotations

import os


def examples(quick: int, *, exhaustive: int) -> int:
    """``quick`` of them, or ``exhaustive`` in ``make test-exhaustive``."""
    return exhaustive if os.environ.get("POMONA_EXHAUSTIVE") else quick
