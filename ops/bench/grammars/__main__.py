"""What grammars cost: tokens a second of a full batch, with and without.

``python -m ops.bench.grammars [--shape NAME] [--rounds N] [--rows N] [--vocab-size N]``. All rows
of a batch are of one form; the forms take turns in one process, with random weights, prompts and
draws. Each row's grammar is compiled before, as a server does beside its engine. A second table
tells what the host does in a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM  # isort: skip
import numpy as np
from tqdm import tqdm

from backend_metal.engine.step_clock import PARTS, Part
from backend_metal.engine.text.output import MOST_FORCED
from deployments.backend import GenerationRequest
from ops.bench.engine import random_model
from ops.bench.engine.shapes import SHAPES
from ops.bench.grammars.forms import FORMS, Form, sampling
from ops.bench.timing import markdown_table, seconds

PROMPT_TOKENS = 32
BLOCK_SIZE: Literal[16] = 16
NAMES = {
    "free": "no grammar",
    "auto": "24 tools, auto",
    "required": "24 tools, required",
    "schema": "a JSON schema",
}


@dataclass(frozen=True)
class Run:
    tokens: int
    steps: int
    seconds: float
    cpu_seconds: float
    """Of all threads, which whatever else the machine does hardly changes."""
    host_seconds: Mapping[Part, float]
    """Of the engine's thread, by part of a step."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps

    @property
    def step_cpu_seconds(self) -> float:
        return self.cpu_seconds / self.steps


def runner(llm: LLM, form: Form, rows: int, max_tokens: int) -> Callable[[], Run]:
    engine = llm.engine
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 256, PROMPT_TOKENS).tolist() for _ in range(rows)]
    how = [sampling(form, seed=seed, max_tokens=max_tokens) for seed in range(rows)]
    grammar = how[0].grammar

    def run() -> Run:
        llm.reset_prefix_cache()
        before = engine.stats()
        for row, (prompt, drawn) in enumerate(zip(prompts, how, strict=True)):
            request = GenerationRequest(str(row), tuple(prompt), drawn)
            matcher = None if grammar is None else engine.grammars.compile(grammar)
            engine.add_request(request, prompt, matcher=matcher)
        began = time.process_time()
        taken = seconds(lambda: _drain(llm))
        cpu = time.process_time() - began
        after = engine.stats()
        tokens = after.generation_tokens - before.generation_tokens
        host = {part: after.step_host[part].sum - before.step_host[part].sum for part in PARTS}
        return Run(tokens, after.steps - before.steps, taken, cpu, host)

    return run


def _drain(llm: LLM) -> None:
    while llm.engine.has_work:
        llm.engine.step()


def measure(llm: LLM, rows: int, max_tokens: int, rounds: int) -> list[dict[Form, Run]]:
    runs = {form: runner(llm, form, rows, max_tokens) for form in FORMS}
    for run in runs.values():
        run()
    # Another order each time: whatever else the machine does hits none of them alone.
    orders = [
        FORMS[number % len(FORMS) :] + FORMS[: number % len(FORMS)] for number in range(rounds)
    ]
    return [{form: runs[form]() for form in order} for order in tqdm(orders, desc="rounds")]


def report(rounds: Sequence[dict[Form, Run]], rows: int) -> str:
    table = []
    for form in FORMS:
        runs = [one[form] for one in rounds]
        free = [one["free"] for one in rounds]
        pairs = list(zip(runs, free, strict=True))
        rate = statistics.median(run.rate / other.rate for run, other in pairs)
        step = statistics.median(run.step_seconds / other.step_seconds for run, other in pairs)
        cpu = statistics.median(
            run.step_cpu_seconds / other.step_cpu_seconds for run, other in pairs
        )
        table.append(
            (
                NAMES[form],
                f"{statistics.median(run.rate for run in runs):.1f}",
                f"{100 * rate:.0f}%",
                f"{1000 * statistics.median(run.step_seconds for run in runs):.1f}",
                f"{100 * step:.0f}%",
                f"{1000 * statistics.median(run.step_cpu_seconds for run in runs):.1f}",
                f"{100 * cpu:.0f}%",
                f"{statistics.median(run.tokens / run.steps for run in runs):.1f}",
            )
        )
    columns = (
        f"{rows} rows",
        *("tok/s", "of free"),
        *("ms a step", "of free"),
        *("CPU ms a step", "of free"),
        "tokens a step",
    )
    return markdown_table(columns, table)


def report_host(rounds: Sequence[dict[Form, Run]]) -> str:
    """What the engine's thread does in a step; ``wait`` is what the device leaves it."""
    table = []
    for form in FORMS:
        runs = [one[form] for one in rounds]
        parts = (
            statistics.median(run.host_seconds[part] / run.steps for run in runs) for part in PARTS
        )
        table.append((NAMES[form], *(f"{1000 * part:.2f}" for part in parts)))
    return markdown_table(("host, ms a step", *PARTS), table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.grammars", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="100m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=151_936)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        shape = SHAPES[arguments.shape]
        config = {**shape.config, "vocab_size": arguments.vocab_size}
        random_model.save(Path(directory), config, dtype=shape.dtype)
        # No row waits for blocks, and the rest of the machine's memory is not taken.
        length = PROMPT_TOKENS + arguments.max_tokens + MOST_FORCED
        blocks = arguments.rows * -(-length // BLOCK_SIZE)
        llm = LLM(
            directory, max_num_seqs=arguments.rows, block_size=BLOCK_SIZE, num_kv_blocks=blocks
        )
        rounds = measure(llm, arguments.rows, arguments.max_tokens, arguments.rounds)
    sys.stdout.write(f"{report(rounds, arguments.rows)}\n\n{report_host(rounds)}\n")


if __name__ == "__main__":
    main()
