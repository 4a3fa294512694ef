"""The supported models in ``backend_metal/README.md``: their types, and what fits on a Mac.

``python -m ops.model_reference`` prints it; with ``--write`` it replaces what stands between the
markers there.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from backend_metal.attention.kv_cache import LayerCacheSpec
from backend_metal.attention.kv_groups import group_layers
from backend_metal.engine.schedule.block_group import most_blocks_held
from backend_metal.models.families.table import ALIASES, FAMILIES
from deployments.backend import EngineConfig
from ops.published_models import MODELS, PublishedModel

DOCUMENT = Path(__file__).resolve().parent.parent / "backend_metal" / "README.md"
BEGIN = "<!-- models: begin -->"
END = "<!-- models: end -->"

GIB = 2**30
MEMORIES = (16, 32, 64, 128, 512)
"""GiB of Macs."""
BITS_PER_WEIGHT = 4.5
"""Of 4-bit weights in groups of 64, each with a scale and a bias."""
BATCHED_TOKENS = 8192
LEAST_CONTEXT = 1024
"""Less is as good as none."""
BLOCK_SIZE = 16
BYTES_PER_ELEMENT = 2
FRACTION: float = EngineConfig.model_fields["memory_fraction"].default


def reference() -> str:
    return f"{_types()}\n\n{_table()}\n"


def embed(document: str) -> str:
    """``document`` with the current reference between its markers. Raises ``ValueError``."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document needs these two lines:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def bytes_per_token(model: PublishedModel) -> int:
    """In 16 bits, of the layers that keep every token."""
    return (
        sum(
            _block_bytes([model.layers[number].cache for number in group.layers])
            for group in group_layers(model.layers)
            if group.window is None
        )
        // BLOCK_SIZE
    )


def bytes_per_sequence(model: PublishedModel) -> float:
    """However long it is: windows, and the states of recurrent layers."""
    return model.state_bytes + sum(
        most_blocks_held(group.window, BLOCK_SIZE)
        * _block_bytes([model.layers[number].cache for number in group.layers])
        for group in group_layers(model.layers)
        if group.window is not None
    )


def cache_bytes(model: PublishedModel, memory_gib: int) -> float:
    """What a Mac's memory leaves beside 4-bit weights, less than 0 where these don't fit."""
    # What macOS recommends as a GPU's working set.
    working_set = memory_gib * GIB * (2 / 3 if memory_gib <= 36 else 3 / 4)
    weights = model.parameters * BITS_PER_WEIGHT / 8
    return working_set * FRACTION - weights


def largest_context(model: PublishedModel, memory_gib: int) -> int:
    """Tokens of one sequence, by the memory and by the model; 0: it does not fit."""
    left = cache_bytes(model, memory_gib) - bytes_per_sequence(model)
    return max(0, min(model.context, int(left // bytes_per_token(model))))


def largest_batch(model: PublishedModel, memory_gib: int) -> int:
    """Sequences of ``BATCHED_TOKENS`` tokens."""
    each = BATCHED_TOKENS * bytes_per_token(model) + bytes_per_sequence(model)
    return max(0, int(cache_bytes(model, memory_gib) // each))


def _block_bytes(specs: list[LayerCacheSpec]) -> int:
    return sum(spec.num_elements for spec in specs) * BLOCK_SIZE * BYTES_PER_ELEMENT


def _types() -> str:
    names = sorted([*FAMILIES, *ALIASES], key=str.lower)
    listed = ", ".join(f"`{name}`" for name in names) + "."
    return textwrap.fill(listed, 95, break_long_words=False, break_on_hyphens=False)


def _table() -> str:
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    macs = " | ".join(f"{memory} GB" for memory in MEMORIES)
    yield f"| checkpoint | type | bytes a token | MB a sequence | {macs} |"
    yield "| --- " * (4 + len(MEMORIES)) + "|"
    for model in MODELS:
        if model.model_type not in {*FAMILIES, *ALIASES}:
            continue
        cells = [
            model.name,
            f"`{model.model_type}`",
            f"{bytes_per_token(model):,}",
            f"{bytes_per_sequence(model) / 1e6:,.1f}" if bytes_per_sequence(model) else "",
            *(_fit(model, memory) for memory in MEMORIES),
        ]
        yield f"| {' | '.join(cells)} |"


def _fit(model: PublishedModel, memory_gib: int) -> str:
    context = largest_context(model, memory_gib)
    if context < LEAST_CONTEXT:
        return "–"
    return f"{context:,} / {largest_batch(model, memory_gib):,}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(embed(DOCUMENT.read_text()))
    else:
        print(reference(), end="")
