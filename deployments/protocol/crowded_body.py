"""How much a JSON body holds, before anything is made of it."""

from __future__ import annotations

import numpy as np

MAX_WEIGHT = 2**18
"""Of a body: a prompt of that many token ids, or some ten thousand objects of a few members."""
HEAVY = 8
"""An array, an object or a member of one, beside a plain value."""
_WEIGHTS = np.zeros(256, np.uint8)
_WEIGHTS[list(b"[{:")] = HEAVY
_WEIGHTS[ord(",")] = 1


def is_crowded(body: bytes) -> bool:
    """Whether decoding it would take long for so many small things."""
    if len(body) * HEAVY <= MAX_WEIGHT:
        return False
    heavy = sum(map(body.count, (b"[", b"{", b":")))
    return HEAVY * heavy + body.count(b",") > MAX_WEIGHT and weight(body) > MAX_WEIGHT


def weight(body: bytes) -> int:
    """Of what is outside of strings, be it JSON or not. Takes some milliseconds a megabyte, few of
    them with the GIL."""
    if b"\\" in body:
        # A quotation mark behind a backslash ends no string, unless that one is escaped itself.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(body, np.uint8)
    # It matters only whether the marks so far are an odd number, so that the sum may overflow.
    in_string = np.cumsum(characters == ord('"'), dtype=np.uint8) & 1
    return int((_WEIGHTS[characters] * (1 - in_string)).sum(dtype=np.int64))
