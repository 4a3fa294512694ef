"""Products with one matrix by how many rows there are: quantized, unpacked at each, and of floats.

``python -m ops.bench.products [--columns N] [--depth N] [--bits N]``. From where unpacking pays is
what ``backend_metal.models.unpacked_products`` has to know.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from copy import copy

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import select_device  # isort: skip
import mlx.core as mx
import mlx.nn as nn
from tqdm import tqdm

from backend_metal.models import unpacked_products
from ops.bench.timing import markdown_table, median_seconds

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512, 2048)
CHAIN = 10
"""Products that are handed over at once: what one takes, not what handing it over takes."""


def contenders(columns: int, depth: int, bits: int, dtype: mx.Dtype) -> list[nn.Module]:
    """Layers of the same weights, the first of which says what the others should compute."""
    floats = nn.Linear(depth, columns, bias=False)
    floats.set_dtype(dtype)
    quantized = nn.Sequential(floats)
    nn.quantize(quantized, 64, bits)
    unpacking = nn.Sequential(copy(quantized.layers[0]))
    unpacked_products.unpack_for_many_rows(unpacking)
    layers = [quantized.layers[0], unpacking.layers[0], floats]
    mx.eval([one.parameters() for one in layers])
    return layers


def chain_of(layer: nn.Module, x: mx.array) -> Callable[[], None]:
    def run() -> None:
        mx.eval([layer(x) for _ in range(CHAIN)])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.products", description=__doc__)
    parser.add_argument("--columns", type=int, default=24_576)
    parser.add_argument("--depth", type=int, default=4_096)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of each measurement")
    arguments = parser.parse_args()
    device = select_device("auto")
    mx.set_default_device(device.mlx)
    dtype = mx.float32 if device.mlx.type == mx.cpu else mx.bfloat16
    # Whatever the rows are.
    unpacked_products.FEWEST_ROWS = 1
    layers = contenders(arguments.columns, arguments.depth, arguments.bits, dtype)
    table = []
    for rows in tqdm(arguments.rows, desc="products", unit="size"):
        x = mx.random.normal((rows, arguments.depth)).astype(dtype)
        mx.eval(x)
        times = [
            median_seconds(chain_of(layer, x), budget=arguments.budget) / CHAIN for layer in layers
        ]
        flops = 2 * rows * arguments.columns * arguments.depth
        cells = (
            cell for one in times for cell in (f"{one * 1e3:.3f}", f"{flops / one / 1e12:.1f}")
        )
        table.append((str(rows), *cells))
    names = (f"{arguments.bits} bits", "unpacked", "floats")
    columns = (cell for name in names for cell in (f"{name}, ms", "TFLOP/s"))
    sys.stdout.write(
        f"{device.name}, {arguments.columns:,} columns of depth {arguments.depth:,}, {dtype}\n\n"
        f"{markdown_table(('rows', *columns), table)}\n"
    )


if __name__ == "__main__":
    main()
