"""The compiled extension, built from ``csrc/``; ``native.py`` loads it."""

from collections.abc import Callable, Sequence
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

class RepeatedGraph:
    """A graph of arrays that is built once, and made again, node by node, for other inputs of the
    same shapes."""

    def __init__(
        self,
        build: Callable[[list[mx.array]], list[mx.array]],
        inputs: Sequence[mx.array],
    ) -> None:
        """``build`` is called with arrays of the shapes and dtypes of ``inputs`` that have no data:
        to look at one raises ``RuntimeError``. What it makes without them is computed once."""

    def __call__(self, inputs: Sequence[mx.array]) -> list[mx.array]:
        """What ``build`` would make of these. Raises ``ValueError`` where these are others."""

class Task:
    """One thread's part of a launch; ``cpu/launch/launch_plan.h`` says what the numbers are."""

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
    one_kernel: bool = False,
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
    device_tiles: int
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
    first_key: int, last_key: int, keys_per_split: int, max_splits: int, tile_keys: int
) -> tuple[int, int]:
    """Length of a row's splits, and how many of them it has."""

def even_splits(
    first_key: int, last_key: int, keys_per_split: int, max_splits: int
) -> tuple[int, int, int]:
    """Where a sequence's splits start, their length, and how many of them it has."""

def most_splits(tiles: int, device_tiles: int, max_splits: int) -> int: ...
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
    one_kernel: bool = False,
    decodes: bool = False,
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
    one_kernel: bool = False,
    decodes: bool = False,
) -> mx.array: ...
def reshape_and_cache(
    k: mx.array, v: mx.array, k_cache: mx.array, v_cache: mx.array, slot_mapping: mx.array
) -> tuple[mx.array, mx.array]: ...
def causal_conv(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    states: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    cu_seqlens_q: mx.array,
) -> tuple[mx.array, mx.array]: ...
def linear_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    gates: mx.array,
    betas: mx.array,
    states: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    cu_seqlens_q: mx.array,
    *,
    delta_rule: bool,
    gates_are_rates: bool,
) -> tuple[mx.array, mx.array]: ...
def forget_lost_tasks() -> int:
    """Has MLX count those tasks as ended whose queueing raised the error of an earlier one; returns
    how many. MLX never does, and past ten of them its next evaluation waits for ever. Nothing may
    be evaluated meanwhile."""

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
def product_kernel() -> str | None:
    """The instruction set of matrix products, None where there is no kernel for this processor."""

def set_product_kernel(name: str) -> None: ...
def draw_tokens(
    logits: mx.array,
    options: mx.array,
    masks: mx.array,
    counts: mx.array,
    bias_ids: mx.array,
    biases: mx.array,
    *,
    cuts: bool,
) -> mx.array:
    """int32 ``[rows]``, on the CPU.

    ``logits`` is float32 ``[rows, vocab_size]``, ``options`` uint32 ``[rows, 13]`` (``DrawOptions``
    of ``parameters.h``), ``masks`` int32 ``[any, ceil(vocab_size / 32)]``, ``counts`` int32
    ``[any, vocab_size]``, ``bias_ids`` int32 and ``biases`` float32 ``[any]``; all but ``logits``
    and ``counts`` are contiguous. ``cuts``: whether
    some row leaves tokens out by min_p, top_k or top_p. Raises ``ValueError`` for other shapes and
    dtypes; what options say of places in the other arrays is not checked."""

def panel_product(x: mx.array, panels: mx.array, num_columns: int) -> mx.array:
    """``x`` times the transpose of a matrix that ``lay_in_panels`` laid out, with the bits of a
    float32 product of this package.

    ``x`` is float32 ``[..., depth]``, the result ``[..., num_columns]``. Raises ``ValueError`` for
    other shapes and dtypes, and where there is no kernel."""

def panel_rows(indices: mx.array, panels: mx.array, num_rows: int) -> mx.array:
    """Rows of such a matrix, float32 ``[..., depth]``, of int32 ``indices``, which count from the
    end where they are negative. Raises ``ValueError`` for other shapes and dtypes."""

def lay_in_panels(weight: mx.array) -> mx.array:
    """float32 ``[columns, depth]`` as ``[panels, depth, 8]``, where panel p has columns
    ``[8 p, 8 p + 8)``, with zeros behind the last. Evaluated, on huge pages where the system has
    them for new memory. Raises ``ValueError`` for other shapes and dtypes."""

def lay_together(arrays: Sequence[mx.array]) -> list[mx.array]:
    """Evaluated copies, as parts of one array, which lies on huge pages where the system has them.
    Each begins with a line of the cache."""

def quantized_matmul(
    x: mx.array,
    words: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
) -> mx.array:
    """``x`` times the transpose of a matrix in MLX's affine format, with the bits of a float32
    product with the dequantized matrix.

    ``x`` is float32 ``[..., depth]``, ``words`` uint32 ``[columns, depth * bits / 32]``, ``scales``
    and ``biases`` are floats of up to 32 bits ``[columns, depth / group_size]``. Raises
    ``ValueError`` for other shapes, dtypes and formats, and where there is no kernel."""

def gather_quantized_matmul(
    x: mx.array,
    words: mx.array,
    scales: mx.array,
    biases: mx.array,
    indices: mx.array,
    group_size: int,
    bits: int,
) -> mx.array:
    """As ``quantized_matmul``, with a matrix for each row: ``x`` is ``[num_rows, depth]``, the
    matrices are stacked along a first dimension, and ``indices``, int32 ``[num_rows]``, picks."""

def quantized_rows(
    indices: mx.array,
    words: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
) -> mx.array:
    """Rows of a matrix as ``quantized_matmul`` takes it, dequantized: float32 ``[..., depth]`` for
    int32 ``indices [...]``. Evaluation fails for indices that have no row."""

def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """float32 ``[..., dim]``: every row divided by the root of its mean square, times ``weight``.

    Raises ``ValueError`` for other shapes and dtypes."""

def rms_norm_of_sum(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """``rms_norm``, or ``mx.fast.rms_norm`` of other dtypes.

    Where ``x`` is a sum that is not computed yet, one primitive computes both, and ``x`` is that
    primitive's sum from now on."""

def rope(x: mx.array, positions: mx.array, frequencies: mx.array, scale: float) -> mx.array:
    """Rotates float32 ``x [num_tokens, num_heads, 1, head_dim]``: dimension ``i`` with dimension
    ``i + half`` by ``positions * scale * frequencies[i]``; the rest stays.

    ``positions`` are int32 ``[num_tokens]``, ``frequencies`` float32 ``[half]``. Raises
    ``ValueError`` for other shapes and dtypes."""

def rotate_heads(
    q: mx.array,
    k: mx.array,
    positions: mx.array,
    *,
    q_weight: mx.array | None,
    k_weight: mx.array | None,
    frequencies: mx.array | None,
    dims: int,
    traditional: bool,
    base: float,
    scale: float,
    epsilon: float,
) -> tuple[mx.array, mx.array]:
    """As ``backend_metal.attention.rotate_heads`` has it, on the CPU: one kernel for float32 whose
    pairs are no neighbours, and else by MLX's operators."""

def exponential(x: mx.array) -> mx.array:
    """``exp(x)``, float32, within 2 ulp and 0 below the smallest normal result. Raises
    ``ValueError`` for other dtypes."""

def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """``silu(gate) * up``, in float32 inside."""
