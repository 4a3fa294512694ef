"""Kernels are run before they serve, and held to MLX's operators, which serve in their place if
they are wrong on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import mlx.core as mx
import numpy as np

logger = logging.getLogger(__name__)


def is_right(kernel: str, check: Callable[[], str | None]) -> bool:
    """Whether ``check`` finds nothing wrong, and does run; otherwise an error in the log says what
    it found. ``kernel``: that it runs, as the subject of a sentence with its verb."""
    try:
        wrong = check()
    except (RuntimeError, ValueError) as error:
        logger.debug("a kernel did not run", exc_info=error)
        wrong = str(error)
        # A GPU's failure is raised once for each wait that meets it.
        with contextlib.suppress(RuntimeError):
            mx.synchronize()
    if wrong is None:
        return True
    logger.error(
        "%s wrong on this machine, so MLX's operators serve instead, more slowly. Please send us "
        "this: %s",
        kernel,
        wrong,
    )
    return False


def relative_rms(got: mx.array, want: mx.array) -> float:
    """The root mean square of the error, over that of the result; infinite where the shapes or the
    dtypes differ."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    floats, expected = (np.array(array.astype(mx.float32)) for array in (got, want))
    # Of zeros, too, which some rows of a matrix may be.
    if np.array_equal(floats, expected):
        return 0.0
    return float(np.sqrt(np.mean((floats - expected) ** 2) / np.mean(expected**2)))
