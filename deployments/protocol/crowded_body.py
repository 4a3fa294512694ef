"""How much a JSON body holds, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np

MAX_WEIGHT = 2**18
"""Of a body: a prompt of that many token ids, or some ten thousand objects of a few members."""
HEAVY = 8
"""An array, an object or a member of one, beside a plain value."""
PIECE_BYTES = 2**16
_WEIGHTS = np.zeros(256, np.uint8)
_WEIGHTS[list(b"[{:")] = HEAVY
_WEIGHTS[ord(",")] = 1


def is_crowded(body: bytes) -> bool:
    """Whether decoding it would take long for so many small things."""
    if len(body) * HEAVY <= MAX_WEIGHT:
        return False
    return _passes(_most_weights(body)) and _passes(_weights(body))


def weight(body: bytes) -> int:
    """Of what is outside of strings, be it JSON or not. Takes some milliseconds a megabyte."""
    return sum(_weights(body))


def _passes(weights: Iterable[int]) -> bool:
    """Whether they are more than ``MAX_WEIGHT`` together; reads no further than where they are."""
    return any(total > MAX_WEIGHT for total in accumulate(weights))


def _most_weights(body: bytes) -> Iterator[int]:
    """Of each piece, if nothing in it were in a string."""
    for piece in _pieces(body):
        heavy = sum(map(piece.count, (b"[", b"{", b":")))
        yield HEAVY * heavy + piece.count(b",")


def _weights(body: bytes) -> Iterator[int]:
    """Of each piece."""
    is_inside = False
    for piece in _pieces(body):
        if b"\\" in piece:
            # A quotation mark behind a backslash ends no string, unless that is escaped itself.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        characters = np.frombuffer(piece, np.uint8)
        # It matters only whether the marks so far are an odd number.
        in_string = np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8))
        if is_inside:
            in_string ^= 1
        yield int(_WEIGHTS[characters].sum(where=in_string == 0, dtype=np.int64))
        is_inside = bool(in_string[-1]) if len(in_string) else is_inside


def _pieces(body: bytes) -> Iterator[bytes]:
    """Short ones, since others wait for the GIL meanwhile; no escape is cut in two."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[start : start + PIECE_BYTES + 1]
        yield piece
        start += len(piece)
