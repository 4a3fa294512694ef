"""A growable int32 array: appended to one by one, read as a NumPy view."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class IntBuffer:
    def __init__(self, values: Iterable[int] = ()) -> None:
        self._data: Int32Array = np.fromiter(values, np.int32)
        self._length = len(self._data)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return int(self.view()[index])

    def view(self) -> Int32Array:
        """The live values, not a copy; valid until the next append or clear."""
        return self._data[: self._length]

    def append(self, value: int) -> None:
        if self._length == len(self._data):
            self._data = np.resize(self._data, max(16, 2 * self._length))
        self._data[self._length] = value
        self._length += 1

    def replace_last(self, value: int) -> None:
        self._data[self._length - 1] = value

    def drop_first(self, count: int) -> None:
        """Those behind move to the front."""
        left = self._length - count
        self._data[:left] = self._data[count : self._length]
        self._length = left

    def clear(self) -> None:
        self._length = 0
