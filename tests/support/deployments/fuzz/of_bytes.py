"""Mutations that know nothing of what the bytes mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

TOKENS = (
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"{",
    b"]",
    b'"',
    b"\\u",
    b"\\ud800",
    b"%00",
    b"../",
    b"HTTP/1.1",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 0\r\n",
)
MOST_REPEATED = 300


def flip(dice: Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def replace(dice: Random, raw: bytes) -> bytes:
    start, end = _span(dice, raw, 8)
    return raw[:start] + dice.randbytes(end - start) + raw[end:]


def truncate(dice: Random, raw: bytes) -> bytes:
    return raw[: dice.randrange(len(raw))]


def cut_out(dice: Random, raw: bytes) -> bytes:
    start, end = _span(dice, raw, 64)
    return raw[:start] + raw[end:]


def repeat(dice: Random, raw: bytes) -> bytes:
    start, end = _span(dice, raw, 64)
    return raw[:end] + raw[start:end] * dice.randint(1, MOST_REPEATED) + raw[end:]


def insert(dice: Random, raw: bytes) -> bytes:
    at = dice.randrange(len(raw) + 1)
    return raw[:at] + dice.choice(TOKENS) * dice.choice((1, 1, 2, 64)) + raw[at:]


def splice(dice: Random, raw: bytes, others: Sequence[bytes]) -> bytes:
    other = dice.choice(others)
    return raw[: dice.randrange(len(raw))] + other[dice.randrange(len(other)) :]


PLAIN: tuple[Callable[[Random, bytes], bytes], ...] = (
    flip,
    replace,
    truncate,
    cut_out,
    repeat,
    insert,
)


def mutate(dice: Random, raw: bytes, others: Sequence[bytes]) -> bytes:
    if not raw:
        return dice.choice(others)
    if dice.random() < 0.15:
        return splice(dice, raw, others)
    return dice.choice(PLAIN)(dice, raw)


def _span(dice: Random, raw: bytes, longest: int) -> tuple[int, int]:
    start = dice.randrange(len(raw))
    return start, min(len(raw), start + dice.randint(1, longest))
