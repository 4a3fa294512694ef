"""What decoding moves of recurrent state, against what a copy moves: the operator alone.

As many layers as models have run one after another in one evaluation, so that neither the host nor
a cache is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.recurrent import RecurrentSpec, StateArray, StateMetadata, StatePool  # isort: skip
import mlx.core as mx
import numpy as np
from tqdm import tqdm

from ops.bench.timing import markdown_table, median_seconds

NUM_LAYERS = 8


@dataclass(frozen=True)
class Recurrence:
    """One of a published model."""

    name: str
    num_k_heads: int
    num_v_heads: int
    head_dim: int
    """Columns of a state."""
    head_dim_v: int
    delta_rule: bool = False
    gates_are_rates: bool = False
    """For each channel."""

    @property
    def state(self) -> StateArray:
        return StateArray((self.num_v_heads, self.head_dim_v, self.head_dim), mx.float32)


RECURRENCES = (
    Recurrence("Qwen3.5-9B, gated delta", 16, 32, 128, 128, delta_rule=True),
    Recurrence("Mamba2-8B, SSD", 8, 128, 128, 64),
    Recurrence("Falcon-Mamba-7B, selective scan", 1, 8192, 16, 1, gates_are_rates=True),
    Recurrence("RecurrentGemma-2B, RG-LRU", 1, 2560, 1, 1),
)


def seconds_of_a_layer(one: Recurrence, num_seqs: int, dtype: mx.Dtype, budget: float) -> float:
    pool = StatePool([RecurrentSpec((one.state,), fits_kernels=True)] * NUM_LAYERS, num_seqs)
    slots = np.random.default_rng(0).permutation(num_seqs).astype(np.int32)
    metadata = StateMetadata.of(slots, slots, np.arange(num_seqs + 1, dtype=np.int32))
    q, k = (
        mx.random.normal((num_seqs, one.num_k_heads, one.head_dim), dtype) * one.head_dim**-0.5
        for _ in range(2)
    )
    v = mx.random.normal((num_seqs, one.num_v_heads, one.head_dim_v), dtype)
    betas = mx.random.uniform(0.1, 0.9, (num_seqs, one.num_v_heads))
    gates = mx.random.uniform(0.5, 1.0, (num_seqs, one.num_v_heads))
    if one.gates_are_rates:
        gates = -mx.random.uniform(0.1, 1.0, (one.num_v_heads, one.head_dim))
    mx.eval(q, k, v, betas, gates)

    def run() -> None:
        outs = [
            pool.linear_attention(
                layer,
                0,
                q,
                k,
                v,
                gates,
                betas,
                metadata,
                delta_rule=one.delta_rule,
                gates_are_rates=one.gates_are_rates,
            )
            for layer in range(NUM_LAYERS)
        ]
        mx.eval(outs, pool.evaluation_roots())

    return median_seconds(run, budget=budget) / NUM_LAYERS


def traffic_table(num_seqs: int, dtype: mx.Dtype, copy_rate: float, budget: float) -> str:
    """``copy_rate``: bytes read and written a second; ``budget``: seconds for one figure."""
    rows = []
    for one in tqdm(RECURRENCES, desc="state traffic", unit="recurrence"):
        taken = seconds_of_a_layer(one, num_seqs, dtype, budget)
        moved = 2 * num_seqs * one.state.nbytes
        rows.append(
            (
                one.name,
                f"{moved / 2e6:.0f}",
                f"{1e3 * taken:.3f}",
                f"{moved / taken / 1e9:.0f}",
                f"{100 * moved / taken / copy_rate:.0f}",
            )
        )
    columns = (f"a layer's states, {num_seqs} decodes", "MB", "ms", "GB/s", "% of copy")
    return markdown_table(columns, rows)
