"""Products with one matrix by how many rows there are: quantized, as MLX computes them; with
weights unpacked on their way, on CUDA, or before; and of floats.

``python -m ops.bench.products [--columns N] [--depth N] [--bits N]``. From how many rows which is
best is what ``backend_metal.cuda.quantized_products`` has to know.
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

from backend_metal.cuda import quantized_products
from backend_metal.cuda.device import OPERATORS
from ops.bench.timing import markdown_table, median_seconds

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 2048)
CHAIN = 10
"""Products that are handed over at once: what one takes, not what handing it over takes."""


Product = Callable[[mx.array], mx.array]


def contenders(columns: int, depth: int, bits: int, dtype: mx.Dtype) -> dict[str, Product]:
    """By name, of the same weights; the first says what the others should compute."""
    floats = nn.Linear(depth, columns, bias=False)
    floats.set_dtype(dtype)
    model = nn.Sequential(floats)
    nn.quantize(model, 64, bits)
    quantized = model.layers[0]
    by_rows = nn.Sequential(copy(quantized))
    kernel = None if OPERATORS is None else OPERATORS.quantized_product
    quantized_products.compute_products_by_rows([*by_rows.modules()], kernel)
    mx.eval([layer.parameters() for layer in (quantized, floats)])
    products: dict[str, Product] = {f"{bits} bits": quantized}
    if by_rows.layers[0].has_kernel:
        products["unpacked on the way"] = by_rows.layers[0].kernel_product
    return products | {"unpacked before": by_rows.layers[0].unpacked_product, "floats": floats}


def chain_of(product: Product, x: mx.array) -> Callable[[], None]:
    def run() -> None:
        mx.eval([product(x) for _ in range(CHAIN)])

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
    products = contenders(arguments.columns, arguments.depth, arguments.bits, dtype)
    table = []
    for rows in tqdm(arguments.rows, desc="products", unit="size"):
        x = mx.random.normal((rows, arguments.depth)).astype(dtype)
        mx.eval(x)
        times = [
            median_seconds(chain_of(product, x), budget=arguments.budget) / CHAIN
            for product in products.values()
        ]
        flops = 2 * rows * arguments.columns * arguments.depth
        cells = (
            cell for one in times for cell in (f"{one * 1e3:.3f}", f"{flops / one / 1e12:.1f}")
        )
        table.append((str(rows), *cells))
    columns = (cell for name in products for cell in (f"{name}, ms", "TFLOP/s"))
    sys.stdout.write(
        f"{device.name}, {arguments.columns:,} columns of depth {arguments.depth:,}, {dtype}\n\n"
        f"{markdown_table(('rows', *columns), table)}\n"
    )


if __name__ == "__main__":
    main()
