"""Attention modules whose heads go through one operator, from the projections to the cache.

mlx-lm's modules norm and rotate queries, and then keys, in calls of their own. Those whose whole
``__call__`` is one of the forms below run what ``_FusedHeads`` has in its place, which is the same
with ``RotateHeads`` in the middle. Other modules, and other caches than a step's, never notice it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as cached
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import Klear, lfm2, llama, qwen3

from backend_metal.devices.cpu.float_rows import NativeRMSNorm
from backend_metal.devices.cpu.quantized import NativeQuantizedLinear
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.models.layers.fused_rows import FusedRMSNorm
from backend_metal.models.layers.layer_cache import AttentionOptions, LayerCache, PagedMask
from backend_metal.models.layers.rotary import Rotary, rotary_of, rotated

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
NORMS = (nn.RMSNorm, NativeRMSNorm, FusedRMSNorm)
LINEAR = (nn.Linear, nn.QuantizedLinear, NativeQuantizedLinear)


@dataclass(frozen=True)
class Form:
    """What modules call their parts that do the same as ``like``, to the last operation."""

    like: type[nn.Module]
    norms: tuple[str, str] | None = None
    heads: tuple[str, str] = ("n_heads", "n_kv_heads")
    output: str = "o_proj"


FORMS = (
    Form(llama.Attention),
    Form(qwen3.Attention, ("q_norm", "k_norm")),
    Form(
        Klear.KlearAttention,
        ("q_norm", "k_norm"),
        heads=("num_attention_heads", "num_key_value_heads"),
    ),
    Form(lfm2.Attention, ("q_layernorm", "k_layernorm"), output="out_proj"),
)


@dataclass(frozen=True)
class Fused:
    """What a module's heads go through."""

    form: Form
    rotary: Rotary
    rotate: RotateHeads
    head_dim: int

    def rotated(
        self, module: Any, q: mx.array, k: mx.array, positions: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Of ``[num_tokens, heads, head_dim]`` each, and so the results."""
        norms = [module[name] for name in self.form.norms or ()]
        weights = (norms[0].weight, norms[1].weight) if norms else None
        epsilon = norms[0].eps if norms else 0.0
        out = rotated(self.rotate, self.rotary, q, k, positions, weights, epsilon)
        if out is not None:
            return out
        heads = [q, k]
        if norms:
            heads = [norm(array) for norm, array in zip(norms, heads, strict=True)]
        q, k = (module.rope(array[:, :, None], offset=positions).squeeze(2) for array in heads)
        return q, k


class _FusedHeads:
    """Mixed into an attention module's class, so that the parameter tree stays as it is."""

    _fused: Fused

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        module: Any = self
        if not (isinstance(mask, PagedMask) and isinstance(cache, LayerCache)):
            original: Any = super()
            out: mx.array = original.__call__(x, mask, cache)
            return out
        form = self._fused.form
        num_heads, num_kv_heads = (getattr(module, name) for name in form.heads)
        q, k, v = (module[name](x) for name in PROJECTIONS)
        tokens = x.shape[0]
        q, k = self._fused.rotated(
            module,
            q.reshape(tokens, num_heads, -1),
            k.reshape(tokens, num_kv_heads, -1),
            cache.offset,
        )
        keys, values = cache.update_and_fetch(k[:, :, None], v.reshape(tokens, num_kv_heads, 1, -1))
        options = AttentionOptions(module.scale, mask.window, chunk=mask.chunk)
        layer = mask.attending.layer_of(keys, values, cache)
        out = mask.attending.attend(layer, q[:, :, None], keys, values, options)
        projected: mx.array = module[form.output](out.reshape(tokens, 1, -1))
        return projected


def fuse_heads(model: nn.Module, rotate: RotateHeads) -> None:
    """Have the heads of each attention module of ``model`` that is of a known form go through
    ``rotate``. Idempotent."""
    for part in model.modules():
        if isinstance(part, _FusedHeads):
            continue
        fused = _fused(part, rotate)
        if fused is not None:
            part.__class__ = _fused_class(type(part))  # type: ignore[arg-type]
            part._fused = fused


def separate_heads(model: nn.Module) -> None:
    """Have all modules be as they were."""
    for part, _ in fused_modules(model):
        part.__class__ = type(part).__bases__[1]
        del part._fused


def fused_modules(model: nn.Module) -> Iterator[tuple[Any, Fused]]:
    for part in model.modules():
        if isinstance(part, _FusedHeads):
            yield part, part._fused


def _fused(part: Any, rotate: RotateHeads) -> Fused | None:
    form = _form_of(type(part))
    if form is None or not all(isinstance(part.get(name), LINEAR) for name in PROJECTIONS):
        return None
    norms = [part[name] for name in form.norms or ()]
    if any(type(norm) not in NORMS for norm in norms) or len({norm.eps for norm in norms}) > 1:
        return None
    rotary = rotary_of(part.rope)
    head_dims = {
        part[name].weight.shape[0] // getattr(part, heads)
        for name, heads in zip(PROJECTIONS[:2], form.heads, strict=True)
    }
    (head_dim, *others) = head_dims
    if rotary is None or others or not rotary.fits(head_dim):
        return None
    return Fused(form, rotary, rotate, head_dim)


def _form_of(cls: type) -> Form | None:
    own = _code(cls)
    return next((form for form in FORMS if own is not None and own == _code(form.like)), None)


def _code(cls: type) -> tuple[object, ...] | None:
    """Equal for classes that do the same when they are called, wherever that was written."""
    calls = (vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base))
    code = getattr(next(calls, None), "__code__", None)
    parts = ("co_code", "co_names", "co_varnames", "co_consts", "co_freevars")
    return None if code is None else tuple(getattr(code, part) for part in parts)


@cached
def _fused_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_FusedHeads, cls), {})
