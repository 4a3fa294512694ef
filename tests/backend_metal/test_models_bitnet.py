"""Ternary weights are computed from as they are stored, without mlx-lm's kernel for Metal."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.bitlinear_layers import BitLinear

from backend_metal.models.families.bitnet import unpack_ternary
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import ROUNDED, dense_logits, load_cpu, logits_of
from tests.support.backend_metal.packed_step import relative_rms


@pytest.mark.parametrize("inverts", [False, True])
@pytest.mark.parametrize("size", [32, 64, 384])
def test_each_weight_is_what_its_two_bits_say(size: int, inverts: bool) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(-1, 2, (8, size))
    packed = sum((values[2 * part : 2 * part + 2] + 1) << 2 * part for part in range(4))
    layer = BitLinear(size, 8, bias=True, invert_weight_scales=inverts)
    layer.weight, layer.weight_scale = mx.array(packed.astype(np.uint8)), mx.array([0.25])
    layer.bias = mx.arange(8.0)
    model = nn.Module()
    model.layer = layer
    unpack_ternary(model)
    x = rng.standard_normal((3, size)).astype(np.float32)
    expected = x @ values.T * (4 if inverts else 0.25) + np.arange(8)
    np.testing.assert_allclose(np.array(model.layer(mx.array(x))), expected, atol=1e-4)


def test_rows_that_are_in_no_groups() -> None:
    model = nn.Module()
    model.layer = BitLinear(48, 8)
    with pytest.raises(ValueError, match="layer: rows of 48 ternary weights can't be in groups"):
        unpack_ternary(model)


def test_a_checkpoint_of_ternary_weights(tmp_path: Path) -> None:
    tiny_models.save("bitnet", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"linear_class": "autobitlinear", "modules_to_not_convert": ["lm_head"]}
    config["quantization_config"] = {"quant_method": "bitnet"} | own
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = dense_logits(tiny_models.build("bitnet")[0])
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) <= ROUNDED
