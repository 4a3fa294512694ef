"""What the primitives that were evaluated did: one ``Launch`` each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.metal_on_cpu.host.build import load


@dataclass(frozen=True)
class Dispatch:
    kernel: str
    pipeline_key: str
    function_constants: Mapping[int, int]
    """The value's bytes, lowest first, by index."""
    grid: tuple[int, int, int]
    """Threadgroups; threads where ``grid_is_threads``."""
    threadgroup: tuple[int, int, int]
    grid_is_threads: bool
    barrier_before: bool
    """MLX makes it wait for the dispatches encoded before it."""
    threadgroup_memory: int
    """Bytes of all ``[[threadgroup(n)]]`` arguments."""
    threadgroup_bytes_used: int
    """The most that one threadgroup held, arguments and variables."""
    threadgroup_barriers: int
    """Passed, summed over threadgroups."""
    inputs_of_slot: Mapping[int, tuple[int, ...]]
    """By buffer index: the primitive's inputs that lie in that buffer."""
    loaded_bytes: Mapping[int, int]
    """By buffer index: distinct bytes that a threadgroup loaded, summed over threadgroups; 0
    unless loads are tracked."""
    stored_bytes: Mapping[int, int]
    """By buffer index: bytes, as often as they were stored; 0 unless loads are tracked."""


@dataclass(frozen=True)
class Launch:
    primitive: str
    counted_elements: int
    """Of the arrays that MLX's encoder meets here first: it ends a command buffer when they are
    many."""
    dispatches: tuple[Dispatch, ...]

    @property
    def barriers(self) -> int:
        """Barriers that MLX's encoder puts between this launch's dispatches."""
        return sum(dispatch.barrier_before for dispatch in self.dispatches[1:])

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(dispatch.kernel for dispatch in self.dispatches)

    def loaded_bytes(self, inputs: frozenset[int]) -> int:
        """Distinct bytes that each threadgroup loaded from the buffers of these inputs, summed."""
        return sum(
            loaded
            for dispatch in self.dispatches
            for slot, loaded in dispatch.loaded_bytes.items()
            if inputs & set(dispatch.inputs_of_slot[slot])
        )

    def stored_bytes(self, inputs: frozenset[int]) -> int:
        """Bytes that were stored to the buffers of these inputs, as often as they were."""
        return sum(
            stored
            for dispatch in self.dispatches
            for slot, stored in dispatch.stored_bytes.items()
            if inputs & set(dispatch.inputs_of_slot[slot])
        )


def take_launches() -> list[Launch]:
    """All since the last call that have been evaluated; raises unless they have run."""
    launches = []
    for primitive, counted, records in load().take_launches():
        if not all(record.pop("has_run") for record in records):
            raise RuntimeError(f"{primitive} has been encoded, but did not run to its end")
        dispatches = tuple(_dispatch(record) for record in records)
        launches.append(Launch(primitive, counted, dispatches))
    return launches


def _dispatch(record: dict) -> Dispatch:
    slots = record.pop("inputs_of_slot")
    return Dispatch(
        **record | {"grid": tuple(record["grid"]), "threadgroup": tuple(record["threadgroup"])},
        inputs_of_slot={slot: tuple(inputs) for slot, inputs in slots.items()},
    )
