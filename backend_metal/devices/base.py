"""The one class that a device implements: all that Pomona knows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy.typing as npt

from backend_metal.devices.memory import device_memory_bytes
from backend_metal.devices.recording import Recorder
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.devices.row_operators import RowOperators


class DrawTokens(Protocol):
    """``csrc/operators/draw_tokens.h`` says what it takes."""

    def __call__(
        self,
        logits: mx.array,
        options: mx.array,
        masks: mx.array,
        counts: mx.array,
        bias_ids: mx.array,
        biases: mx.array,
        *,
        cuts: bool,
    ) -> mx.array: ...


class MultiplyAlike(Protocol):
    def __call__(
        self, layers: Sequence[nn.Module], trace: Callable[[], Sequence[mx.array]]
    ) -> None:
        """Change the ``layers`` of a model. ``trace``: results of a step of that model, not
        computed. Raises ``ValueError`` telling what of it may still give a token other bits with
        other tokens beside it."""
        ...


@dataclass(frozen=True)
class RecurrentKernels:
    """Of ``recurrent/operators.py``, which checks what they are given."""

    causal_conv: Callable[..., tuple[mx.array, mx.array]]
    linear_attention: Callable[..., tuple[mx.array, mx.array]]
    head_dims: tuple[int, ...] | None = None
    """Those that linear attention takes; None: any."""


class Device(ABC):
    """Where a model runs, and how.

    A device says who it is, and attends. All else has a default, MLX's own way, so that a device
    overrides what it does better. Kernels are held to MLX's operators before they serve.
    """

    name: str
    """As in ``engine.device``."""
    mlx: mx.Device
    """Where MLX evaluates what the device has no kernels for."""
    attention: str
    """What ``engine.attention`` and the metrics call its way to attend."""
    step_tokens: int = 2048
    """The token budget of a step. A GPU computes some hundred rows in the time in which it reads a
    model's weights, and each step costs the host and the attention over the prompt so far anew: as
    mlx-lm, which prefills 2,048 tokens at a time."""

    any_head_dim: bool = False
    """Whether it attends over others than those of ``attention/head_dims.py``."""
    writes_in_place: bool = True
    """Whether it writes caches where they are even if a step that was submitted before has not
    ended; where it doesn't, MLX would copy them."""
    origin_multiple: int = 1
    """Tokens to a multiple of which the block tables of layers with windows are to begin."""
    one_way: bool = False
    """Whether latents are never decompressed for many tokens: these get other bits then than one
    alone."""

    repeats_graphs: bool = False
    """Whether a decode step's graph may serve for shorter sequences, too: kernels read of a block
    table no more than there is of a sequence, so that a wider one costs nothing."""
    recorder: Recorder | None = None
    """Captures whole steps and replays them, where the device can launch them so."""

    rotate_heads: RotateHeads | None = None
    """What comes before attention, where there is a kernel for it."""
    rows: RowOperators | None = None
    """What else of a layer there are kernels for."""
    recurrent: RecurrentKernels | None = None
    """What updates recurrent state in place; None: mlx-lm's modules do, on copies."""
    draw_tokens: DrawTokens | None = None
    """Samples a step's tokens; None: a graph of MLX's operators does."""
    draws_any_float: bool = False
    """Whether that takes logits of 2 bytes as they are."""
    multiply_alike: MultiplyAlike | None = None
    """Has each row of a product get the bits that it gets alone; None where MLX's products are so,
    or nobody asks for it."""

    @property
    def memory_bytes(self) -> int:
        """That MLX can use."""
        return device_memory_bytes(self.mlx)

    def limit_memory(self, num_bytes: int) -> None:  # noqa: B027
        """Bound, from now on, the memory of what its kernels compute, where MLX does not count
        it."""

    def zeros(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """A cache, in the memory that suits the device."""
        return mx.zeros(shape, dtype)

    def make_array(self, values: npt.NDArray[Any]) -> mx.array:
        """Of integers of 32 bits that the host tells of a step, in memory that the device reads at
        its speed."""
        return mx.array(values)

    def fill_in(self, token_ids: mx.array, drawn: mx.array) -> mx.array:
        """``token_ids``, int32 ``[tokens]``, with the drawn ones in place of those that are
        pending: ``-1 - row`` stands for that row of ``drawn``, int32 ``[rows]``."""
        rows = mx.maximum(-1 - token_ids, 0)
        return mx.where(token_ids < 0, drawn[rows], token_ids)

    def phases(self, *, decodes: bool, prefills: bool) -> Mapping[str, bool]:
        """What its attention is told, as options, of a step in which every sequence has one token,
        or every one has several."""
        return {}

    @abstractmethod
    def scatter_paged_attention(
        self, *arguments: Any, **options: Any
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Prepare and attend: as in ``attention/operators.py``, which checks the arguments, and
        with ``phases``."""

    @abstractmethod
    def paged_attention(self, *arguments: Any, **options: Any) -> mx.array:
        """Attend over what the caches hold, as there."""

    @abstractmethod
    def reshape_and_cache(self, *arguments: mx.array) -> tuple[mx.array, mx.array]:
        """Write keys and values to their slots, as there."""

    def scatter_latent_attention(
        self,
        *,
        k: mx.array,
        k_cache: mx.array,
        slot_mapping: mx.array,
        head_dim_v: int,
        **arguments: Any,
    ) -> tuple[mx.array, mx.array]:
        """As ``scatter_paged_attention`` where the values are the first ``head_dim_v`` dims of the
        keys, which alone are kept: ``(out, k_cache)``."""
        out, k_cache, _ = self.scatter_paged_attention(
            k=k,
            v=k[..., :head_dim_v],
            k_cache=k_cache,
            v_cache=k_cache[..., :head_dim_v],
            slot_mapping=slot_mapping,
            **arguments,
        )
        return out, k_cache

    def write_latents(self, rows: mx.array, k_cache: mx.array, slot_mapping: mx.array) -> mx.array:
        """Write what is kept in one array alone: ``k_cache``."""
        return self.reshape_and_cache(rows, rows, k_cache, k_cache, slot_mapping)[0]

    def adapt_layers(self, layers: Sequence[nn.Module]) -> None:  # noqa: B027
        """Have the layers of a model compute products by kernels of the device, where it has some
        that are better than MLX's."""

    def deterministic(self) -> Device | None:
        """The same kernels, so used that what a token gets depends on its sequence alone: neither
        on the tokens that a step computes with it, nor on others' sequences. None where products of
        matrices, or attention, have other bits with another number of rows."""
        return None
