"""Who runs the attention operators: each path's kernels, and how it makes caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx

from backend_metal import native
from backend_metal.attention import reference
from backend_metal.attention.head_dims import have_kernels, missing_kernels
from backend_metal.attention.pending_tokens import FillIn, fill_in_tokens
from backend_metal.attention.products import FewRowsProduct, QuantizedProduct
from backend_metal.attention.recording import CudaRecording, Recorder
from backend_metal.attention.rotate_heads import RotateHeads
from backend_metal.attention.row_operators import RowOperators
from backend_metal.native import MakeArray as MakeArray


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
    joins_nodes: bool = False
    """Whether such a graph may be one node for MLX: kernels hand their tasks over together then."""
    rotate_heads: RotateHeads | None = None
    """What comes before attention, where the device has a kernel for it."""
    rows: RowOperators | None = None
    """What else of a layer the device has kernels for."""
    few_rows_product: FewRowsProduct | None = None
    quantized_product: QuantizedProduct | None = None
    """For few rows, where the device has kernels that are better than MLX's."""
    any_rows_product: FewRowsProduct | None = None
    """For any number of rows, each of which gets the bits that it gets alone; None where MLX's are
    so, or nobody asks for it."""
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
        if self.writes_in_place:
            out, k_cache, _ = self.scatter_paged_attention(
                k=k,
                v=k[..., :head_dim_v],
                k_cache=k_cache,
                v_cache=k_cache[..., :head_dim_v],
                slot_mapping=slot_mapping,
                **arguments,
            )
            return out, k_cache
        # Written through two views, the cache would become two.
        k_cache = reference.write_rows(k_cache, k, slot_mapping)
        values = k_cache[..., :head_dim_v]
        return self.paged_attention(k_cache=k_cache, v_cache=values, **arguments), k_cache

    def write_latents(self, rows: mx.array, k_cache: mx.array, slot_mapping: mx.array) -> mx.array:
        """Write what is kept in one array alone: ``k_cache``."""
        if not self.writes_in_place:
            return reference.write_rows(k_cache, rows, slot_mapping)
        k_cache, _ = self.reshape_and_cache(rows, rows, k_cache, k_cache, slot_mapping)
        return k_cache

    def missing(self, head_dims: Iterable[tuple[int, int]]) -> str | None:
        """Why it can't attend over caches of these head dims, of keys and values; None: it can."""
        lacking = [pair for pair in head_dims if not (self.any_head_dim or have_kernels(pair))]
        return f"the {self.name} path has {missing_kernels(lacking[0])}" if lacking else None


CPU = AttentionPath(
    "cpu",
    native.scatter_paged_attention,
    native.paged_attention,
    native.reshape_and_cache,
    native.zeros,
    repeats_graphs=True,
    joins_nodes=True,
    rotate_heads=native.rotate_heads,
    rows=RowOperators(native.rms_norm_of_sum),
    deterministic=AttentionPath(
        "cpu",
        partial(native.scatter_paged_attention, one_kernel=True),
        partial(native.paged_attention, one_kernel=True),
        native.reshape_and_cache,
        native.zeros,
        repeats_graphs=True,
        joins_nodes=True,
        rotate_heads=native.rotate_heads,
        # Where keys are cut shows in the last bits, and is counted from where a table begins.
        origin_multiple=native.KEYS_PER_SPLIT,
        one_way=True,
    ),
)
"""The kernels of ``csrc/cpu``."""

REFERENCE = AttentionPath(
    "reference",
    reference.scatter_paged_attention,
    reference.paged_attention,
    reference.reshape_and_cache,
    mx.zeros,
    any_head_dim=True,
    writes_in_place=False,
)
"""Plain MLX, on any device."""

METAL = (
    AttentionPath(
        "metal",
        native.metal.scatter_paged_attention,
        native.metal.paged_attention,
        native.metal.reshape_and_cache,
        mx.zeros,
        decode_options={"decodes": True},
        prefill_options={"prefills": True},
        repeats_graphs=True,
        rotate_heads=native.metal.rotate_heads,
    )
    if native.metal is not None
    else None
)
"""The kernels of ``shaders``, in builds for macOS."""

CUDA = (
    AttentionPath(
        "cuda",
        native.cuda.scatter_paged_attention,
        native.cuda.paged_attention,
        native.cuda.reshape_and_cache,
        mx.zeros,
        decode_options={"decodes": True},
        prefill_options={"prefills": True},
        recorder=CudaRecording,
        make_array=native.cuda.upload,
        fill_in=native.cuda.fill_in_tokens,
        rotate_heads=native.cuda.rotate_heads,
        few_rows_product=native.cuda.few_rows_product,
        quantized_product=native.cuda.quantized_product,
        limit_memory=native.cuda.limit_memory,
        rows=RowOperators(native.cuda.rms_norm_of_sum, native.cuda.silu_product),
        deterministic=AttentionPath(
            "cuda",
            partial(native.cuda.scatter_paged_attention, one_kernel=True),
            partial(native.cuda.paged_attention, one_kernel=True),
            native.cuda.reshape_and_cache,
            mx.zeros,
            recorder=CudaRecording,
            make_array=native.cuda.upload,
            fill_in=native.cuda.fill_in_tokens,
            rotate_heads=native.cuda.rotate_heads,
            any_rows_product=partial(native.cuda.few_rows_product, any_rows=True),
            limit_memory=native.cuda.limit_memory,
            rows=RowOperators(native.cuda.rms_norm_of_sum, native.cuda.silu_product),
            # Keys of a tile, at most, which are counted from where a table begins.
            origin_multiple=64,
        ),
    )
    if native.cuda is not None
    else None
)
"""The kernels of ``shaders/cuda``, where MLX is built for CUDA."""

PATHS = {path.name: path for path in (METAL, CUDA, CPU, REFERENCE) if path is not None}
"""Those that this build has, best first."""


def path_on(device: mx.Device) -> AttentionPath:
    """The kernels written for ``device``, or the reference where there are none."""
    if device.type == mx.cpu:
        return CPU
    if METAL is not None and mx.metal.is_available():
        return METAL
    return CUDA if CUDA is not None else REFERENCE


def resolve_path(
    path: AttentionPath | str | None, head_dims: Iterable[tuple[int, int]]
) -> AttentionPath:
    """A path from itself or its name, for caches of these head dims, of keys and values.

    None: that of MLX's default device, or the reference where it lacks kernels for them. Raises
    ``ValueError`` when the path that is asked for does.
    """
    if path is None:
        own = path_on(mx.default_device())
        return REFERENCE if own.missing(head_dims) else own
    if isinstance(path, str):
        if path not in PATHS:
            raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
        path = PATHS[path]
    if missing := path.missing(head_dims):
        raise ValueError(f"path must have kernels for k_cache and v_cache: {missing}")
    return path
