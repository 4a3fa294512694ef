"""The one owner of the memory of recurrent state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from backend_metal.device import Device, device_for
from backend_metal.devices.base import RecurrentKernels
from backend_metal.recurrent import operators
from backend_metal.recurrent.metadata import StateMetadata
from backend_metal.recurrent.specs import RecurrentSpec


class StatePool:
    """The state of every recurrent layer, an array ``[num_slots, *shape]`` for each of its own.

    As of the KV cache pool, nobody else holds an array of it, but for ``evaluation_roots``, which
    are dropped as soon as they are evaluated: MLX would copy the whole pool for a second holder.
    """

    def __init__(
        self,
        specs: Sequence[RecurrentSpec],
        num_slots: int,
        *,
        path: Device | str | None = None,
    ) -> None:
        """Allocates ``num_slots * bytes_per_slot(specs)`` bytes, zeroed.

        ``path``: who updates the state, by itself or what its attention is called; by default MLX's
        default device.
        Layers that its kernels don't fit are left to the model's own code.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.specs = tuple(specs)
        self.num_slots = num_slots
        self._path = device_for(path)
        self._arrays: list[list[mx.array]] = []
        self.reset()

    @staticmethod
    def bytes_per_slot(specs: Sequence[RecurrentSpec]) -> int:
        """Bytes of one sequence's state over all layers."""
        return sum(spec.nbytes for spec in specs)

    @property
    def nbytes(self) -> int:
        return self.num_slots * self.bytes_per_slot(self.specs)

    @property
    def num_layers(self) -> int:
        return len(self.specs)

    @property
    def writes_in_place(self) -> bool:
        """Whether state is written where it is even if a step that was submitted before has not
        ended; where it isn't, MLX would copy the pool."""
        return all(self.has_kernels(layer) for layer in range(self.num_layers))

    def has_kernels(self, layer: int) -> bool:
        """Whether the operators are for this layer, else ``read`` and ``write``."""
        return self.specs[layer].is_updated_by(self._path.recurrent)

    def causal_conv(
        self,
        layer: int,
        array: int,
        x: mx.array,
        weight: mx.array,
        bias: mx.array | None,
        metadata: StateMetadata,
    ) -> mx.array:
        """As ``operators.py`` says, with the layer's state ``array``."""
        arrays = self._arrays[layer]
        out, arrays[array] = operators.causal_conv(
            self._kernels, x, weight, bias, arrays[array], metadata
        )
        return out

    def linear_attention(
        self,
        layer: int,
        array: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        gates: mx.array,
        betas: mx.array,
        metadata: StateMetadata,
        *,
        delta_rule: bool,
        gates_are_rates: bool = False,
    ) -> mx.array:
        """As ``operators.py`` says, with the layer's state ``array``."""
        arrays = self._arrays[layer]
        out, arrays[array] = operators.linear_attention(
            self._kernels,
            q,
            k,
            v,
            gates,
            betas,
            arrays[array],
            metadata,
            delta_rule=delta_rule,
            gates_are_rates=gates_are_rates,
        )
        return out

    def read(self, layer: int, slots: mx.array) -> list[mx.array]:
        """Copies of a layer's state in ``slots``, int32 ``[num_seqs]``: ``[num_seqs, *shape]``."""
        return [array[slots] for array in self._arrays[layer]]

    def write(self, layer: int, slots: mx.array, states: Sequence[mx.array]) -> None:
        """Put a layer's ``states``, ``[num_seqs, *shape]`` each, into ``slots``. Raises
        ``ValueError`` where they are not what the layer's spec says."""
        spec = self.specs[layer]
        for array, state, kept in zip(spec.arrays, states, self._arrays[layer], strict=True):
            if (state.shape[1:], state.dtype) != (array.shape, array.dtype):
                raise ValueError(
                    f"state of recurrent layer {layer} must be {array.shape} of {array.dtype}, "
                    f"not {state.shape[1:]} of {state.dtype}"
                )
            kept[slots] = state

    def evaluation_roots(self) -> list[mx.array]:
        """What to evaluate with a step's results so that no graph outlives it; not to be kept."""
        return [array for layer in self._arrays for array in layer]

    def rebind(self, arrays: Sequence[mx.array]) -> None:
        """Hold these, which are ``evaluation_roots`` after whatever has written them."""
        rest = iter(arrays)
        self._arrays = [[next(rest) for _ in spec.arrays] for spec in self.specs]

    def reset(self) -> None:
        """Forget everything: zeroed arrays. Also the way on from a step that failed."""
        # Drop the old arrays first, so that the two never exist together.
        self._arrays = []
        self._arrays = [
            [self._path.zeros((self.num_slots, *array.shape), array.dtype) for array in spec.arrays]
            for spec in self.specs
        ]
        mx.eval(self.evaluation_roots())

    @property
    def _kernels(self) -> RecurrentKernels:
        assert self._path.recurrent is not None, "the reference path has no kernels"
        return self._path.recurrent


@dataclass(frozen=True)
class StepStates:
    """What a model is given of recurrent state for one step."""

    pool: StatePool
    metadata: StateMetadata
