"""The attention path of a device: its kernels, and what else it does in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.pending_tokens import FillIn, fill_in_tokens
from backend_metal.devices.recording import Recorder
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.devices.row_operators import RowOperators
from backend_metal.native import MakeArray as MakeArray


class MultiplyAlike(Protocol):
    def __call__(
        self, layers: Sequence[nn.Module], trace: Callable[[], Sequence[mx.array]]
    ) -> None:
        """Change the ``layers`` of a model. ``trace``: results of a step of that model, not
        computed. Raises ``ValueError`` telling what of it may still give a token other bits with
        other tokens beside it."""
        ...


@dataclass(frozen=True)
class AttentionPath:
    """One implementation of ``backend_metal.attention``; all of them take the same arguments."""

    name: str
    """What the metrics call it."""
    scatter_paged_attention: Callable[..., tuple[mx.array, mx.array, mx.array]]
    paged_attention: Callable[..., mx.array]
    reshape_and_cache: Callable[..., tuple[mx.array, mx.array]]
    zeros: Callable[[tuple[int, ...], mx.Dtype], mx.array]
    """A cache in the memory that suits the path."""
    any_head_dim: bool = False
    writes_in_place: bool = True
    """Whether it writes caches where they are even if a step that was submitted before has not
    ended; where it doesn't, MLX would copy them."""
    decode_options: Mapping[str, Any] = field(default_factory=dict)
    """What its operators are told of steps in which each sequence has one token."""
    prefill_options: Mapping[str, Any] = field(default_factory=dict)
    """And of those in which each has several."""
    recorder: Recorder | None = None
    """Records whole steps, where the device can launch them so."""
    make_array: MakeArray = mx.array
    """Of what the host tells the device of a step, in memory that the device reads at its speed."""
    fill_in: FillIn = fill_in_tokens
    """Puts tokens that a step has drawn into the next one."""
    repeats_graphs: bool = False
    """Whether a decode step's graph may serve for shorter sequences, too: kernels read of a block
    table no more than there is of a sequence, so that a wider one costs nothing."""
    rotate_heads: RotateHeads | None = None
    """What comes before attention, where the device has a kernel for it."""
    rows: RowOperators | None = None
    """What else of a layer the device has kernels for."""
    adapt_layers: Callable[[Sequence[nn.Module]], None] | None = None
    """Has the layers of a model compute products by kernels of the device, where it has some that
    are better than MLX's."""
    multiply_alike: MultiplyAlike | None = None
    """Has each row of a product get the bits that it gets alone; None where MLX's products are so,
    or nobody asks for it."""
    limit_memory: Callable[[int], None] | None = None
    """Bounds, in bytes from now on, the memory of what its kernels compute, where MLX does not
    count it."""
    origin_multiple: int = 1
    """Tokens to a multiple of which the block tables of layers with windows are to begin."""
    one_way: bool = False
    """Whether latents are never decompressed for many tokens: these get other bits then than one
    alone."""
    deterministic: AttentionPath | None = None
    """The same kernels, so used that what a token gets depends on its sequence alone: neither on
    the tokens that a step computes with it, nor on others' sequences."""
