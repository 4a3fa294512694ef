"""What MLX's default device can do at most: copies, and products of large matrices.

``python -m ops.bench.device_limits`` prints it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import Device, select_device  # isort: skip
import mlx.core as mx

from ops.bench.timing import markdown_table, seconds

COPY_BYTES = 2**30
GEMM_SIZE = 8192
CHAIN = 8
"""Operations handed over at once: to hand one over takes as long as a small one runs."""
REPEATS = 5


@dataclass(frozen=True)
class DeviceLimits:
    """The best of several measurements."""

    name: str
    copy_bytes_per_second: float
    """Bytes read and bytes written, both counted, out of cache."""
    dtype: mx.Dtype
    gemm_flops: float
    """Operations a second of a square product, accumulated in float32."""

    def report(self) -> str:
        dtype = str(self.dtype).rpartition(".")[2]
        return markdown_table(
            ("device", "value"),
            (
                ("name", self.name),
                ("copy bandwidth", f"{self.copy_bytes_per_second / 1e9:.1f} GB/s"),
                (f"{dtype} GEMM", f"{self.gemm_flops / 1e9:.0f} GFLOP/s"),
            ),
        )


def measure_device(device: Device, dtype: mx.Dtype) -> DeviceLimits:
    name = mx.device_info(device.mlx).get("device_name", device.name)
    copies = driver_copy_rate() if device.name == "cuda" else copy_rate()
    return DeviceLimits(str(name), copies, dtype, gemm_rate(dtype))


def driver_copy_rate(num_bytes: int = COPY_BYTES, repeats: int = REPEATS) -> float:
    """Bytes read and written a second by copies of CUDA's driver, which MLX's kernels don't reach.

    Raises:
        RuntimeError: a function of the driver failed.
    """
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if error := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name} returned {error}")

    @contextmanager
    def buffer() -> Iterator[ctypes.c_uint64]:
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(num_bytes))
        yield pointer
        call("cuMemFree_v2", pointer)

    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    with buffer() as source, buffer() as target:

        def run() -> None:
            for _ in range(CHAIN):
                call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(num_bytes), None)
            call("cuCtxSynchronize")

        rate = 2 * CHAIN * num_bytes / min(seconds(run) for _ in range(repeats))
    call("cuDevicePrimaryCtxRelease_v2", 0)
    return rate


def copy_rate(num_bytes: int = COPY_BYTES, repeats: int = REPEATS) -> float:
    """Bytes read and written a second by a chain of elementwise operations."""
    source = mx.ones((num_bytes // 4,), mx.float32)
    mx.eval(source)

    def run() -> None:
        copy = source
        for _ in range(CHAIN):
            copy = copy + 1.0
        mx.eval(copy)

    return 2 * CHAIN * num_bytes / min(seconds(run) for _ in range(repeats))


def gemm_rate(dtype: mx.Dtype, size: int = GEMM_SIZE, repeats: int = REPEATS) -> float:
    """Operations a second of a chain of ``[size, size] @ [size, size].T``."""
    a, b = (mx.random.normal((size, size), dtype, key=mx.random.key(seed)) for seed in range(2))
    # Or a long chain would end in infinities, which take a GPU less power.
    b = b * size**-0.5
    mx.eval(a, b)

    def run() -> None:
        product = a
        for _ in range(CHAIN):
            product = product @ b.T
        mx.eval(product)

    return CHAIN * 2 * size**3 / min(seconds(run) for _ in range(repeats))


if __name__ == "__main__":
    sys.stdout.write(measure_device(select_device("auto"), mx.bfloat16).report() + "\n")
