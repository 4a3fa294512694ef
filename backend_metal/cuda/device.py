"""The device for NVIDIA GPUs, and the extension with its operators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy.typing as npt

from backend_metal.cuda.few_rows_products import compute_few_rows
from backend_metal.cuda.graphs import CudaRecording
from backend_metal.cuda.quantized_products import compute_products_by_rows
from backend_metal.cuda.rows_alike import multiply_alike
from backend_metal.devices.extension import Gpu
from backend_metal.devices.row_operators import RowOperators


def _load() -> ModuleType | None:
    """The extension; None where MLX, or this build, is without CUDA."""
    if not mx.cuda.is_available() or find_spec("backend_metal._cuda") is None:
        return None
    # MLX reads it with its first command, and then launches kernels one by one, which is how whole
    # steps can be recorded, and what copies between kernels rely on. It would put them into graphs
    # of its own, built anew for each step.
    os.environ["MLX_USE_CUDA_GRAPHS"] = "0"
    operators = import_module("backend_metal._cuda")
    operators.set_shader_folder(str(Path(__file__).parents[1]))
    return operators


OPERATORS = _load()


class Cuda(Gpu):
    name = attention = "cuda"
    # A tenth more throughput than with half as many, and with more next to nothing is gained
    # (`ops/measurements.md`).
    step_tokens = 4096

    def __init__(self, operators: ModuleType, *, one_kernel: bool = False) -> None:
        super().__init__(operators, one_kernel=one_kernel)
        self.recorder = partial(CudaRecording, operators)
        self.rows = RowOperators(operators.rms_norm_of_sum, operators.silu_product)

    def limit_memory(self, num_bytes: int) -> None:
        self.operators.limit_memory(num_bytes)

    def make_array(self, values: npt.NDArray[Any]) -> mx.array:
        array: mx.array = self.operators.upload(values)
        return array

    def fill_in(self, token_ids: mx.array, drawn: mx.array) -> mx.array:
        filled: mx.array = self.operators.fill_in_tokens(token_ids, drawn)
        return filled

    def adapt_layers(self, layers: Sequence[nn.Module]) -> None:
        compute_products_by_rows(layers, self.operators.quantized_product)
        compute_few_rows(layers, self.operators.few_rows_product)

    def deterministic(self) -> Cuda:
        return DeterministicCuda(self.operators, one_kernel=True)


class DeterministicCuda(Cuda):
    # Keys of a tile, at most, which are counted from where a table begins.
    origin_multiple = 64

    def __init__(self, operators: ModuleType, *, one_kernel: bool) -> None:
        super().__init__(operators, one_kernel=one_kernel)
        self.multiply_alike = partial(
            multiply_alike, partial(operators.few_rows_product, any_rows=True)
        )

    def phases(self, *, decodes: bool, prefills: bool) -> Mapping[str, bool]:
        return {}
