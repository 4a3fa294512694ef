"""The check at start: right kernels pass, and each way to be wrong is told."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import mlx.core as mx
import pytest

from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import SelfCheckError, check_path
from backend_metal.device import CPU, REFERENCE, Device
from tests.support.backend_metal.broken_paths import BROKEN, BROKEN_OPTIONS
from tests.support.instantiations import is_turn_of, marked

PLAIN = LayerAttention(LayerCacheSpec(2, 64, 64), num_q_heads=4, scale=64**-0.5)
# A window, a softcap and a scale that a check with these very numbers could not feel.
OPTIONS = replace(PLAIN, scale=0.001, window=4096, softcap=50.0, has_sinks=True)
LAYERS = [
    PLAIN,
    OPTIONS,
    replace(PLAIN, window=1),
    replace(PLAIN, window=16, num_q_heads=2),
    LayerAttention(LayerCacheSpec(1, 192, 128), num_q_heads=16, scale=1.0, has_sinks=True),
    LayerAttention(LayerCacheSpec(3, 256, 256), num_q_heads=12, scale=0.06, softcap=20.0),
]
BLOCK_SIZES = (8, 16, 32)
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@pytest.mark.parametrize("path", [CPU, REFERENCE], ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("layer", "block_size", "dtype"),
    marked(
        itertools.product(LAYERS, BLOCK_SIZES, DTYPES),
        lambda layer, block_size, dtype: is_turn_of(
            dtype, DTYPES, LAYERS.index(layer) + BLOCK_SIZES.index(block_size)
        ),
    ),
)
def test_right_kernels_pass(
    path: Device, dtype: mx.Dtype, block_size: int, layer: LayerAttention
) -> None:
    check_path(path, [layer], block_size, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_kernel_is_told(fault: str, dtype: mx.Dtype) -> None:
    with pytest.raises(SelfCheckError):
        check_path(BROKEN[fault], [PLAIN], 16, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [*BROKEN, *BROKEN_OPTIONS])
def test_a_wrong_kernel_is_told_with_every_option(fault: str, dtype: mx.Dtype) -> None:
    with pytest.raises(SelfCheckError):
        check_path((BROKEN | BROKEN_OPTIONS)[fault], [OPTIONS], 8, dtype)


def test_the_one_layer_that_differs_is_checked_too() -> None:
    layers = [PLAIN, PLAIN, replace(PLAIN, has_sinks=True), PLAIN]
    check_path(BROKEN_OPTIONS["ignores the sinks"], [PLAIN], 16, mx.float32)
    with pytest.raises(SelfCheckError):
        check_path(BROKEN_OPTIONS["ignores the sinks"], layers, 16, mx.float32)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "all of it slightly wrong",
            r"^first tokens \(float16, 4 query heads over 2, head dims 64 and 64, blocks of 16, "
            r"window None, softcap None, sinks False\): 21 tokens of the prompt sequence, "
            r"query head \d: relative RMS 0\.05, where 0\.001 is allowed$",
        ),
        ("wrong over several splits", r"^decode over several splits .*: relative RMS 0\.05"),
        ("one element is not a number", r"^first tokens .*: relative RMS nan"),
        (
            "raises when it is built",
            r"^first tokens .*: RuntimeError: \[metal::Device\] Unable to build",
        ),
        ("raises when it is evaluated", r"^first tokens .*block_tables"),
        (
            "does not write the cache",
            r"^first tokens .*: k_cache differs in 22 slots, the first of them ",
        ),
        (
            "another dtype",
            r"^first tokens .*: mlx.core.complex64 \(22, 4, 64\), not mlx.core.float16",
        ),
    ],
)
def test_it_says_what_failed(fault: str, message: str) -> None:
    with pytest.raises(SelfCheckError) as caught:
        check_path(BROKEN[fault], [PLAIN], 16, mx.float16)
    assert re.match(message, str(caught.value), re.DOTALL), str(caught.value)
