"""What the public operators refuse, and that they count and dispatch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.attention import operators as attention
from backend_metal.device import PATHS, Device
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.packed_step import relative_rms


def arguments() -> dict[str, Any]:
    """Valid ones: 7 tokens of 2 sequences, 4 heads over 2, blocks of 8."""
    case = oracle.make_case(0, mx.float32, spans=[(1, 12), (6, 3)])
    return case.mlx() | case.mlx_options()


def floats(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.zeros(shape, dtype)


def ints(*shape: int) -> mx.array:
    return mx.zeros(shape, mx.int32)


BAD = [
    ("q", floats(7, 4), "q must be [num_tokens, num_q_heads, head_dim], not of shape (7, 4)"),
    ("q", floats(7, 4, 80), "q must have k_cache's head dim 64, not 80"),
    ("q", floats(7, 3, 64), "q must have a multiple of k_cache's 2 heads, not 3"),
    ("q", floats(7, 0, 64), "q must have a multiple of k_cache's 2 heads, not 0"),
    ("q", floats(7, 4, 64, dtype=mx.float16), "q must have k_cache's dtype"),
    ("k", floats(7, 2), "k must be [num_tokens, num_kv_heads, head_dim], not of shape (7, 2)"),
    ("k", floats(7, 4, 64), "k must have k_cache's heads and head dim (2, 64), not (4, 64)"),
    ("k", floats(7, 2, 64, dtype=mx.bfloat16), "k must have k_cache's dtype"),
    ("v", floats(7, 2, 80), "v must have v_cache's heads and head dim (2, 64), not (2, 80)"),
    ("v", floats(6, 2, 64), "v must have k's 7 tokens, not 6"),
    ("k_cache", floats(6, 8, 128), "k_cache must be [num_blocks, block_size,"),
    ("k_cache", floats(6, 12, 2, 64), "k_cache must have a block size in (8, 16, 32), not 12"),
    ("k_cache", floats(0, 8, 2, 64), "k_cache must have blocks, heads and dims, not shape (0, 8,"),
    ("k_cache", floats(6, 8, 2, 0), "k_cache must have blocks, heads and dims, not shape (6, 8,"),
    ("k_cache", floats(6, 8, 2, 64, dtype=mx.int32), "k_cache must be float16, bfloat16 or"),
    ("v_cache", floats(5, 8, 2, 64), "v_cache must have k_cache's blocks, block size and heads"),
    ("v_cache", floats(6, 8, 2, 64, dtype=mx.float16), "v_cache must have k_cache's dtype"),
    ("slot_mapping", ints(6), "slot_mapping must have shape (7,), not (6,)"),
    ("slot_mapping", ints(7).astype(mx.int64), "slot_mapping must be int32"),
    ("block_tables", ints(4), "block_tables must be [num_seqs, max_blocks_per_seq]"),
    ("block_tables", ints(2, 2).astype(mx.uint32), "block_tables must be int32"),
    ("seq_lens", ints(3), "seq_lens must have shape (2,), not (3,)"),
    ("seq_lens", floats(2), "seq_lens must be int32"),
    ("cu_seqlens_q", ints(2), "cu_seqlens_q must have shape (3,), not (2,)"),
    ("cu_seqlens_q", ints(3).astype(mx.int8), "cu_seqlens_q must be int32"),
    ("scale", float("nan"), "scale must be finite, not nan"),
    ("window", 0, "window must be at least 1, not 0"),
    ("softcap", 0.0, "softcap must be finite and more than 0, not 0.0"),
    ("softcap", float("inf"), "softcap must be finite and more than 0, not inf"),
    ("sinks", floats(2), "sinks must have shape (4,), not (2,)"),
    ("sinks", floats(4, dtype=mx.float16), "sinks must be float32"),
    ("path", "magic", f"path must be one of {sorted(PATHS)}, not 'magic'"),
]
SCATTER_ONLY = ("k", "v", "slot_mapping")
ATTENTION_ONLY = ("q", "block_tables", "seq_lens", "cu_seqlens_q", "scale", "window", "softcap")


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_every_operator_names_the_bad_argument(name: str, value: Any, message: str) -> None:
    bad = arguments() | {name: value}
    launches = attention.attention_launches()
    operators = [attention.scatter_paged_attention]
    if name not in SCATTER_ONLY:
        operators.append(attention.paged_attention)
    if name not in (*ATTENTION_ONLY, "sinks"):
        operators.append(attention.reshape_and_cache)
    for operator in operators:
        with pytest.raises(ValueError, match="must") as caught:
            operator(**for_operator(operator.__name__, bad))
        assert message in str(caught.value)
    assert attention.attention_launches() == launches


def for_operator(name: str, values: dict[str, Any]) -> dict[str, Any]:
    if name == "paged_attention":
        return {key: value for key, value in values.items() if key not in SCATTER_ONLY}
    if name == "reshape_and_cache":
        unused = (*ATTENTION_ONLY, "sinks")
        return {key: value for key, value in values.items() if key not in unused}
    return values


def test_more_keys_than_queries_are_refused() -> None:
    bad = arguments() | {"q": floats(6, 4, 64)}
    with pytest.raises(ValueError, match="k must have q's 6 tokens, not 7"):
        attention.scatter_paged_attention(**bad)


KERNEL_HEAD_DIMS = [(d, d) for d in (64, 80, 96, 112, 128, 192, 256, 512)] + [(576, 512)]
OTHER_HEAD_DIMS = [(1, 1), (16, 16), (32, 32), (48, 48), (100, 64), (512, 64), (513, 512)]


@pytest.mark.parametrize("head_dims", KERNEL_HEAD_DIMS + OTHER_HEAD_DIMS)
def test_any_head_dim(head_dims: tuple[int, int]) -> None:
    case = oracle.make_case(6, mx.float32, spans=[(1, 9), (3, 4)], head_dims=head_dims)
    path = attention.default_path() if head_dims in KERNEL_HEAD_DIMS else "reference"
    before = attention.attention_launches()
    out, *_ = attention.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    assert attention.attention_launches() == before | {path: before[path] + 1}
    expected = oracle.attention(case, *oracle.scatter(case))
    assert relative_rms(np.array(out), expected) <= oracle.TOLERANCES[mx.float32]


@pytest.mark.parametrize(
    ("head_dims", "lacking"), [((48, 48), "head dim 48"), ((512, 64), "head dims 512/64")]
)
def test_kernels_that_are_asked_for_refuse_other_head_dims(
    head_dims: tuple[int, int], lacking: str
) -> None:
    case = oracle.make_case(6, mx.float32, spans=[(1, 9)], head_dims=head_dims)
    valid = case.mlx() | case.mlx_options()
    for operator in (
        attention.scatter_paged_attention,
        attention.paged_attention,
        attention.reshape_and_cache,
    ):
        with pytest.raises(ValueError, match=f"cpu path has no kernels for {lacking}: there are"):
            operator(**for_operator(operator.__name__, valid), path="cpu")


@pytest.mark.parametrize("path", ["cpu", "reference"])
def test_each_operator_call_is_one_launch(path: Device) -> None:
    before = attention.attention_launches()
    assert before.keys() >= {"cpu", "reference"}
    valid = arguments() | {"path": path}
    for operator in (
        attention.scatter_paged_attention,
        attention.paged_attention,
        attention.reshape_and_cache,
    ):
        operator(**for_operator(operator.__name__, valid))
    assert attention.attention_launches() == before | {path: before[path] + 3}


def test_the_default_path_is_the_devices_own() -> None:
    with mx.stream(mx.cpu):
        assert attention.default_path() == "cpu"
    before = attention.attention_launches()
    attention.reshape_and_cache(**for_operator("reshape_and_cache", arguments()))
    path = attention.default_path()
    assert attention.attention_launches() == before | {path: before[path] + 1}
