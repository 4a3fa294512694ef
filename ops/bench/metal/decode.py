"""Decoding in a process of its own: ``python -m ops.bench.metal.decode MODEL [options]``.

What MLX reads once, when it first uses a GPU, can only be compared between processes. Prints one
line of JSON, a ``Decoding``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Literal

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx

from ops.bench.timing import seconds

PROMPT_TOKENS = 16
BLOCK_SIZE: Literal[16] = 16


@dataclass(frozen=True)
class Decoding:
    tokens_per_second: float
    """Of all sequences together, in the median round."""
    host_ms: dict[str, float]
    """Of a step, by part; ``StepClock`` says what they are."""
    first_token_ms: float
    """Of one short prompt, when the device has just been busy."""
    first_token_after_idling_ms: float


def measure(
    model: str,
    *,
    at_once: int,
    output_tokens: int,
    rounds: int,
    idle_s: float,
    small_pool: bool = False,
    wired: bool = True,
) -> Decoding:
    blocks_each = -(-(PROMPT_TOKENS + output_tokens) // BLOCK_SIZE)
    llm = LLM(
        model,
        max_num_seqs=at_once,
        # Those of a step that is to be dropped included.
        num_kv_blocks=at_once * (blocks_each + 1) if small_pool else None,
        block_size=BLOCK_SIZE,
        prefix_caching=False,
    )
    if not wired:
        mx.set_wired_limit(0)
    vocab_size = llm.engine.vocab_size
    prompts = [
        [(31 * row + 7 * i) % vocab_size for i in range(PROMPT_TOKENS)] for row in range(at_once)
    ]

    def generate(tokens: int, count: int = at_once) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        llm.generate(prompts[:count], sampling, show_progress=False)

    generate(output_tokens)
    before = llm.stats()
    taken = [seconds(lambda: generate(output_tokens)) for _ in range(rounds)]
    after = llm.stats()
    steps = after.steps - before.steps
    busy = seconds(lambda: generate(1, 1))
    time.sleep(idle_s)
    return Decoding(
        tokens_per_second=at_once * output_tokens / statistics.median(taken),
        host_ms={
            part: 1000 * (histogram.sum - before.step_host[part].sum) / steps
            for part, histogram in after.step_host.items()
        },
        first_token_ms=1000 * busy,
        first_token_after_idling_ms=1000 * seconds(lambda: generate(1, 1)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.metal.decode", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=3.0)
    parser.add_argument("--small-pool", action="store_true")
    parser.add_argument("--unwired", dest="wired", action="store_false")
    sys.stdout.write(json.dumps(asdict(measure(**vars(parser.parse_args())))) + "\n")


if __name__ == "__main__":
    main()
