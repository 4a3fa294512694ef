"""From a model's name to a model that is ready to run, with its tokenizer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model

from backend_metal import native
from backend_metal.device import Device
from backend_metal.models.families.bitnet import unpack_ternary
from backend_metal.models.load.account.config import normalized
from backend_metal.models.load.account.keys import warn_of_unknown_keys
from backend_metal.models.load.account.length import check_wanted
from backend_metal.models.load.account.network import BUILD_ERRORS, Settled, cause_of, settle
from backend_metal.models.load.checkpoint_quantization import storage_of
from backend_metal.models.load.checkpoint_tokenizer import load_checkpoint_tokenizer, read_template
from backend_metal.models.load.checkpoint_weights import (
    classes_reading,
    is_bare,
    lacks_head,
    own_head,
    untied,
)
from backend_metal.models.load.find import find_checkpoint
from backend_metal.models.load.generation_config import Source, default_sampling
from backend_metal.models.load.pooling_config import PoolingConfig, read_pooling_config
from backend_metal.models.load.revision import revision_of
from backend_metal.models.load.stored_tensors import StoredTensors
from backend_metal.models.load.weights import convert, materialize, readable_bytes
from backend_metal.models.paged_model import PagedModel
from deployments.backend import GenerationDefaults, SamplingParams

logger = logging.getLogger(__name__)

DtypeName = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class LoadedModel:
    model: PagedModel
    tokenizer: TokenizerWrapper
    config: Mapping[str, Any]
    model_type: str
    max_model_len: int
    """The model's own context, in tokens."""
    eos_token_ids: frozenset[int]
    weight_bytes: int
    default_sampling: SamplingParams
    pooling: PoolingConfig
    generates: bool
    """Whether there is a head that makes logits."""
    revision: str
    """Models with the same one continue each other's answers."""


@dataclass(frozen=True)
class OutlinedModel:
    """What memory it takes, of a model whose weights nobody has read. It can't run."""

    model: PagedModel
    max_model_len: int
    """The model's own context, in tokens."""
    weight_bytes: int


def outline(
    model: str,
    *,
    revision: str | None = None,
    device: Device,
    dtype: DtypeName = "auto",
    memory_limit_bytes: int,
    trust_remote_code: bool = False,
    max_model_len: int | None = None,
) -> OutlinedModel:
    """As ``load``, without reading the weights or the tokenizer. Raises what ``load`` does."""
    path, config = find_checkpoint(model, revision)
    on_cpu = device.mlx.type == mx.cpu
    network, config, settled, _ = _build(path, config, trust_remote_code, max_model_len)
    check_wanted(max_model_len, settled.context, model)
    weight_bytes = convert(
        network,
        dtype=_dtype(dtype, on_cpu),
        on_cpu=on_cpu,
        memory_limit_bytes=memory_limit_bytes,
    )
    return OutlinedModel(PagedModel(network, config, fuse=False), settled.context, weight_bytes)


def load(
    model: str,
    *,
    revision: str | None = None,
    device: Device,
    dtype: DtypeName = "auto",
    memory_limit_bytes: int,
    trust_remote_code: bool = False,
    max_model_len: int | None = None,
    chat_template: str | None = None,
    parse_special_tokens_in_messages: bool = False,
    chat_format: str = "auto",
    generation_config: Source = "auto",
    generation_defaults: GenerationDefaults | None = None,
) -> LoadedModel:
    """Load a Hugging Face id, a local directory or ``demo``, MLX-quantized or not.

    On the CPU floating weights become float32: MLX's CPU kernels for anything else are many times
    slower. Quantized layers stay so where this package has a kernel for their format; others are
    dequantized when that fits. Call it in the thread that owns MLX.

    Args:
        revision: branch, tag or commit on the hub, of weights and tokenizer.
        dtype: of weights and activations; ``auto``: float32 on the CPU, else as stored.
        memory_limit_bytes: most that the weights may take.
        trust_remote_code: run Python that ships with the checkpoint.
        max_model_len: the context that is wanted, in tokens, which some models rotate keys by.
        chat_template: path of a Jinja file that replaces the tokenizer's template.
        parse_special_tokens_in_messages: told by the revision, since it changes prompts.
        chat_format: told by the revision, since it changes grammars.
        generation_config: whose sampling defaults hold, the checkpoint's or OpenAI's.
        generation_defaults: that win over those.

    Raises:
        ValueError: saying what is missing, unreachable, unsupported or too big.
    """
    started = time.perf_counter()
    # Read first: a wrong path should not cost a download.
    template = read_template(chat_template)
    path, config = find_checkpoint(model, revision)
    sampling = default_sampling(
        path, generation_config, generation_defaults or GenerationDefaults()
    )
    pooling = read_pooling_config(path)
    logger.info("loading %s (%s) from %s", model, config["model_type"], path)
    on_cpu = device.mlx.type == mx.cpu
    warn_of_unknown_keys(path, config)
    network, config, settled, generates = _build(path, config, trust_remote_code, max_model_len)
    check_wanted(max_model_len, settled.context, model)
    weight_bytes = materialize(
        network,
        dtype=_dtype(dtype, on_cpu),
        on_cpu=on_cpu,
        memory_limit_bytes=memory_limit_bytes,
    )
    tokenizer = load_checkpoint_tokenizer(
        path, config, trust_remote_code=trust_remote_code, template=template
    )
    paged = PagedModel(network, config, device=device)
    logger.info(
        "sampling, unless a request says otherwise: temperature %g, top_p %g, top_k %d, min_p %g, "
        "repetition_penalty %g",
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
    )
    logger.info(
        "loaded %s of weights in %.1f s",
        readable_bytes(weight_bytes),
        time.perf_counter() - started,
    )
    return LoadedModel(
        model=paged,
        tokenizer=tokenizer,
        config=config,
        model_type=config["model_type"],
        max_model_len=settled.context,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
        weight_bytes=weight_bytes,
        default_sampling=sampling,
        pooling=pooling,
        generates=generates,
        revision=revision_of(
            path,
            native.SOURCES,
            paged.dtype,
            template,
            sampling,
            parse_special_tokens_in_messages,
            chat_format,
            pooling,
            settled.long,
        ),
    )


def _build(
    path: Path, config: dict[str, Any], trust_remote_code: bool, max_model_len: int | None
) -> tuple[nn.Module, dict[str, Any], Settled, bool]:
    """mlx-lm's model with lazy weights, its config, its context, and whether it has a head that
    makes logits."""
    tensors = StoredTensors(path)
    storage = storage_of(path, config)
    changed = {**normalized(config), **storage.changed}
    if head := own_head(tensors):
        changed |= untied(head, config | changed)
    generates = not (is_bare(tensors) and lacks_head(config))
    if not generates:
        # Its logits mean nothing, and no request asks for them.
        changed["tie_word_embeddings"] = True
    try:
        network, built = load_model(
            path,
            lazy=True,
            trust_remote_code=trust_remote_code,
            model_config=changed,
            get_model_classes=classes_reading(path, tensors, storage),
        )
    except BUILD_ERRORS as error:
        raise ValueError(
            f"{path / 'config.json'}: mlx-lm can build no model of the type "
            f"{config['model_type']!r} as it says: {cause_of(error, config)}"
        ) from error
    unpack_ternary(network)
    settled = settle(path, network, config, max_model_len)
    if (most := read_pooling_config(path).max_tokens) is not None:
        settled = replace(settled, context=min(settled.context, most))
    return network, built, settled, generates


def _dtype(name: DtypeName, on_cpu: bool) -> mx.Dtype | None:
    if name == "auto":
        return mx.float32 if on_cpu else None
    return {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[name]
