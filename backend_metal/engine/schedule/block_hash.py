"""Chained hashes that name the content of full blocks, and with it every token before them."""

from __future__ import annotations

from hashlib import blake2b

from backend_metal.engine.schedule.int_buffer import Int32Array

DIGEST_BYTES = 16


def root_hash(salt: str) -> bytes:
    """The parent of a sequence's first block; sequences with different salts never match."""
    return blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest()


def block_hash(parent: bytes, token_ids: Int32Array) -> bytes:
    """Name of a full block. Cryptographic, so that no prompt can be made to collide with another.

    Args:
        parent: hash of the block before it, or ``root_hash``.
        token_ids: int32 ``[block_size]``.
    """
    return blake2b(parent + token_ids.tobytes(), digest_size=DIGEST_BYTES).digest()
