"""Recurrent layers on packed steps: odd chunks, slots that are shared, states that are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.models.families.table import FAMILIES
from backend_metal.models.paged_model import PagedModel
from backend_metal.recurrent import StatePool
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.packed_step import Chunk, forward, lazy_forward, relative_rms
from tests.support.instantiations import marked
from tests.support.tables import TABLE

RECURRENT = sorted(name for name, family in FAMILIES.items() if family.recurrent is not None)
# One of each kind of recurrence: the wrapper's cost is that of mlx-lm's loops over tokens.
KINDS = ("lfm2", "mamba2", "qwen3_5", "recurrent_gemma")
BLOCKS, BLOCK_SIZE, NUM_SLOTS = 16, 8, 6
# Shorter than a convolution's window, a single token, and a decode right after each.
ODD_CHUNKS = [2, 3, 4, 5, 17, 18, 19]


class Served:
    """A model on packed steps, and the same model as mlx-lm runs it."""

    def __init__(self, family: str, path: str | None = None) -> None:
        self.network, config = tiny_models.build(family)
        self.model = PagedModel(self.network, config)
        self.pool = KVCachePool(self.model.layers, BLOCKS, BLOCK_SIZE, self.model.dtype)
        self.states = StatePool(self.model.recurrent, NUM_SLOTS, path=path)

    def dense(self, tokens: np.ndarray, ends: list[int]) -> np.ndarray:
        cache = make_prompt_cache(self.network)
        parts = [
            self.network(mx.array(tokens[None, start:end]), cache=cache)[0]
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        return np.array(mx.concatenate(parts))

    def step(self, *chunks: Chunk) -> list[np.ndarray]:
        return forward(self.model, self.pool, chunks, self.states)


def tokens_of(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, tiny_models.VOCAB_SIZE, length, dtype=np.int32)


def table(first: int) -> np.ndarray:
    return np.arange(first, first + 4, dtype=np.int32)


def spans(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize(
    ("family", "path"),
    marked(
        itertools.product(RECURRENT, ["cpu", "reference"]),
        lambda family, path: path == "cpu" or family in KINDS,
    ),
)
def test_odd_chunks_match_mlx_lm(
    family: str, path: str, record_property: Callable[[str, object], None]
) -> None:
    """The second sequence lags a step behind, so that decodes and prefills share steps."""
    served = Served(family, path)
    sequences = [tokens_of(ODD_CHUNKS[-1], seed) for seed in (1, 2)]
    got: list[list[np.ndarray]] = [[], []]
    cuts = [[None, *spans(ODD_CHUNKS)], [*spans(ODD_CHUNKS), None]]
    for step in zip(*cuts, strict=True):
        seqs = [seq for seq, span in enumerate(step) if span is not None]
        chunks = [
            Chunk(sequences[seq], table(4 * seq), *span, slot=3 - seq)
            for seq, span in enumerate(step)
            if span is not None
        ]
        for seq, rows in zip(seqs, served.step(*chunks), strict=True):
            got[seq].append(rows)
    worst = max(
        relative_rms(np.concatenate(rows), served.dense(tokens, ODD_CHUNKS))
        for rows, tokens in zip(got, sequences, strict=True)
    )
    kernels = path == "cpu" and served.states.writes_in_place
    runs_on = "kernels" if kernels else "mlx-lm's modules"
    record_property(TABLE, ("Recurrent layers, odd chunks", family, runs_on, f"{worst:.1e}"))
    assert worst <= 1e-5


@pytest.mark.parametrize("path", ["cpu", "reference"])
def test_a_single_token_is_not_compiled(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mlx-lm does where there is Metal: what it compiles takes arrays, and no states of ours."""
    served = Served("kimi_k3", path)
    tokens = tokens_of(3, 1)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    got = [served.step(Chunk(tokens, table(0), *span))[0] for span in spans([1, 2, 3])]
    assert relative_rms(np.concatenate(got), served.dense(tokens, [1, 2, 3])) <= 1e-5


def test_which_families_have_kernels() -> None:
    without = set()
    for family in RECURRENT:
        network, config = tiny_models.build(family)
        specs = PagedModel(network, config).recurrent
        if not all(spec.fits_kernels for spec in specs):
            without.add(family)
    # One that forgets by another key than it learns by, and those that keep the latest keys or
    # tokens.
    assert without == {"rwkv7", "baichuan_m1", "longcat_flash_ngram"}


@pytest.mark.parametrize("path", ["cpu", "reference"])
@pytest.mark.parametrize("family", KINDS)
def test_a_snapshot_is_read_by_several_and_stays(family: str, path: str) -> None:
    """A sequence leaves its slot behind at token 16; it and two others go on from there."""
    served = Served(family, path)
    start, ends = tokens_of(16, 1), [16, 20, 21]
    tails = [np.concatenate([start, tokens_of(5, seed)]) for seed in (2, 3, 4)]
    served.step(Chunk(start, table(0), 0, 16, slot=5))
    kept = [np.array(part) for part in served.states.read(0, mx.array([5]))]
    shared = table(0)[:2]
    tables = [np.concatenate([shared, table(4 + 2 * seq)[:2]]) for seq in range(3)]
    first = [
        Chunk(tail, tables[seq], 16, 20, slot=seq, read_slot=5) for seq, tail in enumerate(tails)
    ]
    second = [Chunk(tail, tables[seq], 20, 21, slot=seq) for seq, tail in enumerate(tails)]
    rows = [served.step(*first), served.step(*second)]
    for seq, tail in enumerate(tails):
        got = np.concatenate([step[seq] for step in rows])
        assert relative_rms(got, served.dense(tail, ends)[16:]) <= 1e-5
    for before, after in zip(kept, served.states.read(0, mx.array([5])), strict=True):
        np.testing.assert_array_equal(before, np.array(after))


def rounded_to(dtype: mx.Dtype) -> Callable[[mx.array], mx.array]:
    return lambda state: state.astype(dtype).astype(state.dtype)


FAULTS: dict[str, Callable[[mx.array], mx.array]] = {
    "zeroed": mx.zeros_like,
    "stale": lambda state: mx.roll(state, 1, axis=0),
    "float16": rounded_to(mx.float16),
    "bfloat16": rounded_to(mx.bfloat16),
}


UNSEEN = {
    # Tokens are what they are in half precision.
    ("longcat_flash_ngram", "float16"),
    ("longcat_flash_ngram", "bfloat16"),
    # It keeps one token's key and value, whose last bits are few among those of all keys.
    ("baichuan_m1", "float16"),
}


@pytest.mark.parametrize(
    ("family", "fault"),
    marked(
        (case for case in itertools.product(RECURRENT, FAULTS) if case not in UNSEEN),
        # The smallest of the faults with all of them.
        lambda family, fault: fault == "float16" or family in ("mamba2", "qwen3_5"),
    ),
)
def test_wrong_states_show(
    family: str, fault: str, record_property: Callable[[str, object], None]
) -> None:
    """The parity tests would notice: half precision even once, far from the start of a sequence."""
    served = Served(family)
    sequences = [tokens_of(18, seed) for seed in (1, 2)]
    chunks = [
        Chunk(tokens, table(4 * seq), 0, 17, slot=seq) for seq, tokens in enumerate(sequences)
    ]
    served.step(*chunks)
    served.states.rebind([FAULTS[fault](array) for array in served.states.evaluation_roots()])
    rows = served.step(
        *(Chunk(tokens, table(4 * seq), 17, 18, slot=seq) for seq, tokens in enumerate(sequences))
    )
    error = min(
        relative_rms(row, served.dense(tokens, [17, 18])[17:])
        for row, tokens in zip(rows, sequences, strict=True)
    )
    record_property(TABLE, ("Wrong states", family, fault, f"{error:.1e}"))
    assert error > 1e-5


def test_a_model_with_recurrent_layers_needs_states() -> None:
    served = Served("mamba2")
    with pytest.raises(ValueError, match="states must be given to a model with recurrent layers"):
        forward(served.model, served.pool, [Chunk(tokens_of(3, 0), table(0), 0, 3)])


def test_a_model_without_attention_keeps_nothing_for_tokens() -> None:
    model = Served("mamba2").model
    assert model.layers == ()
    assert model.dtype == mx.float32
    assert len(model.recurrent) == 2


# MLX has experts in float32 alone on a CPU.
@pytest.mark.parametrize(
    "family",
    [
        "falcon_h1",
        "gear",
        "lfm2",
        "mamba2",
        "mamba",
        "olmo_hybrid",
        "plamo2",
        "qwen3_5",
        "recurrent_gemma",
    ],
)
def test_sums_stay_float32_in_a_model_of_half_precision(family: str) -> None:
    """Inputs of convolutions are kept as they are."""
    network, config = tiny_models.build(family)
    network.set_dtype(mx.bfloat16)
    model = PagedModel(network, config)
    for spec in model.recurrent:
        for array in spec.arrays:
            assert array.dtype == (mx.bfloat16 if array.is_inputs else mx.float32)
    # And the operators, which take gates and betas in float32 alone, run on them.
    states = StatePool(model.recurrent, NUM_SLOTS, path="cpu")
    pool = KVCachePool(model.layers, BLOCKS, BLOCK_SIZE, model.dtype)
    chunk = Chunk(tokens_of(9, 1), table(0), 0, 9)
    logits = lazy_forward(model, pool, [chunk], states)
    assert logits.dtype == mx.bfloat16
    assert not mx.isnan(logits).any()
