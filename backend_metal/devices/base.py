"""The interface between the engine and a device."""

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
    """Sample one token a row; ``csrc/operators/draw_tokens.h`` documents the arguments."""

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
        """Make the ``layers`` of a model batch-invariant. ``trace`` returns the lazy results of one
        step of that model. Raises ``ValueError`` that names an operation that is not
        batch-invariant."""
        ...


@dataclass(frozen=True)
class RecurrentKernels:
    """Kernels behind ``recurrent/operators.py``, which checks their arguments."""

    causal_conv: Callable[..., tuple[mx.array, mx.array]]
    linear_attention: Callable[..., tuple[mx.array, mx.array]]
    head_dims: tuple[int, ...] | None = None
    """Head dims that linear attention supports; None: any."""


class Device(ABC):
    """Runs a model's step.

    A device has a name and implements attention. Every other method defaults to MLX's operators; a
    device overrides those for which it has kernels. The engine checks kernels against MLX's
    operators at start.
    """

    name: str
    """The value of ``engine.device`` that selects it."""
    mlx: mx.Device
    """MLX's device for all operators without a kernel of ours."""
    attention: str
    """The name of its attention path in ``engine.attention`` and in metrics."""
    step_tokens: int = 2048
    """The token budget of a step; mlx-lm prefills as many tokens at a time. Each step costs the
    host time and reads the prompt's earlier keys again."""

    any_head_dim: bool = False
    """Whether its attention supports head dims beyond those of ``attention/head_dims.py``."""
    writes_in_place: bool = True
    """Whether it updates a cache in place while an earlier step still runs; MLX's operators copy
    the cache then."""
    origin_multiple: int = 1
    """Block tables of sliding-window layers begin at a multiple of this number of tokens."""
    one_way: bool = False
    """Whether prefill never decompresses latents, so that its bits equal those of decode."""

    repeats_graphs: bool = False
    """Whether a cached decode graph also runs shorter sequences: kernels read only the used part of
    a block table, so padding costs nothing."""
    recorder: Recorder | None = None
    """Captures whole steps and replays them with one launch each."""

    rotate_heads: RotateHeads | None = None
    """QK-norm and RoPE in one kernel."""
    rows: RowOperators | None = None
    """Residual sums, norms and activations in one kernel each."""
    recurrent: RecurrentKernels | None = None
    """Kernels that update recurrent state in place; None: mlx-lm's modules update copies."""
    draw_tokens: DrawTokens | None = None
    """The sampling kernel; None: a graph of MLX's operators samples."""
    draws_any_float: bool = False
    """Whether the sampling kernel takes float16 and bfloat16 logits without a cast."""
    multiply_alike: MultiplyAlike | None = None
    """Makes a model's GEMMs batch-invariant; None: MLX's are, or the device is not
    deterministic."""

    @property
    def memory_bytes(self) -> int:
        """Memory that MLX can use, in bytes."""
        return device_memory_bytes(self.mlx)

    def limit_memory(self, num_bytes: int) -> None:  # noqa: B027
        """Limit the memory of the kernels' own intermediate arrays, which MLX does not count."""

    def zeros(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """Allocate a cache in the memory that suits the device."""
        return mx.zeros(shape, dtype)

    def make_array(self, values: npt.NDArray[Any]) -> mx.array:
        """Copy a step's 32-bit integers from the host to memory that the device reads at full
        speed."""
        return mx.array(values)

    def fill_in(self, token_ids: mx.array, drawn: mx.array) -> mx.array:
        """Substitute sampled tokens for the pending ones of ``token_ids``, int32 ``[tokens]``:
        ``-1 - row`` stands for that row of ``drawn``, int32 ``[rows]``."""
        rows = mx.maximum(-1 - token_ids, 0)
        return mx.where(token_ids < 0, drawn[rows], token_ids)

    def phases(self, *, decodes: bool, prefills: bool) -> Mapping[str, bool]:
        """Options that tell its attention that a step has decodes alone, or prefills alone."""
        return {}

    @abstractmethod
    def scatter_paged_attention(
        self, *arguments: Any, **options: Any
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Write keys and values and attend, as ``attention/operators.py`` documents, which checks
        the arguments. ``options`` include those of ``phases``."""

    @abstractmethod
    def paged_attention(self, *arguments: Any, **options: Any) -> mx.array:
        """Attend over the cached keys and values."""

    @abstractmethod
    def reshape_and_cache(self, *arguments: mx.array) -> tuple[mx.array, mx.array]:
        """Write keys and values to their slots."""

    def scatter_latent_attention(
        self,
        *,
        k: mx.array,
        k_cache: mx.array,
        slot_mapping: mx.array,
        head_dim_v: int,
        **arguments: Any,
    ) -> tuple[mx.array, mx.array]:
        """Write latents and attend; the first ``head_dim_v`` dims of a key are its value. Returns
        ``(out, k_cache)``."""
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
        """Write latents to their slots; returns ``k_cache``."""
        return self.reshape_and_cache(rows, rows, k_cache, k_cache, slot_mapping)[0]

    def adapt_layers(self, layers: Sequence[nn.Module]) -> None:  # noqa: B027
        """Replace GEMMs of a model's layers by the device's own where those are faster."""

    def deterministic(self) -> Device | None:
        """Return a batch-invariant variant of this device, by which a token's bits depend on its
        sequence alone; None: there is none."""
        return None
