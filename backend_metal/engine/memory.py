"""How many KV cache blocks fit."""

from __future__ import annotations

GIB = 2**30


def num_kv_blocks(
    *,
    memory_bytes: int,
    memory_fraction: float,
    weight_bytes: int,
    bytes_per_block: int,
    most_useful: int,
    wanted: int | None = None,
) -> int:
    """Blocks that the device's memory leaves room for beside the weights, or those ``wanted``.

    Args:
        memory_bytes: what the device has.
        memory_fraction: most of it that weights and KV cache may take together.
        most_useful: blocks past which none could be used, every sequence being at its longest.

    Raises:
        ValueError: with the figures, when the weights leave no room for a single block, or for as
            many as are wanted.
    """
    budget = int(memory_bytes * memory_fraction)
    blocks = (budget - weight_bytes) // bytes_per_block
    if blocks < 1:
        raise ValueError(
            f"the weights take {weight_bytes / GIB:.2f} GiB of the {budget / GIB:.2f} GiB that "
            f"memory_fraction={memory_fraction} allows of {memory_bytes / GIB:.2f} GiB, which "
            f"leaves no room for a KV cache block of {bytes_per_block / GIB:.4f} GiB: raise "
            "memory_fraction, or serve a smaller or more strongly quantized model"
        )
    if wanted is None:
        return min(blocks, most_useful)
    if wanted > blocks:
        raise ValueError(
            f"num_kv_blocks must be at most {blocks}, what memory_fraction={memory_fraction} of "
            f"{memory_bytes / GIB:.2f} GiB leaves beside {weight_bytes / GIB:.2f} GiB of weights, "
            f"not {wanted}, which take {wanted * bytes_per_block / GIB:.2f} GiB"
        )
    return wanted
