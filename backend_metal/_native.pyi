"""The compiled extension, built from ``csrc/``; ``native.py`` loads it."""

from collections.abc import Sequence
from types import ModuleType

import mlx.core as mx

MLX_VERSION: str
NANOBIND_ABI_TAG: str
KEYS_PER_SPLIT: int
TILED_GROUP: int
MAX_TILE_ROWS: int

testing: ModuleType
metal: ModuleType
"""The four operators on Metal, and ``set_shader_folder``; only in builds for macOS."""

class Task:
    """One thread's part of a launch; ``csrc/cpu/launch_plan.h`` says what the numbers are."""

    kernel: str
    seq: int
    first_row: int
    num_rows: int
    first_head: int
    num_heads: int
    first_split: int
    num_splits: int
    partial: int
    split_stride: int
    cost: int

class Merge:
    seq: int
    first_row: int
    num_rows: int
    first_head: int
    num_heads: int
    num_splits: int
    partial: int

class LaunchPlan:
    num_partials: int
    tasks: list[Task]
    merges: list[Merge]

def plan_launch(
    seq_lens: Sequence[int],
    cu_seqlens_q: Sequence[int],
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int,
    window: int | None = None,
    num_threads: int,
    cache_bytes: int,
) -> LaunchPlan: ...

class GpuGrid:
    """One dispatch; without threadgroups when it has nothing to do."""

    threadgroups: tuple[int, int, int]
    threads: int
    threadgroup_memory_bytes: int

class DecodePlan:
    """``csrc/gpu/launch_plan.h`` says what the numbers are."""

    row_tiles: int
    passes: int
    keys_per_split: int
    max_splits: int
    num_splits: int
    num_partials: int
    grid: GpuGrid

class PrefillPlan:
    tile_rows: int
    key_tile: int
    max_split_rows: int
    keys_per_split: int
    max_splits: int
    num_splits: int
    num_partials: int
    grid: GpuGrid
    reduce: GpuGrid

class GpuLaunchPlan:
    decode: DecodePlan
    reduce: GpuGrid
    prefill: PrefillPlan

def plan_gpu_launch(
    *,
    num_tokens: int,
    num_seqs: int,
    max_context: int,
    itemsize: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int,
    window: int | None = None,
    num_cores: int,
    threadgroup_memory_bytes: int,
) -> GpuLaunchPlan: ...
def row_splits(
    first_key: int, last_key: int, keys_per_split: int, max_splits: int
) -> tuple[int, int]:
    """Length of a row's splits, and how many of them it has."""

def scatter_paged_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    slot_mapping: mx.array,
    block_tables: mx.array,
    seq_lens: mx.array,
    cu_seqlens_q: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array]: ...
def paged_attention(
    q: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    block_tables: mx.array,
    seq_lens: mx.array,
    cu_seqlens_q: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> mx.array: ...
def reshape_and_cache(
    k: mx.array, v: mx.array, k_cache: mx.array, v_cache: mx.array, slot_mapping: mx.array
) -> tuple[mx.array, mx.array]: ...
def zeros(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Allocated and zeroed at once, in main memory, on huge pages where the system has them."""

def check_cache_strides(name: str, cache: mx.array) -> None:
    """Raise ``ValueError`` unless the last dimension is contiguous, as far as it is known yet."""

def knows_mlx_arrays() -> bool: ...
def num_threads() -> int: ...
def set_num_threads(num_threads: int) -> None:
    """Size of the pool that the CPU kernels run on, the caller's thread included."""

def instruction_set() -> str: ...
def set_instruction_set(name: str) -> None: ...
def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """float32 ``[..., dim]``: every row divided by the root of its mean square, times ``weight``.

    Raises ``ValueError`` for other shapes and dtypes."""

def rope(x: mx.array, positions: mx.array, frequencies: mx.array, scale: float) -> mx.array:
    """Rotates float32 ``x [num_tokens, num_heads, 1, head_dim]``: dimension ``i`` with dimension
    ``i + half`` by ``positions * scale * frequencies[i]``; the rest stays.

    ``positions`` are int32 ``[num_tokens]``, ``frequencies`` float32 ``[half]``. Raises
    ``ValueError`` for other shapes and dtypes."""

def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """``silu(gate) * up``, in float32 inside."""
