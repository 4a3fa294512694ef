"""Every key of a config.json is used, known to be irrelevant, refused, or told of."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import load_config

from backend_metal.models.load.account.families import PATH
from backend_metal.models.load.account.keys import check_keys, warn_of_unknown_keys
from tests.backend_metal.test_account_rotary import built
from tests.support.backend_metal import config_keys, tiny_models
from tests.support.backend_metal.published_configs import PUBLISHED
from tests.support.backend_metal.tiny_configs import FAMILY_CONFIGS

CHECKPOINT = Path("checkpoint")
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPELLED_OUT: dict[str, dict[str, Any]] = {
    "apertus": {"rope_parameters": ROPE},
    "gpt_oss": {"rope_parameters": ROPE, "max_position_embeddings": 4096},
    "olmo3": {"rope_theta": 500000.0},
}
"""What the tiny configs leave out, and transformers and mlx-lm have other defaults for."""
OTHER_WORDS = (
    # They name a size twice, or leave out what has other defaults.
    *("afmoe", "dbrx", "falcon_h1", "gemma4", "gemma4_text", "gpt2", "gpt_bigcode", "gptj"),
    *("kimi_linear", "longcat_flash", "mimo_v2_flash", "qwen3_next", "step3p5"),
    # They have no text_config, and those of transformers have.
    *("muse_glimmer", "qwen3_5", "qwen3_5_moe"),
    # It multiplies on Metal alone.
    "bitnet",
)
"""Families whose tiny configs transformers understands otherwise than mlx-lm."""


def test_the_list_is_that_of_the_installed_releases() -> None:
    """A key that is new in ``fixed`` is one that mlx-lm leaves out: see ``config_keys``."""
    written = json.loads(PATH.read_text(encoding="utf-8"))
    assert written == json.loads(config_keys.written())


@pytest.mark.parametrize(
    "family",
    [
        family
        for family in FAMILY_CONFIGS
        if family not in (*OTHER_WORDS, *config_keys.OTHER_MODELS)
        and config_keys.transformers_config(family) is not None
    ],
)
def test_what_transformers_saves_is_the_same_network(family: str, tmp_path: Path) -> None:
    config = tiny_models.config_of(family) | SPELLED_OUT.get(family, {})
    own = config_keys.CONFIG_MAPPING[family].from_dict(deepcopy(config))
    own.save_pretrained(tmp_path)
    saved = load_config(tmp_path)
    check_keys(tmp_path, saved)
    network, _ = built(config)
    rng = np.random.default_rng(1)
    weights = [
        (name, mx.array(rng.normal(0, 0.1, array.shape).astype(np.float32)))
        for name, array in tree_flatten(network.parameters())
    ]
    network.update(tree_unflatten(weights))
    again, _ = built(saved)
    again.load_weights(weights)
    tokens = mx.array([[5, 9, 77, 31, 8, 200, 14, 3, 99, 41] * 2])
    assert mx.array_equal(network(tokens), again(tokens))


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', .* 'llama' are .* were 'silu'"),
        ("qwen2_moe", {"norm_topk_prob": True}, "norm_topk_prob is True, .* as if it were False"),
        ("gemma3", {"text_config": {"attn_logit_softcapping": 50.0}}, r"text_config\.attn_logit_"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit is 5.0"),
        (
            "llama4",
            {"text_config": {"no_rope_layers": [1, 0, 1, 0]}},
            "text_config.no_rope_layers is",
        ),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, .* as if it were None: this one can't be"),
        ("minimax", {"attn_type_list": [1, 0]}, r"attn_type_list is \[1, 0\], .* were \[1, 1\]"),
        (
            "deepseek_v32",
            {"model_type": "glm_moe_dsa", "indexer_types": ["full"] * 20 + ["shared"] * 58},
            r"indexer_types is \['full', .{,50} \.{3}, and models .* were \['full', .{,50} \.{3}: ",
        ),
    ],
)
def test_a_value_that_is_computed_otherwise_is_refused(
    family: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"checkpoint/config.json: {message}"):
        check_keys(CHECKPOINT, tiny_models.config_of(family) | changed)


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("llama", {"hidden_act": "swish"}),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": None}),
        ("llama4", {"text_config": {"no_rope_layers": []}}),
        ("llama4", {"text_config": {"no_rope_layers": [1, 1, 1, 0]}}),
        ("olmoe", {"clip_qkv": None}),
        ("minimax", {"attn_type_list": [1, 1]}),
        ("llama", {"attention_dropout": 0.5, "torch_dtype": "bfloat16", "vision_config": {"a": 1}}),
    ],
)
def test_values_that_mean_the_same_are_served(family: str, changed: dict[str, Any]) -> None:
    check_keys(CHECKPOINT, tiny_models.config_of(family) | changed)


def test_unknown_keys_are_named(caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_models.config_of("llama") | {"logit_temperature": 3.0, "use_cache": True}
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_keys(CHECKPOINT, config | {"head_gate": None})
    (message,) = caplog.messages
    assert message.startswith("checkpoint/config.json has keys that nothing here reads")
    assert message.endswith("its answers are wrong: logit_temperature: 3.0")


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_key_of_a_published_config_is_refused_or_unknown(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_keys(CHECKPOINT, PUBLISHED[name].config)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_keys(CHECKPOINT, PUBLISHED[name].config)
    assert not caplog.messages


def test_known_keys_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_keys(CHECKPOINT, tiny_models.config_of("llama"))
    assert not caplog.messages
