"""The engine against mlx-lm's BatchGenerator and, where it is installed, vllm-metal.

Everybody gets the same weights, prompts and greedy sampling. Pomona and mlx-lm take turns, each
in a process of its own; vllm-metal runs in an environment of its own as a rule.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM  # isort: skip
import mlx.core as mx
from tqdm import tqdm

from ops.bench.engine import random_model
from ops.bench.engine.contenders import Prompts, pomona
from ops.bench.engine.peer import Peer
from ops.bench.engine.workload import Workload
from ops.bench.metal import vllm_metal
from ops.bench.timing import markdown_table

QWEN3_0_6B: Mapping[str, object] = {
    **random_model.CONFIG,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}
"""Its shape, with a smaller vocabulary: ``random_model`` gives it weights."""

VLLM_METAL = Path("~/.venv-vllm-metal/bin/python")
"""Where its installer puts it."""


def save_random(directory: Path, config: Mapping[str, object] = QWEN3_0_6B) -> None:
    """A checkpoint with random bfloat16 weights."""
    random_model.save(directory, config, dtype=mx.bfloat16)


def prompts_of(model: str, workload: Workload) -> Prompts:
    """Random token ids that the model has."""
    config = json.loads((Path(model) / "config.json").read_text())
    vocab_size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    return workload.prompts(vocab_size)


def find_vllm() -> str | None:
    """The Python that can import vllm-metal, if any can be found."""
    if importlib.util.find_spec("vllm_metal") and importlib.util.find_spec("vllm"):
        return sys.executable
    installed = VLLM_METAL.expanduser()
    return str(installed) if installed.exists() else None


def vllm_rates(
    python: str, model: str, prompts: Prompts, workload: Workload, rounds: int
) -> list[float]:
    """Output tokens a second of each round. Raises ``CalledProcessError`` when vLLM does."""
    job = {
        "prompts": prompts,
        "output_tokens": workload.output_tokens,
        "at_once": workload.at_once,
        "rounds": rounds,
    }
    finished = subprocess.run(
        [python, vllm_metal.__file__, model],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rates: list[float] = json.loads(finished.stdout.splitlines()[-1])
    return rates


def report(model: str, workload: Workload, rounds: int, vllm: str | None) -> str:
    """Medians over the rounds, and Pomona's lead. Shows progress."""
    prompts = prompts_of(model, workload)
    rates: dict[str, list[float]] = {}
    with (
        Peer(model) as peer,
        tqdm(total=2 * rounds + bool(vllm), desc="engine", unit="run") as progress,
    ):
        contenders = {
            "pomona": pomona(LLM(model, max_num_seqs=workload.at_once), workload.output_tokens),
            "mlx-lm BatchGenerator": peer.rate(
                "batch_generator", workload.output_tokens, workload.at_once
            ),
        }
        for rate in contenders.values():
            rate(prompts[:2])
        for _ in range(rounds):
            for name, rate in contenders.items():
                rates.setdefault(name, []).append(rate(prompts))
                progress.update()
        if vllm:
            rates["vllm-metal"] = vllm_rates(vllm, model, prompts, workload, rounds)
            progress.update()
    ours = statistics.median(rates["pomona"])
    rows = [
        (name, f"{statistics.median(measured):.1f}", f"{ours / statistics.median(measured):.2f}")
        for name, measured in rates.items()
    ]
    table = markdown_table(("engine", "output tokens/s", "pomona is faster by"), rows)
    missing = "" if vllm else "\n\nvllm-metal is not installed, so it is not in the table."
    return (
        f"{workload.num_prompts} prompts of {workload.shortest} to {workload.longest} tokens, "
        f"{workload.output_tokens} output tokens each, {workload.at_once} at once, greedy; median "
        f"of {rounds} rounds.\n\n{table}{missing}"
    )
