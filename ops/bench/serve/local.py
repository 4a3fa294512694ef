"""A server of one's own: an engine with random weights and a gateway, for a load to be put on."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from ops.bench.engine import random_model  # isort: skip
from backend_metal.device import available_devices
from deployments.backend import EngineConfig
from ops.bench.engine.shapes import SHAPES, Shape
from ops.bench.overload.servers import engine_and_gateway
from ops.bench.serve.target import SERVERS, Target

BLOCK_SIZE = 16


@contextmanager
def checkpoint(shape: Shape, bits: int | None = None) -> Iterator[str]:
    """Its folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        random_model.save(Path(folder), shape.config, dtype=shape.dtype, bits=bits)
        yield folder


@contextmanager
def served(
    model: str, *, streams: int, context: int, budget: int | None = None
) -> Iterator[Target]:
    """A gateway before an engine with places for ``streams`` requests of ``context`` tokens each.

    On a CPU the engine has one core of its own; a GPU's has all that the others have.
    """
    config = EngineConfig(
        model=model,
        max_num_seqs=streams,
        max_num_batched_tokens=budget,
        num_kv_blocks=streams * -(-context // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        # All of a load's requests come at once.
        max_queued_requests=2 * streams,
    )
    with engine_and_gateway(config, cores_apart=available_devices()[0] == "cpu") as running:
        yield Target(running.gateway, running.model, "completions", SERVERS["pomona"])


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The options that say which model it is."""
    parser.add_argument("--shape", choices=sorted(SHAPES), default="100m")
    parser.add_argument("--bits", type=int, help="of quantized weights; by default none are")
