"""Heads through one operator: models compute what they did, and a wrong operator never serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import SuScaledRoPE, YarnRoPE
from mlx_lm.tuner.lora import LoRALinear

from backend_metal import native
from backend_metal.device import device_on
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.engine.build import build_engine
from backend_metal.models import paged_model
from backend_metal.models.checks.heads_check import NUM_TOKENS, separate_wrong_heads
from backend_metal.models.families.table import FAMILIES
from backend_metal.models.layers.fused_heads import fuse_heads, fused_modules, separate_heads
from backend_metal.models.layers.rotary import rotary_of
from backend_metal.models.paged_model import PagedModel
from backend_metal.models.seam import catch_attention
from deployments.backend import EngineConfig
from tests.cuda.on_cpu.extension import execution, operators
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.dense import dense_logits, tokens_of
from tests.support.backend_metal.rotate_heads_cases import error_of_model
from tests.support.backend_metal.tiny_configs import VARIANTS

FUSED = {
    *("Klear", "apertus", "dots1", "ernie4_5", "ernie4_5_moe", "gemma", "glm4", "granite"),
    *(
        "granitemoe",
        "helium",
        "internlm3",
        "lfm2",
        "lfm2-vl",
        "lfm2_moe",
        "llama",
        "mellum",
        "mimo",
        "mistral",
    ),
    *("mistral3", "phimoe", "pixtral", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe"),
    *("qwen3_vl", "qwen3_vl_moe", "seed_oss", "smollm3", "starcoder2"),
    # Variants of these.
    *("llama-16", "llama-48", "llama-llama3-rope", "llama-sliding", "qwen3-32", "qwen3-512"),
}
# With and without norms, of some dims, in neighbouring pairs, and with frequencies.
TYPICAL = ("qwen3", "llama", "starcoder2", "glm4", "helium", "llama-llama3-rope")


@pytest.fixture
def rotate() -> Iterator[RotateHeads]:
    """The CUDA kernel on the emulator."""
    with execution():
        yield operators().rotate_heads


def num_fused(network: nn.Module) -> int:
    return sum(1 for _ in fused_modules(network))


@pytest.mark.parametrize("family", sorted(FUSED))
def test_mixed_batches_match_the_dense_model(family: str, rotate: RotateHeads) -> None:
    network, config = tiny_models.build(family)
    operators().take_nodes()
    worst = error_of_model(network, config, rotate)
    assert worst <= 1e-5
    # All that serves five steps, behind the check at start.
    launches = [node[0] for node in operators().take_nodes()]
    assert len(launches) >= 5 * num_fused(network) > 0
    assert {name.split("_float")[0] for name in launches} == {"rotate_heads"}


@pytest.mark.parametrize("family", sorted([*FAMILIES, *VARIANTS]))
def test_which_models_it_serves(family: str, rotate: RotateHeads) -> None:
    network, _ = tiny_models.build(family)
    fuse_heads(network, rotate)
    assert (num_fused(network) > 0) == (family in FUSED)


def test_a_cpu_has_one() -> None:
    network, config = tiny_models.build("qwen3")
    worst = error_of_model(network, config, native.rotate_heads)
    assert worst <= 1e-5
    assert num_fused(network) == len(network.layers)
    assert device_on(mx.Device(mx.cpu)).rotate_heads is native.rotate_heads


Wrong = Callable[[RotateHeads, dict[str, Any], tuple[mx.array, ...]], tuple[mx.array, mx.array]]


def raises(rotate: RotateHeads, options: dict[str, Any], arrays: tuple[mx.array, ...]) -> Any:
    """Not when models are traced: kernels are compiled when they run."""
    if arrays[2].size in NUM_TOKENS:
        raise RuntimeError("no such instruction")
    return rotate(*arrays, **options)


def swapped(rotate: RotateHeads, options: dict[str, Any], arrays: tuple[mx.array, ...]) -> Any:
    weights = {"q_weight": options["k_weight"], "k_weight": options["q_weight"]}
    return rotate(*arrays, **options | weights)


WRONG: dict[str, Wrong] = {
    "positions": lambda rotate, options, a: rotate(a[0], a[1], a[2] + 1, **options),
    "positions of others": lambda rotate, options, a: rotate(a[0], a[1], a[2][::-1], **options),
    "dims": lambda rotate, options, a: rotate(*a, **options | {"dims": options["dims"] - 2}),
    "pairs": lambda rotate, options, a: rotate(
        *a, **options | {"traditional": not options["traditional"]}
    ),
    "base": lambda rotate, options, a: rotate(*a, **options | {"base": options["base"] * 2}),
    "scale": lambda rotate, options, a: rotate(*a, **options | {"scale": 0.5}),
    "no norm": lambda rotate, options, a: rotate(
        *a, **options | {"q_weight": None, "k_weight": None}
    ),
    "weights": swapped,
    "keys as they were": lambda rotate, options, a: (rotate(*a, **options)[0], a[1]),
    "raises": raises,
}


def distinct_weights(network: nn.Module) -> None:
    """Norms that differ, as a trained model's do."""
    for seed, layer in enumerate(network.layers):
        for index, name in enumerate(("q_norm", "k_norm")):
            weight = layer.self_attn[name].weight
            noise = mx.random.uniform(0.5, 2, weight.shape, key=mx.random.key(2 * seed + index))
            layer.self_attn[name].weight = noise


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_operator_never_serves(
    wrong: str, rotate: RotateHeads, caplog: pytest.LogCaptureFixture
) -> None:
    network, config = tiny_models.build("qwen3")
    distinct_weights(network)

    def broken(*arrays: mx.array, **options: Any) -> tuple[mx.array, mx.array]:
        return WRONG[wrong](rotate, options, arrays)

    worst = error_of_model(network, config, broken)
    assert num_fused(network) == 0
    assert worst <= 1e-5
    assert "The kernel that rotates heads is wrong on this machine" in caplog.text


# Moved all by one, keys and queries are as far from each other as before.
@pytest.mark.parametrize("wrong", sorted(WRONG.keys() - {"raises", "positions"}))
def test_parity_would_notice(
    wrong: str, rotate: RotateHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_model, "separate_wrong_heads", lambda model, dtype: None)
    network, config = tiny_models.build("qwen3")
    distinct_weights(network)

    def broken(*arrays: mx.array, **options: Any) -> tuple[mx.array, mx.array]:
        return WRONG[wrong](rotate, options, arrays)

    worst = error_of_model(network, config, broken)
    assert num_fused(network) > 0
    assert worst > 1e-3


@pytest.mark.parametrize("family", TYPICAL)
def test_the_check_at_start_covers_each_kind_of_layer(family: str, rotate: RotateHeads) -> None:
    network, _ = tiny_models.build(family)
    catch_attention(network)
    fuse_heads(network, rotate)
    operators().take_nodes()
    separate_wrong_heads(network, mx.float32)
    # Layers that are alike are checked once, with few tokens and with many.
    assert len(operators().take_nodes()) == 2
    assert num_fused(network) > 0


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_the_check_at_start_in_half_precision(dtype: mx.Dtype, rotate: RotateHeads) -> None:
    network, _ = tiny_models.build("qwen3")
    network.set_dtype(dtype)
    catch_attention(network)
    fuse_heads(network, rotate)
    separate_wrong_heads(network, dtype)
    assert num_fused(network) > 0


def test_mlx_lms_own_caches_never_notice(rotate: RotateHeads) -> None:
    network, _ = tiny_models.build("qwen3")
    tokens = tokens_of(20, 1)
    expected = dense_logits(network, tokens, [12, 20])
    fuse_heads(network, rotate)
    operators().take_nodes()
    np.testing.assert_array_equal(dense_logits(network, tokens, [12, 20]), expected)
    assert not operators().take_nodes()


def test_modules_are_as_they_were_when_separated(rotate: RotateHeads) -> None:
    network, _ = tiny_models.build("qwen3")
    before = [type(part) for part in network.modules()]
    fuse_heads(network, rotate)
    # Twice, as when one process makes two engines of a model.
    fuse_heads(network, rotate)
    assert [type(part) for part in network.modules()] != before
    separate_heads(network)
    assert [type(part) for part in network.modules()] == before


def test_weights_of_another_dtype_are_left_to_mlx(rotate: RotateHeads) -> None:
    """A product with them is of the larger dtype, which the operator does not make."""
    network, config = tiny_models.build("qwen3")
    for layer in network.layers:
        layer.self_attn.q_norm.weight = layer.self_attn.q_norm.weight.astype(mx.float16)
    operators().take_nodes()
    worst = error_of_model(network, config, rotate)
    assert worst <= 1e-5
    assert not operators().take_nodes()


class OwnNorm(nn.RMSNorm):  # type: ignore[misc]
    """Code of a model's own."""


def adapted(attention: Any) -> None:
    attention.q_proj = LoRALinear.from_base(attention.q_proj)


def normed_by_own(attention: Any) -> None:
    attention.k_norm.__class__ = OwnNorm


def of_two_epsilons(attention: Any) -> None:
    attention.k_norm.eps = 1e-3


def scaled(attention: Any) -> None:
    attention.rope = YarnRoPE(attention.rope.dims, scaling_factor=4.0)


def of_own_code(attention: Any) -> None:
    cls = type(attention)

    class Own(cls):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            out: mx.array = super().__call__(x, mask, cache)
            return out * 1

    attention.__class__ = Own


@pytest.mark.parametrize(
    "change",
    [adapted, normed_by_own, of_two_epsilons, scaled, of_own_code],
    ids=lambda f: f.__name__,
)
def test_modules_that_do_more_are_left_alone(
    change: Callable[[Any], None], rotate: RotateHeads
) -> None:
    network, config = tiny_models.build("qwen3")
    change(network.layers[1].self_attn)
    worst = error_of_model(network, config, rotate)
    assert worst <= 1e-5
    assert num_fused(network) == len(network.layers) - 1


def test_what_scales_besides_is_no_rotation() -> None:
    assert rotary_of(YarnRoPE(64, scaling_factor=4.0)) is None
    assert rotary_of(SuScaledRoPE(64, long_factor=[2.0] * 32)) is None
    assert rotary_of(SuScaledRoPE(64, long_factor=[2.0] * 32, long_mscale=1.0)) is not None
    assert rotary_of(YarnRoPE(64, scaling_factor=4.0, mscale=1, mscale_all_dim=1)) is not None


@pytest.mark.parametrize(("setting", "serves"), [("auto", True), ("reference", False)])
def test_plain_attention_has_plain_heads(
    setting: str, serves: bool, rotate: RotateHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[nn.Module] = []

    class Kept(PagedModel):
        def __init__(self, model: nn.Module, config: Any, **options: Any) -> None:
            built.append(model)
            super().__init__(model, config, rotate=rotate, **options)

    monkeypatch.setattr("backend_metal.models.load.loader.PagedModel", Kept)
    build_engine(EngineConfig(model="demo", device="cpu", attention=setting, num_kv_blocks=8))
    assert (num_fused(built[-1]) > 0) == serves
