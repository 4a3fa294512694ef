"""Every supported family from a quantized checkpoint, as an engine on the CPU loads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from backend_metal.models.families.table import FAMILIES
from tests.support.backend_metal.checkpoints import (
    PLENTY,
    ROUNDED,
    TOKENS,
    load_cpu,
    logits_of,
    save_quantized,
)
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.instantiations import is_turn_of, marked
from tests.support.tables import TABLE


def logits_of_mlx(directory: Path) -> np.ndarray:
    """With caches, since some families compute something else without."""
    network, _ = load_model(directory)
    network.set_dtype(mx.float32)
    return np.array(network(mx.array(TOKENS[None]), cache=make_prompt_cache(network))[0])


# Gemma 2's window is one that mlx-lm ignores; AFM's layers it can't quantize, nor load so, since
# their ``to_quantized`` takes no mode; and BitNet's and Prism's are packed already.
OTHERS = {"gemma2", "afm7", "bitnet", "prism_hadamard_qwen35"}
FAMILIES_OR_VARIANTS = sorted(FAMILIES.keys() - OTHERS | {"gemma2-dense"})
BITS = [4, 6]


def has_rounded_router(directory: Path) -> bool:
    """mlx-lm makes some routers 8 bits wide, whatever the rest is."""
    quantization = json.loads((directory / "config.json").read_text())["quantization"]
    return any(isinstance(one, dict) and one["bits"] == 8 for one in quantization.values())


@pytest.mark.parametrize(
    ("family", "bits"),
    marked(
        itertools.product(FAMILIES_OR_VARIANTS, BITS),
        lambda family, bits: is_turn_of(bits, BITS, FAMILIES_OR_VARIANTS.index(family)),
    ),
)
def test_quantized_weights_give_mlx_lms_logits(
    family: str, bits: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save_quantized(family, tmp_path, bits=bits, group_size=32)
    # mlx-lm has the long factors of longrope alone.
    loaded = load_cpu(tmp_path, memory_limit_bytes=PLENTY, max_model_len=4096)
    error = relative_rms(logits_of(loaded), logits_of_mlx(tmp_path))
    title = f"Logits of {bits}-bit weights against mlx-lm's"
    record_property(TABLE, (title, family, f"{error:.1e}"))
    assert error <= (ROUNDED if bits == 4 or has_rounded_router(tmp_path) else 1e-5)
