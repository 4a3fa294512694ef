"""Output tokens a second: this engine, mlx-lm's BatchGenerator, and mlx-lm as it is installed.

``python -m ops.bench.engine [--shape NAME] [--bits N] [--rounds N] [--attention PATH] [--budget N]
[--every N] [--uniform 1,8,32]``. Everybody gets the same random weights, the same prompts and
greedy sampling. Pomona and mlx-lm take turns, each in a process of its own; on a CPU mlx-lm has
Pomona's BLAS there. mlx-lm as installed, without it, gets a part of the prompts, because it is
slow. ``--uniform`` adds batches of equal prompts against a plain loop over mlx-lm's model. Then
Pomona alone decodes with all places taken, for what its thread does in a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from ops.bench.engine.contenders import pomona  # isort: skip
import mlx.core as mx
from tqdm import tqdm

from backend_metal import LLM
from backend_metal.device import select_device
from ops.bench import device_limits, machine
from ops.bench.engine import random_model
from ops.bench.engine.host import HostParts, host_parts
from ops.bench.engine.peer import Peer
from ops.bench.engine.shapes import SHAPES
from ops.bench.engine.uniform import compare_uniform, report_uniform
from ops.bench.engine.workload import Workload
from ops.bench.timing import markdown_table

BLOCK_SIZE = 16
UNIFORM_OUTPUT_TOKENS = 256


def as_installed(directory: str, workload: Workload, prompts: list[list[int]]) -> float:
    """``BatchGenerator``'s rate with MLX's own BLAS."""
    with Peer(directory, pomona_blas=False) as peer:
        return peer.rate("batch_generator", workload.output_tokens, workload.at_once)(prompts)


@dataclass(frozen=True)
class Round:
    pomona: float
    mlx_lm: float
    """Output tokens a second."""
    gemm_flops: float
    """The GEMM rate while the two ran: before, between and after them, averaged."""


def gemm_rate(dtype: mx.Dtype) -> float:
    if mx.default_device().type == mx.cpu:
        return machine.gemm_rate(machine.GEMM_SIZE)
    return device_limits.gemm_rate(dtype)


def compare(
    llm: LLM,
    peer: Peer,
    workload: Workload,
    prompts: list[list[int]],
    rounds: int,
    dtype: mx.Dtype,
) -> list[Round]:
    contenders = (
        pomona(llm, workload.output_tokens),
        peer.rate("batch_generator", workload.output_tokens, workload.at_once),
    )
    # A GPU compiles kernels, and records a step of each shape, when there is the first one.
    warms_up_wholly = mx.default_device().type != mx.cpu
    for rate in tqdm(contenders, desc="warm-up"):
        rate(prompts if warms_up_wholly else prompts[:2])
    measured = []
    for _ in tqdm(range(rounds), desc="rounds"):
        rates, gemm = [], [gemm_rate(dtype)]
        for rate in contenders:
            rates.append(rate(prompts))
            gemm.append(gemm_rate(dtype))
        measured.append(Round(rates[0], rates[1], statistics.mean(gemm)))
    return measured


def report(
    limits: str,
    rounds: list[Round],
    installed: float | None,
    flops_per_token: float,
    host: HostParts,
) -> str:
    """``limits``: of the machine; ``flops_per_token``: of one output token, its share of the
    prompts included."""
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
    return f"{limits}\n\n{markdown_table(columns, rows)}\n\n{host.table()}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.engine", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="100m")
    parser.add_argument("--bits", type=int, help="of quantized weights; by default none are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attention", default="auto", help="as in EngineConfig")
    parser.add_argument("--budget", type=int, default=512, help="max_num_batched_tokens")
    parser.add_argument(
        "--every", type=int, default=16, help="of the prompts for mlx-lm as installed; 0: leave out"
    )
    parser.add_argument("--uniform", default="", help="sizes of batches, with commas")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    workload = shape.workload
    device = select_device("auto")
    is_cpu = device.mlx.type == mx.cpu
    if is_cpu:
        limits = machine.measure_machine().report()
    else:
        limits = device_limits.measure_device(device, shape.dtype).report()
    prompts = workload.prompts(shape.vocab_size)
    longest = max(map(len, prompts)) + max(workload.output_tokens, UNIFORM_OUTPUT_TOKENS)
    uniform = []
    with tempfile.TemporaryDirectory() as directory:
        parameters = random_model.save(
            Path(directory), shape.config, dtype=shape.dtype, bits=arguments.bits
        )
        with Peer(directory) as peer:
            llm = LLM(
                directory,
                max_num_seqs=workload.at_once,
                max_num_batched_tokens=arguments.budget,
                attention=arguments.attention,
                # mlx-lm's weights and caches are on the same device.
                num_kv_blocks=workload.at_once * -(-longest // BLOCK_SIZE),
            )
            rounds = compare(llm, peer, workload, prompts, arguments.rounds, shape.dtype)
            if arguments.uniform:
                sizes = [int(size) for size in arguments.uniform.split(",")]
                uniform = compare_uniform(
                    llm, peer, shape.vocab_size, sizes, UNIFORM_OUTPUT_TOKENS, arguments.rounds
                )
        installed = None
        if is_cpu and arguments.every:
            part = workload.prompts(shape.vocab_size, arguments.every)
            installed = as_installed(directory, workload, part)
        host = host_parts(llm, prompts[: workload.at_once])
    flops = workload.flops(prompts, parameters)
    outputs = workload.num_prompts * workload.output_tokens
    sys.stdout.write(report(limits, rounds, installed, flops / outputs, host))
    if uniform:
        sys.stdout.write(f"\n{report_uniform(uniform, UNIFORM_OUTPUT_TOKENS)}\n")


if __name__ == "__main__":
    main()
