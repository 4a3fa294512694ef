"""Recurrent layers: kernels against mlx-lm's modules on copies of the states.

``python -m ops.bench.recurrent [--sequences N] [--traffic N] [--budget SECONDS]``. One layer of
each kind with the state that published models have, and projections so small that they cost next to
nothing (but for RG-LRU's own, which make its gates); float32 on a CPU, bfloat16 on a GPU. A decode
step of all sequences moves each state twice: a second table holds what the operator alone moves of
``--traffic`` sequences against copy bandwidth.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from typing import Any

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import select_device  # isort: skip
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import mamba, mamba2, qwen3_5, recurrent_gemma
from tqdm import tqdm

from backend_metal.devices.cpu.blas import physical_cores
from backend_metal.devices.cpu.native_scope import native_layers
from backend_metal.models.layers import griffin, selective_scan
from backend_metal.models.layers.recurrent_layers import (
    PooledStateCache,
    RecordingStateCache,
    pack_recurrent,
)
from backend_metal.recurrent import (
    RecurrentSpec,
    StateArray,
    StateMetadata,
    StatePool,
    StepStates,
)
from ops.bench import device_limits, machine
from ops.bench.recurrent.traffic import traffic_table
from ops.bench.timing import markdown_table, median_seconds

HIDDEN_SIZE = 64


def qwen3_5_9b() -> nn.Module:
    arguments = qwen3_5.TextModelArgs(
        hidden_size=HIDDEN_SIZE,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    return qwen3_5.GatedDeltaNet(arguments)


def mamba2_8b() -> nn.Module:
    arguments = mamba2.ModelArgs(
        model_type="mamba2",
        num_heads=128,
        head_dim=64,
        vocab_size=1,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=8192,
        state_size=128,
        num_hidden_layers=1,
        layer_norm_epsilon=1e-5,
        conv_kernel=4,
        n_groups=8,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=True,
        time_step_limit=(0.0, float("inf")),
        time_step_rank="auto",
    )
    return mamba2.Mamba2Block(arguments, 0)


def falcon_mamba_7b() -> nn.Module:
    arguments = mamba.ModelArgs(
        model_type="falcon_mamba",
        vocab_size=1,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=8192,
        state_size=16,
        num_hidden_layers=1,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    return mamba.MambaBlock(arguments)


def recurrent_gemma_2b() -> nn.Module:
    return recurrent_gemma.RecurrentBlock(HIDDEN_SIZE, num_heads=10, lru_width=2560)


class Layer(nn.Module):  # type: ignore[misc]
    """One recurrent module, on packed steps."""

    def __init__(self, module: nn.Module, dtype: mx.Dtype) -> None:
        super().__init__()
        self.mixer = module
        self.set_dtype(dtype)
        mx.eval(self.parameters())
        takes_mask = "mask" in inspect.signature(type(module).__call__).parameters
        self._options = {"mask": None} if takes_mask else {}
        for family in (selective_scan, griffin):
            family.adapt(self, {})
        pack_recurrent(self, "mixer")
        recording = RecordingStateCache(2)
        self.mixer(mx.zeros((3, 1, HIDDEN_SIZE), dtype), **self._options, cache=recording)
        self.specs = recording.recorded

    def decode(self, path: str | None, num_seqs: int, dtype: mx.Dtype) -> Callable[[], None]:
        """A step of ``num_seqs`` tokens, evaluated."""
        pool = StatePool(self.specs, num_seqs, path=path)
        slots = np.arange(num_seqs, dtype=np.int32)
        borders = np.arange(num_seqs + 1, dtype=np.int32)
        states = StepStates(pool, StateMetadata.of(slots, slots, borders))
        x = mx.random.normal((num_seqs, 1, HIDDEN_SIZE), dtype, key=mx.random.key(0))

        def run() -> None:
            cache: Any = PooledStateCache(states, 0)
            with native_layers():
                out = self.mixer(x, **self._options, cache=cache)
            mx.eval(out, pool.evaluation_roots())

        return run


class Scan:
    """The recurrence of Falcon-Mamba-7B alone, which mlx-lm's module has between projections."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self._state = StateArray((8192, 1, 16), mx.float32)
        self.specs = [RecurrentSpec((self._state,), fits_kernels=True)]

    def decode(self, path: str | None, num_seqs: int, dtype: mx.Dtype) -> Callable[[], None]:
        pool = StatePool(self.specs, num_seqs, path=path)
        slots = np.arange(num_seqs, dtype=np.int32)
        metadata = StateMetadata.of(slots, slots, np.arange(num_seqs + 1, dtype=np.int32))
        channels, _, columns = self._state.shape
        x, k, q = (
            mx.random.normal((num_seqs, size), dtype) for size in (channels, columns, columns)
        )
        steps = mx.random.uniform(0.01, 0.1, (num_seqs, channels))
        rates = -mx.random.uniform(1, 16, (channels, columns))
        mx.eval(x, k, q, steps, rates)

        def kernel() -> mx.array:
            q_heads, k_heads, v = q[:, None], k[:, None], x[..., None]
            return pool.linear_attention(
                0,
                0,
                q_heads,
                k_heads,
                v,
                rates,
                steps,
                metadata,
                delta_rule=False,
                gates_are_rates=True,
            )

        def module() -> mx.array:
            (before,) = pool.read(0, metadata.read_slots)
            state = (steps * x)[..., None] * k[:, None]
            state += before.squeeze(2) * mx.exp(steps[..., None] * rates)
            pool.write(0, metadata.write_slots, [state[:, :, None]])
            return (state @ q.astype(mx.float32)[..., None]).squeeze(2)

        scan = kernel if pool.has_kernels(0) else module
        return lambda: mx.eval(scan(), pool.evaluation_roots())


SHAPES: dict[str, Callable[[mx.Dtype], Layer | Scan]] = {
    "Qwen3.5-9B, gated delta": lambda dtype: Layer(qwen3_5_9b(), dtype),
    "Mamba2-8B, SSD": lambda dtype: Layer(mamba2_8b(), dtype),
    "Falcon-Mamba-7B, selective scan": lambda dtype: Layer(falcon_mamba_7b(), dtype),
    "Falcon-Mamba-7B, the scan alone": Scan,
    "RecurrentGemma-2B, RG-LRU": lambda dtype: Layer(recurrent_gemma_2b(), dtype),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.recurrent", description=__doc__)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--traffic", type=int, default=16, help="sequences of the second table")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for one figure")
    arguments = parser.parse_args()
    is_cpu = select_device("auto").mlx.type == mx.cpu
    dtype = mx.float32 if is_cpu else mx.bfloat16
    rows = []
    for name, build in SHAPES.items():
        layer = build(dtype)
        state_bytes = StatePool.bytes_per_slot(layer.specs)
        taken = []
        for path in tqdm((None, "reference"), desc=name, unit="path"):
            run = layer.decode(path, arguments.sequences, dtype)
            taken.append(median_seconds(run, budget=arguments.budget))
        rows.append(
            (
                name,
                f"{state_bytes / 1e6:.1f}",
                *(f"{1e3 * seconds:.2f}" for seconds in taken),
                f"{taken[1] / taken[0]:.1f}",
            )
        )
    columns = (
        f"one layer, {arguments.sequences} decodes",
        "state MB",
        "kernels ms",
        "mlx-lm ms",
        "kernels are faster by",
    )
    sys.stdout.write(markdown_table(columns, rows) + "\n\n")
    sys.stdout.flush()
    if is_cpu:
        limit = machine.copy_bandwidth(machine.COPY_BYTES, physical_cores())
    else:
        limit = device_limits.copy_rate()
    table = traffic_table(arguments.traffic, dtype, limit, arguments.budget)
    sys.stdout.write(table + "\n")


if __name__ == "__main__":
    main()
