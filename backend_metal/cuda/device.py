"""What serves on NVIDIA GPUs: the extension, and its operators as an attention path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn

from backend_metal.cuda.few_rows_products import compute_few_rows
from backend_metal.cuda.graphs import CudaRecording
from backend_metal.cuda.quantized_products import compute_products_by_rows
from backend_metal.cuda.rows_alike import multiply_alike
from backend_metal.devices.base import AttentionPath
from backend_metal.devices.row_operators import RowOperators

STEP_TOKENS = 4096
"""The token budget of a step: a tenth more throughput than with half as many, and with more next to
nothing is gained (`ops/measurements.md`)."""


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


def attention_path(operators: ModuleType) -> AttentionPath:
    def adapt_layers(layers: Sequence[nn.Module]) -> None:
        compute_products_by_rows(layers, operators.quantized_product)
        compute_few_rows(layers, operators.few_rows_product)

    recorder = partial(CudaRecording, operators)
    rows = RowOperators(operators.rms_norm_of_sum, operators.silu_product)
    return AttentionPath(
        "cuda",
        operators.scatter_paged_attention,
        operators.paged_attention,
        operators.reshape_and_cache,
        mx.zeros,
        decode_options={"decodes": True},
        prefill_options={"prefills": True},
        recorder=recorder,
        make_array=operators.upload,
        fill_in=operators.fill_in_tokens,
        rotate_heads=operators.rotate_heads,
        adapt_layers=adapt_layers,
        limit_memory=operators.limit_memory,
        rows=rows,
        deterministic=AttentionPath(
            "cuda",
            partial(operators.scatter_paged_attention, one_kernel=True),
            partial(operators.paged_attention, one_kernel=True),
            operators.reshape_and_cache,
            mx.zeros,
            recorder=recorder,
            make_array=operators.upload,
            fill_in=operators.fill_in_tokens,
            rotate_heads=operators.rotate_heads,
            multiply_alike=partial(
                multiply_alike, partial(operators.few_rows_product, any_rows=True)
            ),
            limit_memory=operators.limit_memory,
            rows=rows,
            # Keys of a tile, at most, which are counted from where a table begins.
            origin_multiple=64,
        ),
    )
