"""The rotary embeddings of a built network, held to those that its config.json asks for."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from backend_metal.models.layers.rotary import FrequencyRoPE
from backend_metal.models.load.account.families import family_of_config
from backend_metal.models.load.account.rope import (
    ONE_WAY,
    Rope,
    Rotation,
    rope_of_layer,
    ropes_of,
    rotation_of,
)

logger = logging.getLogger(__name__)

NAMES = ("rope", "rotary_emb")
"""What layers call the module."""
SEQUENCE_DEPENDENT = "DynamicNTKScalingRoPE"
"""By name, since some model files have one of their own."""
TOLERANCE = 1e-4
FLOAT32 = 3e-6
"""Relative: of angles that are computed in float32."""


class _Place(NamedTuple):
    """Where a network has a rotary module."""

    parent: nn.Module
    name: str
    layer: int
    is_sliding: bool | None

    @property
    def module(self) -> nn.Module:
        return self.parent[self.name]


def settle_rotary(
    path: Path, network: nn.Module, text: Mapping[str, Any], context: int, *, long: bool
) -> None:
    """Replace each rotary module that rotates otherwise than ``text``, the config of the language
    model, asks for. ``context``: in tokens; ``long``: as ``rotation_of`` has it. Raises
    ``ValueError`` where the network rotates in a way that can't be changed."""
    places = [] if text.get("model_type") in ONE_WAY else list(_places(network))
    if not places and (scaled := _scaling(text)) is not None:
        raise ValueError(
            f"{path / 'config.json'}: rotary embeddings of the type {scaled!r} are not supported "
            f"for models of the type {text.get('model_type')!r}"
        )
    replaced: dict[str, int] = {}
    for place in places:
        rope = rope_of_layer(text, place.layer, place.is_sliding)
        if rope is None:
            continue
        dims = _dims(place.module)
        base = getattr(place.module, "base", None)
        if rope.base is None and base is None:
            raise ValueError(
                f"{path / 'config.json'}: rope_theta must be given with rotary embeddings of the "
                f"type {rope.kind!r}"
            )
        wanted = _wanted_dims(rope, text, place.is_sliding) or dims
        rotation = rotation_of(rope, wanted, base or 0.0, long=long)
        if wanted == dims and _rotates(place.module, rotation, _positions(rope, context)):
            continue
        setattr(place.parent, place.name, _made(place.module, rope, rotation, wanted))
        replaced[rope.kind] = replaced.get(rope.kind, 0) + 1
    for kind, number in replaced.items():
        logger.info("rotary embeddings of the type %r in %d layers", kind, number)


def _places(network: nn.Module) -> Iterator[_Place]:
    for path, parent in network.named_modules():
        for name in NAMES:
            module = parent.get(name)
            # Layers without positions have a module that is empty.
            if isinstance(module, nn.Module) and _dims(module):
                numbers = re.findall(r"\d+", path)
                yield _Place(parent, name, int(numbers[0]), getattr(parent, "is_sliding", None))


def _scaling(text: Mapping[str, Any]) -> str | None:
    kinds = [rope.kind for rope in ropes_of(text).values() if rope is not None]
    return next((kind for kind in kinds if kind not in ("default", "dynamic")), None)


def _dims(module: nn.Module) -> int:
    dims = getattr(module, "dims", None) or getattr(module, "dim", None)
    if dims is None and (frequencies := module.get("_freqs")) is not None:
        dims = 2 * frequencies.size
    return int(dims or 0)


def _wanted_dims(rope: Rope, text: Mapping[str, Any], is_sliding: bool | None) -> int | None:
    """None: as many as the network rotates."""
    # Latent attention has dims of its own for positions.
    if rope.fraction is None or text.get("qk_rope_head_dim") or text.get("rotary_dim"):
        return None
    head_dim = (text.get("swa_head_dim") if is_sliding else None) or text.get("head_dim")
    if head_dim is None or "head_dim" not in family_of_config(text).reads:
        if "hidden_size" not in text:
            return None
        head_dim = text["hidden_size"] // text["num_attention_heads"]
    dims = int(head_dim * rope.fraction)
    return dims + dims % 2


def _positions(rope: Rope, context: int) -> list[int]:
    original = min(rope.original or context, context)
    return sorted({0, 1, original - 1, min(original, context - 1), context - 1})


def _rotates(module: nn.Module, rotation: Rotation, positions: list[int]) -> bool:
    """Whether ``module`` does what ``rotation`` says."""
    if type(module).__name__ == SEQUENCE_DEPENDENT:
        return False
    firsts, seconds = _pairs(_is_traditional(module), 2 * rotation.inverse_frequencies.size)
    rows = np.zeros((len(positions), 1, 1, 2 * len(firsts)), np.float32)
    rows[..., firsts] = 1
    got = _computed(module, rows, positions)
    angles = np.outer(positions, rotation.inverse_frequencies)
    error = np.maximum(
        np.abs(got[:, firsts] - rotation.scale * np.cos(angles)),
        np.abs(got[:, seconds] - rotation.scale * np.sin(angles)),
    )
    return bool(np.all(error <= TOLERANCE + FLOAT32 * angles))


def _is_traditional(module: nn.Module) -> bool:
    """Whether it rotates neighbours, rather than the halves of a head."""
    dims = _dims(module)
    rows = np.zeros((1, 1, 1, dims), np.float32)
    rows[..., 0] = 1
    return dims > 2 and int(np.argmax(np.abs(_computed(module, rows, [1])[0, 1:]))) == 0


def _pairs(traditional: bool, dims: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(dims)
    return (
        (numbers[::2], numbers[1::2])
        if traditional
        else (numbers[: dims // 2], numbers[dims // 2 :])
    )


def _computed(module: nn.Module, rows: np.ndarray, positions: list[int]) -> np.ndarray:
    # The CPU computes angles of thousands of radians exactly.
    with mx.stream(mx.cpu):
        return np.array(module(mx.array(rows), offset=mx.array(positions, mx.int32)))[:, 0, 0]


def _made(module: nn.Module, rope: Rope, rotation: Rotation, dims: int) -> nn.Module:
    if type(module).__name__ == SEQUENCE_DEPENDENT:
        traditional = bool(module.traditional)
    else:
        traditional = _is_traditional(module)
    # mlx-lm's own class where it is enough: some kernels know it alone.
    if rope.kind in ("default", "linear", "dynamic") and "alpha" not in rope.values:
        base = rope.base if rope.base is not None else module.base
        scale = 1 / rope.factor if rope.kind == "linear" else 1.0
        return nn.RoPE(dims, traditional=traditional, base=base, scale=scale)
    return FrequencyRoPE(dims, traditional, rotation.inverse_frequencies, rotation.scale)
