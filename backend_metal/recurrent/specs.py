"""What one recurrent layer keeps for one sequence, however long that is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import mlx.core as mx

from backend_metal.devices.base import RecurrentKernels


@dataclass(frozen=True)
class StateArray:
    """One array of one sequence's state: the latest inputs of a convolution, or what a recurrence
    has summed up."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    """Of at most 4 bytes: MLX's GPUs write no others into a pool."""

    def __post_init__(self) -> None:
        if self.dtype.size > 4:
            raise ValueError(f"a state must be of at most 4 bytes an element, not of {self.dtype}")

    @property
    def is_inputs(self) -> bool:
        """Whether it is a convolution's, ``[kernel - 1, channels]``, where operators have it."""
        return len(self.shape) == 2

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * int(self.dtype.size)


@dataclass(frozen=True)
class RecurrentSpec:
    """What one layer keeps."""

    arrays: tuple[StateArray, ...]
    """In the model's order."""
    fits_kernels: bool = False
    """Whether ``operators.py`` has what updates them; else the model's own code does."""

    @property
    def nbytes(self) -> int:
        """Of one sequence."""
        return sum(array.nbytes for array in self.arrays)

    def is_updated_by(self, kernels: RecurrentKernels | None) -> bool:
        """Whether these update all that such a layer keeps."""
        if kernels is None or not self.fits_kernels:
            return False
        dims = kernels.head_dims
        return dims is None or all(
            array.is_inputs or array.shape[-1] in dims for array in self.arrays
        )
