"""One random checkpoint, as each server wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import gguf

# Before mlx-lm, so that MLX finds the BLAS.
from ops.bench.engine import random_model  # isort: skip
import mlx_lm
from tqdm import tqdm

from ops.bench.compare import gguf_file

Precision = Literal["f32", "8-bit", "4-bit"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BITS: Mapping[Precision, int] = {"8-bit": 8, "4-bit": 4}
"""MLX's affine formats, with a scale and a bias of 16 bits for each group."""
GROUP_SIZE = 64
SCALES = "bfloat16"
"""As in checkpoints that people share."""
KINDS: Mapping[Precision, gguf.GGMLQuantizationType] = {
    "f32": gguf.GGMLQuantizationType.F32,
    "8-bit": gguf.GGMLQuantizationType.Q8_0,
    "4-bit": gguf.GGMLQuantizationType.Q4_0,
}
"""llama.cpp's of as many bits a weight: 8.5 and 4.5 with scales, there and in MLX."""


@dataclass(frozen=True)
class Weights:
    """``mlx`` is a folder with config and tokenizer, ``gguf`` one file."""

    precision: Precision
    mlx: Path
    gguf: Path

    @property
    def mlx_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.mlx.glob("*.safetensors"))


def write(
    folder: Path,
    precisions: Sequence[Precision] = PRECISIONS,
    config: Mapping[str, object] = random_model.CONFIG,
) -> list[Weights]:
    """The same weights in each of ``precisions``, all made from float32."""
    full = folder / "f32"
    full.mkdir()
    random_model.save(full, config)
    written = []
    for precision in tqdm(precisions, desc="weights"):
        weights = Weights(precision, folder / precision, folder / f"{precision}.gguf")
        if precision != "f32":
            mlx_lm.convert(
                str(full),
                str(weights.mlx),
                quantize=True,
                q_bits=BITS[precision],
                q_group_size=GROUP_SIZE,
                dtype=SCALES,
            )
        gguf_file.write(full, weights.gguf, KINDS[precision])
        written.append(weights)
    return written
