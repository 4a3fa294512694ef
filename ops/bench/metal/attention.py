"""Attention on a GPU: each path's step over paged caches, against MLX's own attention and limits.

A measurement chains ``LAYERS`` calls in one lazy graph, as a model would, so that the time to hand
work to the GPU is paid once; figures are for one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.attention.paths import AttentionPath  # isort: skip
import mlx.core as mx
import numpy as np
from tqdm import tqdm

from ops.bench.timing import markdown_table, median_seconds

BLOCK_SIZE = 16
LAYERS = 8
CONTIGUOUS = "MLX contiguous"
COPY_BYTES = 256 * 2**20
GEMM_SIZE = 4096

Run = Callable[[], None]


@dataclass(frozen=True)
class Shape:
    """``batch`` sequences of ``context`` tokens, of which the last ``new`` are this step's."""

    context: int
    batch: int
    new: int = 1
    num_q_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: mx.Dtype = mx.bfloat16

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def name(self) -> str:
        new = f"{self.new} of " if self.new > 1 else ""
        return f"{self.batch} x {new}{self.context}"

    @property
    def kv_bytes(self) -> int:
        """Keys and values of the whole batch, each once: what a step has to read."""
        elements = 2 * self.batch * self.context * self.num_kv_heads * self.head_dim
        return elements * int(self.dtype.size)

    @property
    def flops(self) -> int:
        """Both products, over the keys that each query sees."""
        keys = sum(range(self.context - self.new + 1, self.context + 1))
        return 4 * self.batch * keys * self.num_q_heads * self.head_dim

    def heads(self, count: int, *leading: int, seed: int) -> mx.array:
        shape = (*leading, count, self.head_dim)
        return mx.random.normal(shape, self.dtype, key=mx.random.key(seed))


DECODES = tuple(Shape(context, batch) for context in (1024, 8192, 32768) for batch in (1, 8, 32))
PREFILLS = (Shape(2048, 1, new=2048), Shape(8192, 1, new=512), Shape(512, 8, new=512))


def paged(shape: Shape, path: AttentionPath) -> Run:
    """The production operator over blocks in random order."""
    blocks_each = -(-shape.context // BLOCK_SIZE)
    num_blocks = shape.batch * blocks_each
    caches = [
        shape.heads(shape.num_kv_heads, num_blocks, BLOCK_SIZE, seed=seed) for seed in range(2)
    ]
    tables = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    tables = tables.reshape(shape.batch, blocks_each)
    positions = np.arange(shape.context - shape.new, shape.context)
    slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    tokens = shape.batch * shape.new
    q = shape.heads(shape.num_q_heads, tokens, seed=2)
    k, v = (shape.heads(shape.num_kv_heads, tokens, seed=seed) for seed in (3, 4))
    metadata = {
        "slot_mapping": mx.array(slots.reshape(-1).astype(np.int32)),
        "block_tables": mx.array(tables),
        "seq_lens": mx.full((shape.batch,), shape.context, mx.int32),
        "cu_seqlens_q": mx.arange(0, tokens + 1, shape.new, dtype=mx.int32),
    }
    mx.eval(caches, q, k, v, metadata)

    def run() -> None:
        nonlocal caches
        out = q
        for _ in range(LAYERS):
            # Nobody else holds the caches, or the reference would copy them.
            v_cache, k_cache = caches.pop(), caches.pop()
            out, *caches = path.scatter_paged_attention(
                out, k, v, k_cache, v_cache, scale=shape.scale, **metadata
            )
            del k_cache, v_cache
        mx.eval(out, caches)

    return run


def contiguous(shape: Shape) -> Run:
    """MLX's own attention over keys and values that lie in one piece for each head."""
    keys, values = (
        mx.random.normal(
            (shape.batch, shape.num_kv_heads, shape.context, shape.head_dim),
            shape.dtype,
            key=mx.random.key(seed),
        )
        for seed in range(2)
    )
    q = mx.random.normal(
        (shape.batch, shape.num_q_heads, shape.new, shape.head_dim),
        shape.dtype,
        key=mx.random.key(2),
    )
    mx.eval(q, keys, values)
    mask = "causal" if shape.new > 1 else None

    def run() -> None:
        out = q
        for _ in range(LAYERS):
            out = mx.fast.scaled_dot_product_attention(
                out, keys, values, scale=shape.scale, mask=mask
            )
        mx.eval(out)

    return run


def copy_rate(num_bytes: int = COPY_BYTES) -> float:
    """Bytes read and written a second by MLX's default device, both counted, out of cache."""
    source = mx.ones((num_bytes // 4,), mx.float32)
    mx.eval(source)
    return 2 * num_bytes / median_seconds(lambda: mx.eval(source + 1.0), budget=1.0)


def gemm_rate(dtype: mx.Dtype, size: int = GEMM_SIZE) -> float:
    """Operations a second of ``[size, size] @ [size, size].T``."""
    a, b = (mx.random.normal((size, size), dtype, key=mx.random.key(seed)) for seed in range(2))
    mx.eval(a, b)
    return 2 * size**3 / median_seconds(lambda: mx.eval(a @ b.T), budget=2.0)


def measure(
    shape: Shape, paths: Sequence[AttentionPath], budget: float, memory_bytes: float
) -> dict[str, float]:
    """Seconds of one call, by contender; those whose copies of the keys don't fit are missing."""
    times: dict[str, float] = {}
    for name, copies, make in (
        *((path.name, 5 if path.name == "reference" else 1, path) for path in paths),
        (CONTIGUOUS, 1, None),
    ):
        if shape.kv_bytes * copies <= memory_bytes:
            run = contiguous(shape) if make is None else paged(shape, make)
            times[name] = median_seconds(run, budget=budget) / LAYERS
            del run
            mx.clear_cache()
    return times


def report(
    paths: Sequence[AttentionPath],
    decodes: Sequence[Shape],
    prefills: Sequence[Shape],
    *,
    budget: float,
    memory_bytes: float,
) -> str:
    """Two tables: decode in GB/s of keys and values, prefill in TFLOP/s. Shows progress."""
    names = [*(path.name for path in paths), CONTIGUOUS]
    tables = []
    with tqdm(total=len(decodes) + len(prefills), desc="attention", unit="case") as progress:
        for title, unit, shapes, work, limit_name, limit in (
            ("decode, batch x context", "GB/s", decodes, "kv_bytes", "copy GB/s", _copy_gbs),
            (
                "prefill, batch x new of context",
                "TFLOP/s",
                prefills,
                "flops",
                "GEMM TFLOP/s",
                _gemm_tflops,
            ),
        ):
            rows = []
            scale = 1e9 if unit == "GB/s" else 1e12
            for shape in shapes:
                times = measure(shape, paths, budget, memory_bytes)
                micros = f"{1e6 * times[names[0]]:.0f}" if names[0] in times else "-"
                rates = [
                    f"{getattr(shape, work) / times[name] / scale:.2f}" if name in times else "-"
                    for name in names
                ]
                rows.append([shape.name, micros, *rates, f"{limit(shape):.2f}"])
                progress.update()
            columns = (title, f"{names[0]} us", *(f"{name} {unit}" for name in names), limit_name)
            tables.append(markdown_table(columns, rows))
    return "\n\n".join(tables)


def _copy_gbs(shape: Shape) -> float:
    return copy_rate() / 1e9


def _gemm_tflops(shape: Shape) -> float:
    return gemm_rate(shape.dtype) / 1e12
