"""Models that can't be served right are refused, with the reason, and not served wrong."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import pytest
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, RotatingKVCache

from backend_metal.models.families import table as families
from backend_metal.models.families.table import Family
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models


class Chunked(ChunkedKVCache):  # type: ignore[misc]
    """A subclass has ways of its own."""


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("nonesuch", r"lacks it; backend_metal/README\.md lists the \d+ that are served"),
        ("lama", r"lacks it; near ones are llama.*; backend_metal/README\.md lists"),
        ("deepseek_v4", "lacks it, and mlx-vlm has it"),
    ],
)
def test_other_model_types_are_refused(model_type: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"model_type '{model_type}' is not .* mlx-lm .*{reason}"):
        PagedModel(nn.Module(), {"model_type": model_type})


def test_every_type_of_mlx_lm_is_served_or_refused_with_a_reason() -> None:
    files = [file for path in mlx_lm.models.__path__ for file in Path(path).glob("*.py")]
    types = {file.stem for file in files if "class Model(" in file.read_text(encoding="utf-8")}
    assert len(types) > 100
    served, refused = set(families.FAMILIES), set(families.REFUSED)
    assert not served & refused
    assert refused <= types
    assert types <= served | refused


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("deepseek_v41", "sum up several tokens"),
        ("deepseek_v41_text", "sum up several tokens"),
        ("minimax_m3_vl", "choose blocks of keys"),
        ("olmo", "ai2-olmo"),
        ("phi3small", "block-sparse layers"),
        ("plamo3", "window of one token more than it keeps"),
    ],
)
def test_types_that_cannot_be_served_are_refused_with_the_reason(
    model_type: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"model_type '{model_type}' is not supported: .*{reason}"):
        PagedModel(nn.Module(), {"model_type": model_type})


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("plamo3", "cache 0 keeps 16 tokens in mlx-lm, .* window of 17: the two contradict"),
    ],
)
def test_the_trace_sees_it_too(
    model_type: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the type on the list by mistake."""
    monkeypatch.setattr(families, "REFUSED", {})
    monkeypatch.setattr(families, "FAMILIES", {model_type: Family()})
    network, config = tiny_models.build(model_type)
    with pytest.raises(ValueError, match=reason):
        PagedModel(network, config)


@pytest.mark.parametrize(
    ("caches", "reason"),
    [
        ([KVCache, KVCache, KVCache], "makes 3 caches, and no layer attends over cache 2"),
        ([KVCache, lambda: ArraysCache(2)], "makes cache 1 an ArraysCache, .* no recurrent layers"),
        (
            [KVCache, lambda: ChunkedKVCache(32)],
            "cache 1 keeps chunks of 32 tokens in mlx-lm, and its layer sees",
        ),
        ([KVCache, lambda: RotatingKVCache(32)], "cache 1 keeps 32 tokens .* a window of None"),
        ([KVCache, lambda: RotatingKVCache(32, keep=4)], "cache 1 keeps the first 4 tokens"),
        ([KVCache, lambda: Chunked(32)], "makes cache 1 a Chunked; those served are"),
    ],
)
def test_caches_other_than_what_the_layers_attend_over_are_refused(
    caches: list[Callable[[], Any]], reason: str
) -> None:
    network, config = tiny_models.build("llama")
    network.__class__ = type(
        "Caching", (type(network),), {"make_cache": lambda self: [make() for make in caches]}
    )
    with pytest.raises(ValueError, match=reason):
        PagedModel(network, config)


def test_recurrent_layers_that_keep_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", {"mamba2": Family("backbone", recurrent="none")})
    network, config = tiny_models.build("mamba2")
    network.backbone.layers[0].mixer.__class__ = type(
        "Forgetful", (nn.Module,), {"__call__": lambda self, x, mask, cache: x}
    )
    network.backbone.layers[1].mixer.__class__ = type(network.backbone.layers[0].mixer)
    with pytest.raises(ValueError, match="recurrent cache 0 is used 0 times in a forward"):
        PagedModel(network, config)


def test_a_mask_of_a_windowed_cache_has_its_window() -> None:
    """As mlx-lm makes it where a model asks for none."""
    network, config = tiny_models.build("llama")
    network.__class__ = type(
        "Caching", (type(network),), {"make_cache": lambda self: [RotatingKVCache(32)] * 2}
    )
    assert [layer.window for layer in PagedModel(network, config).layers] == [32, 32]


def attending(attend: Callable[..., mx.array]) -> tuple[nn.Module, dict[str, Any]]:
    """A model whose layer 1 is ``attend``."""
    network, config = tiny_models.build("llama")
    own = type(network.layers[1].self_attn)
    network.layers[1].self_attn.__class__ = type("Changed", (own,), {"__call__": attend})
    return network, config


def test_a_layer_that_never_attends_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer attends over cache 1"):
        PagedModel(*attending(lambda self, x, mask, cache: x))


def test_a_cache_that_is_written_twice_is_refused() -> None:
    def twice(self: Any, x: mx.array, mask: Any, cache: Any) -> mx.array:
        heads = mx.zeros((x.shape[0], 2, 1, 64))
        cache.update_and_fetch(heads, heads)
        cache.update_and_fetch(heads, heads)
        return x

    with pytest.raises(ValueError, match="cache 1 is written twice in a forward, not once"):
        PagedModel(*attending(twice))


def over(keys: mx.array, values: mx.array, scale: float = 0.125) -> Callable[..., mx.array]:
    """A layer that attends over these beside what its cache keeps."""

    def attend(self: Any, x: mx.array, mask: Any, cache: Any) -> mx.array:
        attention = importlib.import_module("mlx_lm.models.llama").scaled_dot_product_attention
        q = mx.zeros((x.shape[0], 4, 1, 64))
        cache.update_and_fetch(keys, keys)
        attention(q, keys, keys, cache=cache, scale=0.125, mask=mask)
        attention(q, keys, values, cache=cache, scale=scale, mask=mask)
        return x

    return attend


def test_a_view_of_other_values_or_options_is_refused() -> None:
    keys = mx.zeros((3, 2, 1, 64))
    with pytest.raises(ValueError, match="over the keys of cache 1 and other values"):
        PagedModel(*attending(over(keys, keys + 1)))
    with pytest.raises(ValueError, match="two layers attend over cache 1, and not in one way"):
        PagedModel(*attending(over(keys, keys, scale=0.5)))


def test_keys_that_no_cache_keeps_are_refused() -> None:
    def bare(self: Any, x: mx.array, mask: Any, cache: Any) -> mx.array:
        attention = importlib.import_module("mlx_lm.models.llama").scaled_dot_product_attention
        heads = mx.zeros((x.shape[0], 2, 1, 64))
        attended: mx.array = attention(heads, heads, heads, cache=None, scale=1.0, mask=mask)
        return attended

    with pytest.raises(ValueError, match="attends over keys that no cache keeps"):
        PagedModel(*attending(bare))


def test_a_mask_of_the_models_own_is_refused() -> None:
    network, config = tiny_models.build("llama")
    attention = type(network.layers[0].self_attn)

    class Masked(attention):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            attended: mx.array = super().__call__(x, mx.zeros((1, 1)), cache)
            return attended

    network.layers[0].self_attn.__class__ = Masked
    with pytest.raises(ValueError, match="mask must come from the cache's make_mask"):
        PagedModel(network, config)


def test_a_backbone_that_keeps_every_row_is_refused() -> None:
    network, config = tiny_models.build("llama")

    def flat(self: Any, inputs: mx.array, cache: Any) -> mx.array:
        self.model(inputs, cache)
        return mx.zeros((3, 1, 9))

    network.__class__ = type("Flat", (type(network),), {"__call__": flat})
    with pytest.raises(ValueError, match=r"logits have shape \(3, 9\), not \[num_rows, vocab\]"):
        PagedModel(network, config)
