"""Ways to break the shipped kernels that still compile, as edits of their text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import backend_metal
from tests.metal_on_cpu import host

SHADERS = Path(backend_metal.__file__).parent / "shaders"


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    """Occurs once in the file."""
    new: str

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {text.count(self.old)} in {self.file}"
        path.write_text(text.replace(self.old, self.new))


@contextmanager
def broken_shaders(fault: Fault, folder: Path) -> Iterator[None]:
    """Within it kernels are compiled from a copy of the shaders, in ``folder``, with the fault."""
    copied = folder / "shaders"
    shutil.copytree(SHADERS, copied)
    fault.apply(copied)
    with host.shaders(copied):
        yield


FAULTS = (
    Fault("window of a key more", "paging.h", "first_query - (window - 1)", "first_query - window"),
    Fault("window of a key less", "paging.h", "- (window - 1)", "- (window - 2)"),
    Fault("own key left out", "paging.h", "seq_len - q_len + last_query + 1,", "last_query,"),
    Fault(
        "next block",
        "paging.h",
        "block_table[position / block_size * p.block_table_entry]",
        "block_table[(position / block_size + 1) * p.block_table_entry]",
    ),
    Fault(
        "own tokens from the cache",
        "paging.h",
        "return slot_mapping[seq.token_at(position) * p.slot_mapping_stride] >= 0;",
        "return false;",
    ),
    Fault(
        "values of the next token",
        "paging.h",
        "return values + seq.token_at(position) * p.v.token;",
        "return values + metal::max(seq.token_at(position) - 1, 0) * p.v.token;",
    ),
    Fault(
        "score not scaled", "softmax.h", "float scaled = score * scale;", "float scaled = score;"
    ),
    Fault("softcap left out", "softmax.h", "return has_softcap ?", "return false ?"),
    Fault(
        "softcap without its factor",
        "softmax.h",
        "softcap * metal::precise::tanh",
        "metal::precise::tanh",
    ),
    Fault(
        "sink left out", "softmax.h", "sum * scale + metal::fast::exp(sink - base)", "sum * scale"
    ),
    Fault(
        "exponents without a base",
        "softmax.h",
        "return largest == -INFINITY ? 0.0f : largest;",
        "return largest;",
    ),
    Fault(
        "last split left out",
        "splits.h",
        "int count = (last_key - 1) / length - first_key / length + 1;",
        "int count = metal::max((last_key - 1) / length - first_key / length, 1);",
    ),
    Fault(
        "decode: splits overlap",
        "decode.metal",
        "int end = metal::min(splits.last_key, split_start + splits.length);",
        "int end = splits.last_key;",
    ),
    Fault(
        "decode: repeated keys count",
        "decode.metal",
        "scaled = key >= begin && key < end ? scaled : -INFINITY;",
        "",
    ),
    Fault(
        "decode: sums of key parts not rescaled",
        "decode.metal",
        "+ lane] * factor;\n#pragma",
        "+ lane];\n#pragma",
    ),
    Fault(
        "decode: another head's query",
        "decode.metal",
        "+ (kv_head * p.group + first_head) * p.q.head,",
        "+ (kv_head + first_head) * p.q.head,",
    ),
    Fault(
        "decode: another head's sink",
        "decode.metal",
        "sink = sinks[head * p.sinks_stride];",
        "sink = sinks[kv_head * p.sinks_stride];",
    ),
    Fault(
        "decode: heads that the group does not have",
        "decode.metal",
        "if (key_part != 0 || row >= num_heads) {",
        "if (key_part != 0) {",
    ),
    Fault(
        "decode: all splits in one place",
        "decode.metal",
        "* p.num_splits + split) * partial_floats(DV);",
        "* p.num_splits) * partial_floats(DV);",
    ),
    Fault(
        "reduce: one split too few",
        "reduce.metal",
        "reduce_row<T, DV>(row, states, splits.count,",
        "reduce_row<T, DV>(row, states, splits.count - 1,",
    ),
    Fault(
        "prefill: keys of the future",
        "prefill.metal",
        "(key < seen.first || key >= seen.last)",
        "(key < seen.first)",
    ),
    Fault(
        "prefill: keys before the window",
        "prefill.metal",
        "(key < seen.first || key >= seen.last)",
        "(key >= seen.last)",
    ),
    Fault(
        "prefill: output not rescaled",
        "prefill.metal",
        "multiply(sums, fold(state, scores));",
        "fold(state, scores);",
    ),
    Fault(
        "prefill: heads interleaved",
        "prefill.metal",
        "int head = kv_head * p.group + row % p.group;",
        "int head = row % p.group * p.num_kv_heads + kv_head;",
    ),
    Fault(
        "prefill: rows that the tile does not have",
        "prefill.metal",
        "if (!has_row) {\n    return;\n  }\n",
        "",
    ),
    Fault(
        "prefill: threads without a row leave early",
        "prefill.metal",
        "RowState state{-INFINITY, 0.0f};\n",
        "RowState state{-INFINITY, 0.0f};\n  if (!has_row) {\n    return;\n  }\n",
    ),
    Fault(
        "prefill: reduces one split too few",
        "prefill_reduce.metal",
        "splits.count,\n        sink",
        "splits.count - 1,\n        sink",
    ),
    Fault(
        "scatter: keys as values",
        "scatter.metal",
        "v + token * p.v.token,",
        "k + token * p.k.token,",
    ),
    Fault(
        "scatter: next slot",
        "scatter.metal",
        "int slot = slot_mapping[token * p.slot_mapping_stride];",
        "int slot = slot_mapping[token * p.slot_mapping_stride] ^ 1;",
    ),
    Fault("scatter: nothing", "scatter.metal", "if (slot < 0) {", "if (slot >= 0) {"),
    Fault(
        "block copy: another block",
        "scatter.metal",
        "p.head_dim,\n      cache + block * p.cache.block",
        "p.head_dim,\n      cache + (block ^ 1) * p.cache.block",
    ),
)
