"""Requests as clients send them, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

FOLDER = Path(__file__).parents[3] / "deployments" / "recorded"
LAST_EVENT_ID = b"@LAST_EVENT_ID@"
"""Stands for the id of an event that a gateway has sent."""


@dataclass(frozen=True)
class Message:
    """A request, or some that follow each other: then what follows is part of the ``body``."""

    lines: tuple[bytes, ...]
    """The request line and the headers."""
    body: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        head, _, body = raw.partition(b"\r\n\r\n")
        return cls(tuple(head.split(b"\r\n")), body)

    def raw(self) -> bytes:
        return b"\r\n".join([*self.lines, b"", self.body])

    def with_body(self, body: bytes) -> Message:
        """And its length, unless it comes in chunks."""
        kept = [line for line in self.lines if not line.lower().startswith(b"content-length:")]
        if not any(line.lower().startswith(b"transfer-encoding:") for line in kept):
            kept.append(b"Content-Length: %d" % len(body))
        return Message(tuple(kept), body)


def recorded() -> dict[str, bytes]:
    """By name, in a fixed order."""
    return {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.http"))}
