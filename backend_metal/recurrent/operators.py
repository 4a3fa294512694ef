"""The operators of recurrent layers: validate, and hand over to the kernels of a path.

==================== ===========================================================================
``x``                ``[num_tokens, channels]``, sequences one after another
``weight``, ``bias`` float32 ``[kernel, channels]`` and ``[channels]`` or None
``q``, ``k``         ``[num_tokens, num_k_heads, head_dim]``
``v``                ``[num_tokens, num_v_heads, head_dim_v]``; a multiple of ``num_k_heads``
``gates``            float32 ``[num_tokens, num_v_heads]``, or ``[.., head_dim]``; with
                     ``gates_are_rates`` ``[num_v_heads, head_dim]``
``betas``            float32 ``[num_tokens, num_v_heads]``
``states``           contiguous ``[num_slots, kernel - 1, channels]`` of ``x``'s dtype;
                     float32 ``[num_slots, num_v_heads, head_dim_v, head_dim]``
==================== ===========================================================================

``causal_conv`` convolves every channel with its own weights, over the tokens of a sequence and
those before them, which are its state. ``linear_attention`` updates a state ``S`` with each token,
in float32 whatever the inputs are: ``S <- S diag(gate) + w k^T``, ``out = S q``. ``w`` is
``beta v``, as in Mamba 2 (Dao and Gu, arXiv:2405.21060), or with ``delta_rule``
``beta (v - S diag(gate) k)``, as in Gated DeltaNet (Yang et al., arXiv:2412.06464). Where
``gates_are_rates``, a token's gates are ``exp(beta rate)``, as in Mamba 1 (Gu and Dao,
arXiv:2312.00752), and are never in memory.

Both read each sequence's state from its read slot and write its write slot, in place
(``metadata.py``); the states that are returned replace those passed in, which the caller gives up.
What the int32 arrays hold is checked at evaluation on the CPU, and nowhere on a GPU. Anything else
raises ``ValueError`` naming the argument, before any work.
"""

from __future__ import annotations

import mlx.core as mx

from backend_metal.devices.base import RecurrentKernels
from backend_metal.recurrent.metadata import StateMetadata

DTYPES = (mx.float16, mx.bfloat16, mx.float32)
MAX_CONV_KERNEL = 8


def causal_conv(
    kernels: RecurrentKernels,
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    states: mx.array,
    metadata: StateMetadata,
) -> tuple[mx.array, mx.array]:
    """``(out, states)``; ``out`` is of ``x``'s shape and dtype."""
    _check_rank("x", x, "[num_tokens, channels]", 2)
    _check_dtype("x", x, *DTYPES)
    channels = x.shape[1]
    _check_rank("weight", weight, "[kernel, channels]", 2)
    kernel = weight.shape[0]
    if not 2 <= kernel <= MAX_CONV_KERNEL:
        raise ValueError(f"weight must have a kernel of 2 to {MAX_CONV_KERNEL}, not {kernel}")
    _check("weight", weight, (kernel, channels), mx.float32)
    if bias is not None:
        _check("bias", bias, (channels,), mx.float32)
    _check("states", states, (states.shape[0], kernel - 1, channels), x.dtype)
    return kernels.causal_conv(x, weight, bias, states, *_checked(metadata))


def linear_attention(
    kernels: RecurrentKernels,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    gates: mx.array,
    betas: mx.array,
    states: mx.array,
    metadata: StateMetadata,
    *,
    delta_rule: bool,
    gates_are_rates: bool = False,
) -> tuple[mx.array, mx.array]:
    """``(out, states)``; ``out`` is of ``v``'s shape and dtype."""
    _check_rank("k", k, "[num_tokens, num_k_heads, head_dim]", 3)
    _check_rank("v", v, "[num_tokens, num_v_heads, head_dim_v]", 3)
    _check_dtype("v", v, *DTYPES)
    (tokens, k_heads, dim), (_, v_heads, dim_v) = k.shape, v.shape
    if k_heads == 0 or v_heads % k_heads:
        raise ValueError(f"v must have a multiple of k's {k_heads} heads, not {v_heads}")
    _check("q", q, k.shape, v.dtype)
    _check("k", k, k.shape, v.dtype)
    _check("v", v, (tokens, v_heads, dim_v), v.dtype)
    of_channels = (v_heads, dim) if gates_are_rates else (tokens, v_heads, dim)
    of_heads = gates.ndim == 2 and not gates_are_rates
    _check("gates", gates, (tokens, v_heads) if of_heads else of_channels, mx.float32)
    _check("betas", betas, (tokens, v_heads), mx.float32)
    _check("states", states, (states.shape[0], v_heads, dim_v, dim), mx.float32)
    return kernels.linear_attention(
        q,
        k,
        v,
        gates,
        betas,
        states,
        *_checked(metadata),
        delta_rule=delta_rule,
        gates_are_rates=gates_are_rates,
    )


def _checked(metadata: StateMetadata) -> tuple[mx.array, mx.array, mx.array]:
    num_seqs = metadata.num_seqs
    _check("read_slots", metadata.read_slots, (num_seqs,), mx.int32)
    _check("write_slots", metadata.write_slots, (num_seqs,), mx.int32)
    _check("cu_seqlens_q", metadata.cu_seqlens_q, (num_seqs + 1,), mx.int32)
    return metadata.read_slots, metadata.write_slots, metadata.cu_seqlens_q


def _check(name: str, array: mx.array, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    _check_dtype(name, array, dtype)


def _check_dtype(name: str, array: mx.array, *dtypes: mx.Dtype) -> None:
    if array.dtype not in dtypes:
        allowed = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name} must be {allowed}, not {array.dtype}")


def _check_rank(name: str, array: mx.array, layout: str, rank: int) -> None:
    if array.ndim != rank:
        raise ValueError(f"{name} must be {layout}, not of shape {array.shape}")
