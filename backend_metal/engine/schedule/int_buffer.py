"""A growable int32 array: appended to one by one, read as a NumPy view."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class IntBuffer:
    def __init__(self, values: Iterable[int] = ()) -> None:
        self._data: Int32Array = np.fromiter(values, np.int32)
        self.length = len(self._data)
        """As ``len`` says it: several times a step and sequence somebody asks."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return int(self.view()[index])

    def view(self) -> Int32Array:
        """The live values, not a copy; valid until the next append or clear."""
        return self._data[: self.length]

    def append(self, value: int) -> None:
        if self.length == len(self._data):
            self._data = np.resize(self._data, max(16, 2 * self.length))
        self._data[self.length] = value
        self.length += 1

    def replace_last(self, value: int) -> None:
        self._data[self.length - 1] = value

    def drop_first(self, count: int) -> None:
        """Those behind move to the front."""
        left = self.length - count
        self._data[:left] = self._data[count : self.length]
        self.length = left

    def clear(self) -> None:
        self.length = 0
