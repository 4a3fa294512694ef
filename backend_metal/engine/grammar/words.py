"""Masks as they are filled: a bit for each token that may come, from the lowest, in words."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
BITS = 32
