"""Prefix hashes of a prompt, by which requests that share its beginning are recognised.

A prompt is hashed as text or token ids, as it came: tokenising it here would cost more than the
decision is worth. The hash is fast, not cryptographic: at worst a collision costs a cache miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import xxhash

from deployments.gateway.replicas.work import Affinity
from deployments.protocol import GenerationForm

CHUNK_BYTES = 256
"""About 64 tokens of English text, exactly 64 token ids."""
MAX_BYTES = 256 * 1024
"""No beginning longer than this is told apart."""
COARSENESS = 8
"""Beyond the first chunks two neighbouring beginnings differ in length by one part in so many."""


def affinity_of(
    request: GenerationForm,
    *,
    session: str | None = None,
    tenant: str = "",
) -> Affinity:
    """Requests with different tenants or salts have nothing in common. ``session``: by name;
    ``prompt_cache_key`` is one, too."""
    parts = (request.model, tenant, request.cache_salt)
    root = "".join(f"{len(part)}:{part}" for part in parts)
    affinity = prefix_affinity(request.prompt_parts(), root)
    session = session or request.prompt_cache_key
    if not session:
        return affinity
    key = xxhash.xxh3_64_intdigest(f"{root}session:{session}".encode())
    return replace(affinity, session=key)


def prefix_affinity(parts: Iterable[str | bytes], root: str = "") -> Affinity:
    """Of a prompt whose content is ``parts``, one after another, below ``root``."""
    content = bytearray()
    for part in parts:
        room = MAX_BYTES - len(content)
        content += part[:room] if isinstance(part, bytes) else part[:room].encode()
        if len(content) >= MAX_BYTES:
            break
    hasher = xxhash.xxh3_64(root.encode())
    view = memoryview(content)
    keys = []
    start = 0
    for end in BOUNDARIES:
        if end > len(content):
            break
        hasher.update(view[start:end])
        keys.append(hasher.intdigest())
        start = end
    return Affinity(tuple(keys), tuple(end / len(content) for end in BOUNDARIES[: len(keys)]))


def _boundaries() -> Iterator[int]:
    position = 0
    while (position := position + max(CHUNK_BYTES, position // COARSENESS)) <= MAX_BYTES:
        yield position


BOUNDARIES = tuple(_boundaries())
"""Lengths in bytes of the beginnings that get a name: dozens, however long prompts are."""
