"""What subcommands share: mistakes in a line, tables, sizes, and text that a terminal can trust."""

from __future__ import annotations

import argparse
import sys
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

from deployments.backend import DEFAULT_BACKEND


class Parser(argparse.ArgumentParser):
    """Whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(f"{message} (see {self.prog} --help)", status=2))


def add_backend(parser: argparse.ArgumentParser) -> None:
    """The option ``--backend``."""
    parser.add_argument(
        "--backend",
        default=DEFAULT_BACKEND,
        help="a name in the entry-point group 'pomona.backends' (default: %(default)s)",
    )


def fail(message: str, *, status: int = 1) -> int:
    """Says it, and returns the exit ``status``: 2 for a mistake in the command."""
    print(f"pomona: {message}", file=sys.stderr)
    return status


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them, each line without blanks at its end."""
    lines = [header, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def size(num_bytes: float) -> str:
    """In decimal units, as disks and downloads are told."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def printable(text: str) -> str:
    """``text`` of a model or server, without what would steer the terminal: escape sequences,
    other control characters, and marks that turn the direction of writing."""
    return "".join(
        one
        if one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs")
        else "\ufffd"
        # Joiners are a part of emoji and of several scripts.
        if one not in "\u200c\u200d"
        else one
        for one in text
    )
