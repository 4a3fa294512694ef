"""One model of each group of families: this engine against mlx-lm, one prompt at a time and in
batches.

``python -m ops.bench.engine.groups [--rounds N] [--bits N] [--only NAME]``. Small models with
random weights, of the layers that families of the group have; the same prompts and greedy sampling
for all. mlx-lm's ``BatchGenerator`` counts only where its tokens are those that mlx-lm draws of the
same prompts one at a time, which it does not for every family.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM  # isort: skip
import mlx.core as mx
from tqdm import tqdm

from backend_metal.device import select_device
from ops.bench.engine import random_model
from ops.bench.engine.contenders import Prompts, Rate, pomona
from ops.bench.engine.peer import Drawn, Job, Peer
from ops.bench.engine.workload import Workload
from ops.bench.timing import markdown_table

WORKLOAD = Workload(num_prompts=16, shortest=32, longest=128, output_tokens=32, at_once=16)
VOCAB_SIZE = 8192

_BASE: Mapping[str, object] = {
    **random_model.CONFIG,
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "intermediate_size": 1536,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, object] = {
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_LATENT: Mapping[str, object] = {
    **_BASE,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 256,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_intermediate_size": 256,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
GROUPS: Mapping[str, Mapping[str, object]] = {
    "dense": _BASE,
    "MoE": {**_BASE, **_EXPERTS, "model_type": "qwen3_moe"},
    "hybrid": {
        **_BASE,
        **_EXPERTS,
        "model_type": "qwen3_next",
        "shared_expert_intermediate_size": 256,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
    },
    "MLA": _LATENT,
    # Of so few keys that prompts of the workload choose among theirs.
    "sparse MLA": {
        **_LATENT,
        "model_type": "deepseek_v32",
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": 64,
    },
}


@dataclass(frozen=True)
class GroupRates:
    """Output tokens a second, medians of all rounds."""

    name: str
    model_type: str
    pomona_alone: float
    """One prompt at a time."""
    mlx_lm_alone: float
    pomona: float
    """As many at a time as the workload says."""
    batch_generator: float
    agreement: float
    """Of the batch generator's tokens, how many are those drawn one prompt at a time."""


def one_by_one(rate: Rate) -> Rate:
    """All prompts have as many output tokens, so that the harmonic mean is the rate of all."""
    return lambda prompts: statistics.harmonic_mean([rate([prompt]) for prompt in prompts])


def agreement(told: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    pairs = [
        one == other
        for own, wanted in zip(told, expected, strict=True)
        for one, other in zip(own, wanted, strict=True)
    ]
    return sum(pairs) / len(pairs)


def measure(
    name: str, workload: Workload = WORKLOAD, *, rounds: int, bits: int | None = None
) -> GroupRates:
    config = GROUPS[name]
    is_cpu = mx.default_device().type == mx.cpu
    dtype = mx.float32 if is_cpu else mx.bfloat16
    prompts = workload.prompts(VOCAB_SIZE)
    drawn: dict[str, Drawn] = {}
    with tempfile.TemporaryDirectory() as directory:
        random_model.save(Path(directory), config, dtype=dtype, bits=bits)
        with Peer(directory) as peer:
            llm = LLM(directory, max_num_seqs=workload.at_once)
            ours = pomona(llm, workload.output_tokens)

            def theirs(way: str) -> Rate:
                def rate(prompts: Prompts) -> float:
                    drawn[way] = peer.run(
                        Job(way, prompts, workload.output_tokens, workload.at_once)
                    )
                    return drawn[way].tokens_per_second

                return rate

            contenders = (one_by_one(ours), theirs("one_by_one"), ours, theirs("batch_generator"))
            for rate in contenders:
                rate(prompts[:2])
            rates = [[rate(prompts) for rate in contenders] for _ in range(rounds)]
    alone, mlx_lm_rate, batched, generator = map(statistics.median, zip(*rates, strict=True))
    return GroupRates(
        name,
        str(config["model_type"]),
        pomona_alone=alone,
        mlx_lm_alone=mlx_lm_rate,
        pomona=batched,
        batch_generator=generator,
        agreement=agreement(drawn["batch_generator"].tokens, drawn["one_by_one"].tokens),
    )


def table(measured: Sequence[GroupRates], workload: Workload = WORKLOAD) -> str:
    columns = (
        "group",
        "pomona, one at a time",
        "mlx-lm, one at a time",
        "faster by",
        f"pomona, {workload.at_once} at once",
        "BatchGenerator",
        "faster by",
    )
    return markdown_table(columns, [_row(rates) for rates in measured])


def _row(rates: GroupRates) -> tuple[str, ...]:
    batches = (f"{rates.batch_generator:.1f}", f"{rates.pomona / rates.batch_generator:.2f}")
    if rates.agreement < 1:
        batches = (f"wrong: {rates.agreement:.0%} of its tokens are right", "")
    return (
        f"{rates.name} (`{rates.model_type}`)",
        f"{rates.pomona_alone:.1f}",
        f"{rates.mlx_lm_alone:.1f}",
        f"{rates.pomona_alone / rates.mlx_lm_alone:.2f}",
        f"{rates.pomona:.1f}",
        *batches,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.engine.groups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bits", type=int, help="of quantized weights; by default none are")
    parser.add_argument("--only", choices=sorted(GROUPS), help="of the groups")
    arguments = parser.parse_args()
    mx.set_default_device(select_device("auto").mlx)
    names = [arguments.only] if arguments.only else list(GROUPS)
    measured = [
        measure(name, rounds=arguments.rounds, bits=arguments.bits)
        for name in tqdm(names, desc="groups")
    ]
    sys.stdout.write(f"Output tokens a second\n\n{table(measured)}\n")


if __name__ == "__main__":
    main()
