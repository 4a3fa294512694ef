"""Patterns such as ``[what is|what's] a block``: square brackets choose, and may nest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from random import Random
from typing import Any

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_SPACE_BEFORE_COMMA = re.compile(r" +,")


def expand(pattern: str, rng: Random) -> str:
    """One sentence of ``pattern``; spaces that an empty alternative leaves are folded."""
    while "[" in pattern:
        pattern = _INNERMOST.sub(lambda match: rng.choice(match[1].split("|")), pattern)
    return _SPACE_BEFORE_COMMA.sub(",", " ".join(pattern.split()))


def load_knowledge(name: str) -> dict[str, Any]:
    """The tables of ``knowledge/{name}.toml``."""
    with (Path(__file__).parent / "knowledge" / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)
