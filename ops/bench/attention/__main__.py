"""The attention operators against the device's limits and against MLX's own attention.

``python -m ops.bench.attention [--device NAME] [--dtype NAME] [--memory-gb N] [--budget SECONDS]``.
Shapes are Qwen3's: 16 query heads, 8 key/value heads, head dim 128; float32 on a CPU, bfloat16 on a
GPU. Figures are medians. A decode step is held against copy bandwidth, a prefill against the GEMM
rate in the same dtype, both measured on that device beside each case.
"""

from __future__ import annotations

import argparse
import sys

from tqdm import tqdm

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import select_device  # isort: skip
import mlx.core as mx

from ops.bench.attention.bench import AttentionBench
from ops.bench.attention.cases import Case

DECODES: tuple[Case, ...] = tuple(
    Case(context, batch) for context in (1024, 8192, 32768) for batch in (1, 8, 32)
)
DECODES += (Case(4096, 32),)
PREFILLS: tuple[Case, ...] = (
    Case(2048, 1, new=2048),
    Case(8192, 1, new=512),
    Case(8192, 1, new=8192),
    Case(1024, 4, new=1024),
    Case(512, 8, new=512),
    Case(128, 32, new=128),
)


def report(bench: AttentionBench, decodes: tuple[Case, ...], prefills: tuple[Case, ...]) -> str:
    """Two tables. Shows progress."""
    with tqdm(total=len(decodes) + len(prefills), desc="attention", unit="case") as progress:
        tables = (
            bench.table("decode, batch x context", bench.run(decodes, progress.update)),
            bench.table("prefill, batch x new of context", bench.run(prefills, progress.update)),
        )
    return "\n\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.attention", description=__doc__)
    parser.add_argument("--device", default="auto", help="as engine.device")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--memory-gb", type=float, help="two fifths of the device's by default")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for one figure")
    arguments = parser.parse_args()
    device = select_device(arguments.device)
    default = "float32" if device.mlx.type == mx.cpu else "bfloat16"
    bench = AttentionBench(
        device,
        getattr(mx, arguments.dtype or default),
        arguments.budget,
        (arguments.memory_gb or 0.4e-9 * device.memory_bytes) * 1e9,
    )
    sys.stdout.write(f"{bench.machine_report()}\n\n{report(bench, DECODES, PREFILLS)}\n")


if __name__ == "__main__":
    main()
