"""What the attention benchmark runs: paged caches with scattered blocks, and contiguous copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import Device  # isort: skip
import mlx.core as mx
import numpy as np

BLOCK_SIZE = 16
PATTERN_TOKENS = 4096
"""Random keys and values that the caches repeat: generating gigabytes would take longer."""

Run = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """``batch`` sequences with ``context`` tokens, of which the last ``new`` are this step's."""

    context: int
    batch: int
    new: int = 1
    num_q_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128

    @property
    def name(self) -> str:
        new = f"{self.new} of " if self.new > 1 else ""
        return f"{self.batch} x {new}{self.context}"

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    def kv_bytes(self, dtype: mx.Dtype) -> int:
        """Keys and values of the whole batch, each once: what a decode step has to read."""
        elements = 2 * self.batch * self.context * self.num_kv_heads * self.head_dim
        return elements * int(dtype.size)

    @property
    def num_scores(self) -> int:
        """Those that are masked included."""
        return self.batch * self.num_q_heads * self.new * self.context

    @property
    def flops(self) -> int:
        """Both products, over the keys that each query sees."""
        keys = sum(range(self.context - self.new + 1, self.context + 1))
        return 4 * self.batch * keys * self.num_q_heads * self.head_dim


def rows(case: Case, dtype: mx.Dtype, heads: int, count: int, seed: int) -> mx.array:
    return mx.random.normal((count, heads, case.head_dim), dtype, key=mx.random.key(seed))


class Paged:
    """The production operator, over blocks in random order.

    A run is ``calls`` of them in one lazy graph, each over what the one before returned, as a
    model's layers are: handing work to a GPU is paid for once.
    """

    def __init__(self, case: Case, dtype: mx.Dtype, home: Device, calls: int = 1) -> None:
        """``home``: whose caches they are; others may run on them, too."""
        self._case = case
        self._calls = calls
        blocks_each = -(-case.context // BLOCK_SIZE)
        num_blocks = case.batch * blocks_each
        self._caches = filled_caches(case, dtype, num_blocks, home)
        tables = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
        tables = tables.reshape(case.batch, blocks_each)
        positions = np.arange(case.context - case.new, case.context)
        slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        tokens = case.batch * case.new
        self._q = rows(case, dtype, case.num_q_heads, tokens, 2)
        self._k, self._v = (rows(case, dtype, case.num_kv_heads, tokens, seed) for seed in (3, 4))
        # Made as a step's are: where they lie decides how long a GPU waits for them.
        self._metadata = {
            name: home.make_array(values.astype(np.int32))
            for name, values in {
                "slot_mapping": slots.reshape(-1),
                "block_tables": tables,
                "seq_lens": np.full(case.batch, case.context),
                "cu_seqlens_q": np.arange(0, tokens + 1, case.new),
            }.items()
        }
        mx.eval(self._caches, self._q, self._k, self._v, self._metadata)

    def run(self, path: Device) -> Run:
        one = self._case.new == 1
        options = path.phases(decodes=one, prefills=not one)

        def step() -> None:
            out = self._q
            for _ in range(self._calls):
                # Nobody else holds the caches, or the reference would copy them.
                v_cache, k_cache = self._caches.pop(), self._caches.pop()
                out, *self._caches = path.scatter_paged_attention(
                    out,
                    self._k,
                    self._v,
                    k_cache,
                    v_cache,
                    scale=self._case.scale,
                    **self._metadata,
                    **options,
                )
                del k_cache, v_cache
            mx.eval(out, self._caches)

        return step


def filled_caches(case: Case, dtype: mx.Dtype, num_blocks: int, path: Device) -> list[mx.array]:
    """Keys and values, allocated as the KV cache pool allocates them."""
    num_slots = num_blocks * BLOCK_SIZE
    shape = (num_blocks, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    k, v = (rows(case, dtype, case.num_kv_heads, PATTERN_TOKENS, seed) for seed in range(2))
    k_cache, v_cache = (path.zeros(shape, dtype) for _ in range(2))
    for first in range(0, num_slots, PATTERN_TOKENS):
        slots = mx.arange(first, min(first + PATTERN_TOKENS, num_slots))
        count = len(slots)
        k_cache, v_cache = path.reshape_and_cache(k[:count], v[:count], k_cache, v_cache, slots)
        mx.eval(k_cache, v_cache)
    return [k_cache, v_cache]


def contiguous(case: Case, dtype: mx.Dtype, calls: int = 1) -> Run:
    """MLX's own attention over keys and values that lie in one piece for each head. It writes
    none of them."""
    q = rows(case, dtype, case.num_q_heads, case.batch * case.new, 2)
    q = q.reshape(case.batch, case.new, case.num_q_heads, -1).swapaxes(1, 2)

    def cache(seed: int) -> mx.array:
        pattern = rows(case, dtype, case.num_kv_heads, PATTERN_TOKENS, seed).swapaxes(0, 1)
        tiles = -(-case.context // PATTERN_TOKENS)
        return mx.tile(pattern, (case.batch, 1, tiles, 1))[:, :, : case.context]

    keys, values = (mx.contiguous(cache(seed)) for seed in range(2))
    q = mx.contiguous(q)
    mx.eval(q, keys, values)
    mask = "causal" if case.new > 1 else None

    def step() -> None:
        out = q
        for _ in range(calls):
            out = mx.fast.scaled_dot_product_attention(
                out, keys, values, scale=case.scale, mask=mask
            )
        mx.eval(out)

    return step
