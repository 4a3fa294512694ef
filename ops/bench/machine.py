"""What the machine can do: the limits that every other figure is held against.

``python -m ops.bench.machine`` prints them.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal import blas_in_use  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.devices.cpu.blas import physical_cores
from ops.bench.timing import markdown_table, seconds

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

COPY_BYTES = 512 * 2**20
GEMM_SIZE = 2048
REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """The best of several measurements: limits, not averages."""

    name: str
    cores: int
    blas: str
    copy_bytes_per_second: float
    """Bytes read and bytes written, both counted, as in STREAM; out of cache, on all cores."""
    read_bytes_per_second: float
    """Of a comparison, which writes nothing; on all cores."""
    gemm_flops: float
    """Floating-point operations a second of a square float32 product in MLX."""

    def report(self) -> str:
        return markdown_table(
            ("machine", "value"),
            (
                ("processor", f"{self.name}, {self.cores} cores"),
                ("BLAS", self.blas),
                ("copy bandwidth", f"{self.copy_bytes_per_second / 1e9:.1f} GB/s"),
                ("read bandwidth", f"{self.read_bytes_per_second / 1e9:.1f} GB/s"),
                (
                    f"float32 GEMM, {GEMM_SIZE} cubed",
                    f"{self.gemm_flops / 1e9:.0f} GFLOP/s",
                ),
            ),
        )


def measure_machine() -> Machine:
    return Machine(
        name=platform.processor() or platform.machine(),
        cores=physical_cores(),
        blas=blas_in_use() or "MLX's own",
        copy_bytes_per_second=copy_bandwidth(COPY_BYTES, physical_cores()),
        read_bytes_per_second=read_bandwidth(COPY_BYTES, physical_cores()),
        gemm_flops=gemm_rate(GEMM_SIZE),
    )


def copy_bandwidth(num_bytes: int, num_threads: int, repeats: int = REPEATS) -> float:
    """Bytes read and written a second by threads that copy ``num_bytes`` in all."""
    source = np.ones(num_bytes // 8)
    target = np.zeros_like(source)
    parts = list(
        zip(
            np.array_split(target, num_threads),
            np.array_split(source, num_threads),
            strict=True,
        )
    )
    with ThreadPoolExecutor(num_threads) as threads:

        def copy() -> None:
            # NumPy lets go of the interpreter's lock while it copies.
            list(threads.map(lambda part: np.copyto(*part), parts))

        return 2 * source.nbytes / min(seconds(copy) for _ in range(repeats))


def read_bandwidth(
    num_bytes: int,
    num_threads: int,
    repeats: int = REPEATS,
    of_passes: Callable[[list[float]], float] = min,
) -> float:
    """Bytes a second that threads read which go through ``num_bytes`` in all, in a pass of the
    seconds that ``of_passes`` makes of all."""
    # Not zeros, which the system would keep in one page.
    parts = np.array_split(np.ones(num_bytes // 8), num_threads)
    with ThreadPoolExecutor(num_threads) as threads:

        def read() -> None:
            list(threads.map(_read, parts))

        return num_bytes / of_passes([seconds(read) for _ in range(repeats)])


def _read(part: npt.NDArray[np.float64]) -> None:
    """Compares halves, equal ones, by the C library: it reads two streams with the processor's
    widest loads and lets go of the interpreter's lock. A sum in NumPy is bound by its own
    additions on some processors."""
    half = part.nbytes // 2
    if _memcmp(part.ctypes.data, part.ctypes.data + half, half) != 0:
        raise RuntimeError("memory changed: a comparison that ends early does not read all of it")


def gemm_rate(size: int, repeats: int = REPEATS) -> float:
    """Operations a second of ``[size, size] @ [size, size].T`` on MLX's default device."""
    a, b = (mx.random.normal((size, size), key=mx.random.key(seed)) for seed in range(2))
    mx.eval(a, b)
    return 2 * size**3 / min(seconds(lambda: mx.eval(a @ b.T)) for _ in range(repeats))


if __name__ == "__main__":
    sys.stdout.write(measure_machine().report() + "\n")
