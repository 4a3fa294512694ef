"""The compiled extension: loaded beside the MLX that it was built for, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

# First: it brings the library that the extension is linked to, and the types that the two share.
import mlx.core
import numpy.typing as npt
import xxhash

MLX_VERSION = version("mlx")
REMEDY = "build it again with `make native`"


def check_build(mlx_version: str, abi_tag: str, *, knows_mlx_arrays: bool) -> None:
    """Raise ``ImportError`` unless an extension built so works beside the MLX that is loaded."""
    if mlx_version != MLX_VERSION:
        raise ImportError(
            f"backend_metal._native was built for MLX {mlx_version}, and this is MLX "
            f"{MLX_VERSION}; {REMEDY}"
        )
    if not knows_mlx_arrays:
        raise ImportError(
            f"backend_metal._native was built with the nanobind ABI {abi_tag!r}, which MLX "
            f"{MLX_VERSION} does not share; {REMEDY} with the nanobind that MLX was built with"
        )


try:
    from backend_metal import _native
except ImportError as error:
    raise ImportError(
        f"backend_metal._native is not built, or not for MLX {MLX_VERSION} and this Python "
        f"({error}); {REMEDY}"
    ) from error

check_build(
    _native.MLX_VERSION,
    _native.NANOBIND_ABI_TAG,
    knows_mlx_arrays=_native.knows_mlx_arrays(),
)


def sources_digest(folder: Path) -> str:
    """Hash of the sources that the libraries in ``folder`` were built from; empty for a build
    without that record."""
    record = folder / "native_sources.txt"
    return xxhash.xxh3_128_hexdigest(record.read_bytes()) if record.exists() else ""


MakeArray = Callable[[npt.NDArray[Any]], mlx.core.array]
"""From integers of 32 bits that the host has."""

SOURCES = sources_digest(Path(__file__).parent)
KEYS_PER_SPLIT = _native.KEYS_PER_SPLIT

metal: ModuleType | None = getattr(_native, "metal", None)
"""The operators on Metal, with the names of those below; None in builds for other systems."""
if metal is not None:
    metal.set_shader_folder(str(Path(__file__).parent / "shaders"))

RepeatedGraph = _native.RepeatedGraph
causal_conv = _native.causal_conv
check_cache_strides = _native.check_cache_strides
draw_tokens = _native.draw_tokens
even_splits = _native.even_splits
exponential = _native.exponential
forget_lost_tasks = _native.forget_lost_tasks
gather_quantized_matmul = _native.gather_quantized_matmul
instruction_set = _native.instruction_set
lay_in_panels = _native.lay_in_panels
lay_together = _native.lay_together
linear_attention = _native.linear_attention
most_splits = _native.most_splits
num_threads = _native.num_threads
paged_attention = _native.paged_attention
panel_product = _native.panel_product
panel_rows = _native.panel_rows
plan_gpu_launch = _native.plan_gpu_launch
plan_launch = _native.plan_launch
product_kernel = _native.product_kernel
quantized_matmul = _native.quantized_matmul
quantized_rows = _native.quantized_rows
reshape_and_cache = _native.reshape_and_cache
rms_norm = _native.rms_norm
rms_norm_of_sum = _native.rms_norm_of_sum
rope = _native.rope
rotate_heads = _native.rotate_heads
row_splits = _native.row_splits
scatter_paged_attention = _native.scatter_paged_attention
set_instruction_set = _native.set_instruction_set
set_num_threads = _native.set_num_threads
set_product_kernel = _native.set_product_kernel
swiglu = _native.swiglu
zeros = _native.zeros
