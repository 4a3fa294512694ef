"""Trains the demo model: ``python -m ops.demo_model.train --out DIR --seed 0``.

The corpus and the tokenizer follow from the seed alone, and on a CPU so do the weights. A GPU adds
up floats in varying order, so its weights differ a little from run to run.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model, ModelArgs
from tokenizers import Tokenizer
from tqdm import tqdm

from ops.demo_model.corpus import generate
from ops.demo_model.dataset import Rows, pack
from ops.demo_model.evaluate import evaluate
from ops.demo_model.tokenizer import (
    END_OF_TEXT,
    IM_END,
    MAX_LENGTH,
    VOCAB_SIZE,
    save_tokenizer,
    train_tokenizer,
)

logger = logging.getLogger(__name__)

# More documents would not change which pairs of letters are frequent.
TOKENIZER_DOCUMENTS = 8000
TRAINED_LENGTH = 2048
FACTOR = MAX_LENGTH / TRAINED_LENGTH
SCALING = {
    "rope_type": "yarn",
    "factor": FACTOR,
    "original_max_position_embeddings": TRAINED_LENGTH,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""Of the rotary embeddings, once the model is trained. YaRN's attention factor is not in it but in
the weights: kernels for the heads rotate and scale nothing."""
ATTENTION_FACTOR = 0.1 * math.log(FACTOR) + 1


@dataclass(frozen=True)
class Training:
    """How long and on what to train; ``length`` is the number of tokens in a packed row."""

    seed: int = 0
    num_documents: int = 400_000
    num_steps: int = 6500
    batch_size: int = 32
    length: int = 1024
    learning_rate: float = 2e-3
    warmup: int = 200
    weight_decay: float = 0.05


def model_args() -> ModelArgs:
    """About 3.3 million parameters, 6.5 MB as float16."""
    return ModelArgs(
        model_type="qwen3",
        hidden_size=192,
        num_hidden_layers=6,
        intermediate_size=576,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rms_norm_eps=1e-6,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=TRAINED_LENGTH,
        rope_theta=10000.0,
        tie_word_embeddings=True,
    )


class PackedDocuments:
    """Stands in for a KV cache: keeps nothing, and masks the other documents of the row."""

    offset = 0

    def __init__(self, documents: mx.array) -> None:
        length = documents.shape[1]
        same = documents[:, None, :, None] == documents[:, None, None, :]
        self._mask = same & mx.tri(length, dtype=mx.bool_)

    def make_mask(self, *_: Any, **__: Any) -> mx.array:
        return self._mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values


def loss_function(model: Model, tokens: mx.array, targets: mx.array, docs: mx.array) -> mx.array:
    """Mean cross entropy of the target tokens; all arrays are ``[batch, length]``."""
    cache = [PackedDocuments(docs[:, :-1])] * len(model.model.layers)
    logits = model(tokens[:, :-1], cache)
    weights = targets[:, 1:]
    losses = nn.losses.cross_entropy(logits, tokens[:, 1:], weights=weights)
    mean: mx.array = losses.sum() / mx.maximum(weights.sum(), 1)
    return mean


def train(model: Model, rows: Rows, training: Training) -> Iterator[mx.array]:
    """Trains ``model`` in place and yields the loss of each step."""
    schedule = optim.join_schedules(
        [
            optim.linear_schedule(0.0, training.learning_rate, training.warmup),
            optim.cosine_decay(
                training.learning_rate, max(1, training.num_steps - training.warmup)
            ),
        ],
        [training.warmup],
    )
    optimizer = optim.AdamW(
        learning_rate=schedule, betas=[0.9, 0.98], weight_decay=training.weight_decay
    )
    gradient: Callable[..., tuple[mx.array, Any]] = nn.value_and_grad(model, loss_function)
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(tokens: mx.array, targets: mx.array, documents: mx.array) -> mx.array:
        loss, gradients = gradient(model, tokens, targets, documents)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        return loss

    for batch in rows.batches(training.batch_size, training.num_steps, training.seed):
        loss = step(mx.array(batch.tokens), mx.array(batch.targets), mx.array(batch.documents))
        mx.eval(loss, state)
        yield loss


def save(model: Model, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a folder that ``mlx_lm.load`` reads, with float16 weights, and lengthens the context:
    ``model`` is another one then."""
    directory.mkdir(parents=True, exist_ok=True)
    ends = [tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)]
    padding = tokenizer.token_to_id(END_OF_TEXT)
    config = {key: value for key, value in asdict(model.args).items() if value is not None}
    config |= {
        "max_position_embeddings": MAX_LENGTH,
        "rope_scaling": SCALING,
        "architectures": ["Qwen3ForCausalLM"],
        "dtype": "float16",
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": ends[0],
        "pad_token_id": padding,
    }
    generation = {"eos_token_id": ends, "pad_token_id": padding, "do_sample": False}
    for name, content in (("config", config), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    save_tokenizer(tokenizer, directory)
    for layer in model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight = norm.weight * ATTENTION_FACTOR
    weights = {
        name: value.astype(mx.float16) for name, value in sorted(tree_flatten(model.parameters()))
    }
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = Training()
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.num_steps)
    parser.add_argument("--documents", type=int, default=defaults.num_documents)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    training = Training(
        seed=options.seed,
        num_documents=options.documents,
        num_steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
    )
    tokenizer = train_tokenizer(generate(TOKENIZER_DOCUMENTS, training.seed))
    documents = tqdm(
        generate(training.num_documents, training.seed), "corpus", training.num_documents
    )
    rows = pack(documents, tokenizer, training.length)
    mx.random.seed(training.seed)
    model = Model(model_args())
    parameters = sum(value.size for _, value in tree_flatten(model.parameters()))
    logger.info(
        "%d rows of %d tokens, %d parameters", len(rows.tokens), training.length, parameters
    )
    with tqdm(total=training.num_steps, desc="train", unit="step", mininterval=5) as progress:
        for number, loss in enumerate(train(model, rows, training)):
            progress.update()
            if number % 50 == 0:
                progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
    save(model, tokenizer, options.out)
    right, wrong = evaluate(options.out)
    for case, answer in wrong:
        logger.info("wrong: %s -> %s", case.messages[-1]["content"], answer.text)
    logger.info("%d of %d held-out questions answered", right, right + len(wrong))


if __name__ == "__main__":
    main()
