"""Networks rotate as config.json says, in any spelling: transformers' functions are the oracle."""

from __future__ import annotations

import importlib
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import MODEL_REMAPPING

from backend_metal.models.load.account.config import normalized
from backend_metal.models.load.account.network import settle
from backend_metal.models.load.account.rope import ALIASES, text_part
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.published_configs import PUBLISHED
from tests.support.backend_metal.rotary_oracle import rotation
from tests.support.backend_metal.tiny_configs import FAMILY_CONFIGS

CHECKPOINT = Path("checkpoint")
ORIGINAL, CONTEXT = 64, 4096
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
NO_ROTARY = (
    *("gpt2", "gpt_bigcode", "jamba", "kimi_k3", "kimi_linear", "mamba", "mamba2", "nanochat"),
    *("nemotron_h", "rwkv7", "talkie"),
)
"""Families whose layers have no rotary module."""
ONE_WAY = ("gptj", "phixtral", "plamo2")
NESTED = ("gemma4", "gemma4_text", "laguna", "mellum", "spark2_5")
"""Families whose parameters are always of each kind of layer."""
SLIDING_BASES = {
    **dict.fromkeys(NESTED, 50.0),
    **dict.fromkeys(("gemma3", "gemma3_text", "gear"), 10000.0),
    **dict.fromkeys(("gemma3n", "mimo_v2_flash"), 1000.0),
    "olmo3": None,
}
"""Of sliding layers that are never scaled; None: that of the others."""


def modules_of(network: nn.Module) -> list[nn.Module]:
    return [
        module
        for path, module in network.named_modules()
        if path.rpartition(".")[2] in ("rope", "rotary_emb") and dims_of(module)
    ]


def dims_of(module: nn.Module) -> int:
    dims = getattr(module, "dims", None) or getattr(module, "dim", None)
    return int(dims or 2 * module.get("_freqs", mx.zeros(0)).size)


def as_mlx_lm(config: dict[str, Any]) -> nn.Module:
    name = MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return module.Model(module.ModelArgs.from_dict(deepcopy(config)))


def built(config: dict[str, Any], wanted: int | None = None) -> tuple[nn.Module, int]:
    """The network as a loader makes it, and its context."""
    network = as_mlx_lm(normalized(config))
    return network, settle(CHECKPOINT, network, config, wanted).context


def rotates(module: nn.Module, expected: tuple[np.ndarray, float], positions: list[int]) -> bool:
    """Whether ``module`` has these frequencies and this scale at ``positions``."""
    frequencies, scale = expected
    dims = 2 * len(frequencies)
    if dims_of(module) != dims:
        return False
    row = np.linspace(-1, 1, dims)
    rows = mx.array(np.tile(row, (len(positions), 1, 1, 1)), mx.float32)
    got = np.array(module(rows, offset=mx.array(positions)))[:, 0, 0]
    angles = np.outer(positions, frequencies)
    tolerance = 1e-4 + 1e-6 * max(positions)
    numbers = np.arange(dims)
    for first, second in (
        (numbers[::2], numbers[1::2]),
        (numbers[: dims // 2], numbers[dims // 2 :]),
    ):
        want = np.empty_like(got)
        want[:, first] = scale * (row[first] * np.cos(angles) - row[second] * np.sin(angles))
        want[:, second] = scale * (row[second] * np.cos(angles) + row[first] * np.sin(angles))
        if np.abs(got - want).max() <= tolerance:
            return True
    return False


def parameters_of(kind: str, rng: random.Random, half: int) -> dict[str, Any]:
    own: dict[str, Any] = {"rope_type": kind, "rope_theta": rng.choice([100.0, 5e5])}
    if kind in ("linear", "dynamic", "llama3", "yarn"):
        own["factor"] = rng.choice([1.5, 4.0, 8.0])
    if kind in ("llama3", "yarn", "longrope"):
        own["original_max_position_embeddings"] = ORIGINAL
    if kind == "llama3":
        own |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    if kind == "yarn":
        own |= rng.choice([{}, {"attention_factor": 0.7}, {"truncate": False}, {"beta_fast": 8.0}])
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            own[name] = [rng.uniform(1, 4) for _ in range(half)]
    return own


def spelled(family: str, own: dict[str, Any], spelling: str) -> dict[str, Any]:
    """The family's config with the parameters ``own``, in the old spelling or the new one."""
    config = tiny_models.config_of(family)
    text = config.get("text_config", config)
    kept = {
        name: value
        for name, value in (text.pop("rope_parameters", None) or {}).items()
        if name in ("llama_4_scaling_beta", "partial_rotary_factor")
    }
    for name in ("rope_theta", "rope_scaling", "rotary_emb_base"):
        text.pop(name, None)
    if family in ("ministral3", "mistral4"):
        kept["original_max_position_embeddings"] = ORIGINAL
    if family in NESTED:
        sliding = {"rope_type": "default", "rope_theta": SLIDING_BASES[family]}
        text["rope_parameters"] = {"full_attention": own, "sliding_attention": sliding}
    elif spelling == "new":
        if "partial_rotary_factor" in text:
            kept["partial_rotary_factor"] = text.pop("partial_rotary_factor")
        text["rope_parameters"] = kept | own
    else:
        fraction = {name: kept.pop(name) for name in [*kept] if name == "partial_rotary_factor"}
        scaling = {name: value for name, value in own.items() if name != "rope_theta"}
        text |= {"rope_theta": own["rope_theta"], "rope_scaling": kept | scaling, **fraction}
    return config


@pytest.mark.parametrize("spelling", ["old", "new"])
@pytest.mark.parametrize("family", [f for f in FAMILY_CONFIGS if f not in NO_ROTARY + ONE_WAY])
def test_every_family_rotates_as_transformers_do(
    family: str, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{family} {spelling}")
    plain = spelled(family, parameters_of("default", rng, 0), spelling)
    dims = {dims_of(module) for module in modules_of(built(plain)[0])}
    for kind in KINDS:
        if kind == "longrope" and (len(dims) > 1 or family in NESTED):
            # No list of factors fits layers of several head dims.
            continue
        own = parameters_of(kind, rng, max(dims) // 2)
        network, context = built(spelled(family, own, spelling))
        positions = [0, 1, ORIGINAL - 1, min(ORIGINAL, context - 1), context - 1]
        sliding = own["rope_theta"]
        if family in SLIDING_BASES:
            sliding = SLIDING_BASES[family] or sliding
        full = 0
        for module in modules_of(network):
            size = {"head_dim": dims_of(module), "context": CONTEXT}
            if rotates(module, rotation(monkeypatch, own, **size), positions):
                full += 1
                continue
            unscaled = {"rope_type": "default", "rope_theta": sliding}
            assert family in SLIDING_BASES, f"{kind}: {own}"
            assert rotates(module, rotation(monkeypatch, unscaled, **size), positions)
        assert full, f"{kind}: {own}"


SCALED = [
    name
    for name, published in PUBLISHED.items()
    if (scaling := text_part(published.config).get("rope_scaling")) and "alpha" not in scaling
]


@pytest.mark.parametrize("name", SCALED)
def test_published_configs_rotate_as_transformers_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_part(PUBLISHED[name].config)
    network, context = built(PUBLISHED[name].config)
    is_gemma = text["model_type"] == "gemma3"
    plain = {"rope_type": "default", "rope_theta": text.get("rope_theta", 1e6 if is_gemma else 1e4)}
    own = plain | text["rope_scaling"]
    own["rope_type"] = ALIASES.get(named := own.get("type", own["rope_type"]), named)
    if "original_max_position_embeddings" in text:
        own["original_max_position_embeddings"] = text["original_max_position_embeddings"]
    if "short_mscale" in own:
        own["attention_factor"] = own["short_mscale"]
    kinds = [own]
    if is_gemma or text["model_type"] == "olmo3":
        # Of sliding layers.
        kinds.append(plain | ({"rope_theta": 1e4} if is_gemma else {}))
    positions = [0, 1, context // 2, context - 1]
    found = set()
    for module in modules_of(network):
        size = {
            "head_dim": dims_of(module),
            "context": text.get("max_position_embeddings", context),
        }
        matches = [
            rotates(module, rotation(monkeypatch, kind, **size), positions) for kind in kinds
        ]
        found.add(matches.index(True))
    assert found == set(range(len(kinds)))


@pytest.mark.parametrize(
    "spoken", [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}]
)
@pytest.mark.parametrize("family", ["llama", "cohere", "glm4_moe", "qwen3_next", "stablelm"])
def test_a_part_of_each_head_is_rotated(family: str, spoken: dict[str, Any]) -> None:
    config = tiny_models.config_of(family)
    config.pop("partial_rotary_factor", None)
    network, _ = built(config | spoken)
    assert {dims_of(module) for module in modules_of(network)} == {32}


def longrope(wanted: int | None) -> tuple[nn.Module, int, dict[str, Any]]:
    config = tiny_models.config_of("phi3-longrope")
    network, context = built(config, wanted)
    own = config["rope_scaling"] | {"rope_type": "longrope", "rope_theta": config["rope_theta"]}
    return modules_of(network)[0], context, own | {"original_max_position_embeddings": ORIGINAL}


@pytest.mark.parametrize(
    ("wanted", "context", "seq_len"), [(None, 64, None), (40, 64, None), (4096, 4096, 65)]
)
def test_longrope_rotates_by_the_context_that_is_served(
    wanted: int | None, context: int, seq_len: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, served, own = longrope(wanted)
    assert served == context
    expected = rotation(monkeypatch, own, head_dim=48, context=CONTEXT, seq_len=seq_len)
    assert rotates(module, expected, [0, 1, context - 1])


def test_null_rotates_nothing_where_it_means_that() -> None:
    config = tiny_models.config_of("olmo_hybrid") | {"rope_theta": None}
    assert modules_of(built(config)[0]) == []


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        (
            "llama",
            {"rope_scaling": {"type": "xpos"}},
            "config.json: rope_scaling has the type 'xpos', which is unknown here; those served ",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear"}},
            "config.json: rope_parameters of the type 'linear' must have factor",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "llama3", "factor": 8.0}},
            "rope_scaling of the type 'llama3' must have low_freq_factor, high_freq_factor",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": "4"}},
            "config.json: rope_scaling.factor must be a number, not '4'",
        ),
        ("llama", {"rope_scaling": "yarn"}, "rope_scaling must be an object, not 'yarn'"),
        (
            "phi3-longrope",
            {"partial_rotary_factor": 0.5},
            "short_factor must have 16 numbers, one for two of the dims that are rotated, not 24",
        ),
        *(
            (
                family,
                {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 0.5}},
                f"rope_scaling.mscale_all_dim is 0.5, and models of the type '{family}' are ",
            )
            for family in ("minicpm3", "youtu_llm")
        ),
        (
            "talkie",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "checkpoint/config.json: rotary embeddings of the type 'linear' are not supported for ",
        ),
    ],
)
def test_what_cannot_be_rotated_is_refused(
    family: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        built(tiny_models.config_of(family) | changed)
