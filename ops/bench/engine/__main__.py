"""Output tokens a second: this engine, mlx-lm's BatchGenerator, and mlx-lm as it is installed.

``python -m ops.bench.engine [--rounds N] [--attention PATH] [--every N]``. Everybody gets the same
random weights, the same prompts and greedy sampling. Pomona and mlx-lm share one process and its
BLAS and take turns; prefix caches are emptied in between. mlx-lm as installed runs in a process
of its own, on a part of the prompts, because it is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from ops.bench.engine.contenders import batch_generator, pomona, tokens_per_second  # isort: skip
from tqdm import tqdm

from ops.bench.engine import random_model
from ops.bench.engine.workload import Workload
from ops.bench.machine import GEMM_SIZE, Machine, gemm_rate, measure_machine
from ops.bench.timing import markdown_table


def as_installed(directory: str, every: int) -> float:
    """``batch_generator``'s rate in a process with MLX's own BLAS."""
    command = [sys.executable, "-m", "ops.bench.engine", "--as-installed", directory]
    finished = subprocess.run(
        [*command, "--every", str(every)],
        env={**os.environ, "POMONA_BLAS": "off"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(json.loads(finished.stdout))


@dataclass(frozen=True)
class Round:
    pomona: float
    mlx_lm: float
    """Output tokens a second."""
    gemm_flops: float
    """The GEMM rate while the two ran: before, between and after them, averaged."""


def compare(directory: str, workload: Workload, rounds: int, attention: str) -> list[Round]:
    prompts = workload.prompts(random_model.VOCAB_SIZE)
    runs = (pomona(directory, workload, attention), batch_generator(directory, workload))
    for run in runs:
        run(prompts[:2])
    measured = []
    for _ in tqdm(range(rounds), desc="rounds"):
        rates, gemm = [], [gemm_rate(GEMM_SIZE)]
        for run in runs:
            rates.append(tokens_per_second(run, prompts))
            gemm.append(gemm_rate(GEMM_SIZE))
        measured.append(Round(rates[0], rates[1], statistics.mean(gemm)))
    return measured


def report(
    machine: Machine, rounds: list[Round], installed: float | None, flops_per_token: float
) -> str:
    """``flops_per_token``: of one output token, its share of the prompts included."""
    gemm = statistics.median(r.gemm_flops for r in rounds)
    bound = gemm / flops_per_token

    def row(name: str, rate: float, lead: float) -> tuple[str, ...]:
        return (name, f"{rate:.1f}", f"{lead:.2f}", f"{100 * rate / bound:.0f}%")

    ours = statistics.median(r.pomona for r in rounds)
    rows = [
        row("pomona", ours, 1.0),
        row(
            "mlx-lm BatchGenerator",
            statistics.median(r.mlx_lm for r in rounds),
            statistics.median(r.pomona / r.mlx_lm for r in rounds),
        ),
    ]
    if installed is not None:
        rows.append(row("mlx-lm as installed", installed, ours / installed))
    during = f"all that {gemm / 1e9:.0f} GFLOP/s, the GEMM rate in between, allows"
    rows.append((during, f"{bound:.1f}", "", "100%"))
    columns = ("", "output tok/s", "pomona is faster by", "of the GEMM rate")
    return f"{machine.report()}\n\n{markdown_table(columns, rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attention", default="auto", help="as in EngineConfig")
    parser.add_argument(
        "--every", type=int, default=16, help="of the prompts for mlx-lm as installed; 0: leave out"
    )
    parser.add_argument("--as-installed", metavar="DIRECTORY", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    workload = Workload()
    if arguments.as_installed:
        run = batch_generator(arguments.as_installed, workload)
        prompts = workload.prompts(random_model.VOCAB_SIZE, arguments.every)
        sys.stdout.write(json.dumps(tokens_per_second(run, prompts)))
        return

    machine = measure_machine()
    with tempfile.TemporaryDirectory() as directory:
        parameters = random_model.save(Path(directory))
        rounds = compare(directory, workload, arguments.rounds, arguments.attention)
        installed = as_installed(directory, arguments.every) if arguments.every else None
    flops = workload.flops(workload.prompts(random_model.VOCAB_SIZE), parameters)
    outputs = workload.num_prompts * workload.output_tokens
    sys.stdout.write(report(machine, rounds, installed, flops / outputs))


if __name__ == "__main__":
    main()
