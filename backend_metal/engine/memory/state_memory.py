"""How many slots of recurrent state fit, for sequences that run and for snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend_metal.engine.memory.kv_blocks import GIB, Demand, GroupBytes

MOST_FOR_SEQUENCES = 0.5
"""Of what weights leave: with a slot for every place there might be no tokens left to cache."""
MOST_FOR_SNAPSHOTS = 0.25
"""Of what the KV cache takes: a snapshot without keys and values before it is of no use."""


@dataclass(frozen=True)
class StatePlan:
    num_sequences: int
    """That can run at a time."""
    num_snapshots: int
    """At least: slots that no sequence needs hold snapshots, too."""
    bytes_per_slot: int

    @property
    def num_slots(self) -> int:
        return self.num_sequences + self.num_snapshots

    @property
    def nbytes(self) -> int:
        return self.num_slots * self.bytes_per_slot


def plan_states(
    *,
    budget_bytes: int,
    bytes_per_slot: int,
    groups: Sequence[GroupBytes],
    demand: Demand,
    num_kv_blocks: int | None = None,
    num_state_snapshots: int | None = None,
) -> StatePlan:
    """Divide what weights leave of the memory; the KV cache has the rest.

    Args:
        budget_bytes: for states and KV cache together.
        groups: of the KV cache; of 0 bytes for a model without attention.
        num_kv_blocks: what is wanted of the first of them; None: as many as fit.
        num_state_snapshots: what is wanted; None: as many as ``MOST_FOR_SNAPSHOTS`` says.

    Raises:
        ValueError: with the figures, where not even one sequence fits, or not as many snapshots as
            are wanted.
    """
    kv_bytes = 0 if num_kv_blocks is None else demand.least_bytes(groups, num_kv_blocks)
    for_sequences = budget_bytes - kv_bytes
    if num_kv_blocks is None:
        for_sequences = int(budget_bytes * MOST_FOR_SEQUENCES)
    num_sequences = min(demand.max_num_seqs, for_sequences // bytes_per_slot)
    if num_sequences < 1:
        beside = "a KV cache of as much"
        if num_kv_blocks is not None:
            beside = f"{kv_bytes / GIB:.2f} GiB of num_kv_blocks={num_kv_blocks}"
        raise ValueError(
            f"the weights leave {budget_bytes / GIB:.2f} GiB of what memory_fraction allows, and "
            f"the state of one sequence takes {bytes_per_slot / GIB:.4f} GiB, for which there is "
            f"no room beside {beside}: raise memory_fraction, lower num_kv_blocks, or serve a "
            "smaller or more strongly quantized model"
        )
    left = budget_bytes - num_sequences * bytes_per_slot
    # As much as a quarter of what they leave to the KV cache.
    most = int(left * MOST_FOR_SNAPSHOTS / (1 + MOST_FOR_SNAPSHOTS)) // bytes_per_slot
    if num_kv_blocks is not None:
        most = min(most, (left - kv_bytes) // bytes_per_slot)
    if num_state_snapshots is None:
        demand = replace(demand, max_num_seqs=num_sequences)
        most = min(most, num_kv_blocks or demand.useful(groups[0]))
        if useful := demand.useful_bytes(groups, num_kv_blocks):
            most = min(most, int(useful * MOST_FOR_SNAPSHOTS) // bytes_per_slot)
        return StatePlan(num_sequences, most, bytes_per_slot)
    if num_state_snapshots > most:
        raise ValueError(
            f"num_state_snapshots must be at most {most}: a quarter of the KV cache's part of "
            f"{left / GIB:.2f} GiB, which the weights and the state of {num_sequences} sequences "
            f"leave; {num_state_snapshots} take "
            f"{num_state_snapshots * bytes_per_slot / GIB:.2f} GiB"
        )
    return StatePlan(num_sequences, num_state_snapshots, bytes_per_slot)
