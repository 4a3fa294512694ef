"""The ideal: every token is computed once in the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_Node = dict[tuple[int, ...], "_Node"]


def ideal_tokens(prompts: Iterable[Sequence[int]], block_size: int) -> int:
    """Tokens that have to be computed of ``prompts``, one after another, if whatever one of them
    begins with is known from all before it. As in an engine, whole blocks are known, and the last
    token is computed in any case, since its logits are wanted."""
    root: _Node = {}
    computed = 0
    for prompt in prompts:
        most_known = (len(prompt) - 1) // block_size
        known, node, is_known = 0, root, True
        for start in range(0, len(prompt) - block_size + 1, block_size):
            block = tuple(prompt[start : start + block_size])
            is_known = is_known and block in node
            known += is_known
            node = node.setdefault(block, {})
        computed += len(prompt) - min(known, most_known) * block_size
    return computed
