"""Every key of a config.json is used, known to be irrelevant, or told of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from backend_metal.models.load.account.families import family_of_config
from backend_metal.models.load.account.length import LENGTH_KEYS
from backend_metal.models.load.account.rope import (
    BASES,
    FRACTIONS,
    LOCAL_BASES,
    PARAMETERS,
    SCALING,
)

logger = logging.getLogger(__name__)

ACCOUNTED: Mapping[str, tuple[str, ...]] = {
    "rotary embeddings, held to what the network computes": (
        *(PARAMETERS, SCALING, *BASES, *FRACTIONS, *LOCAL_BASES, "rotary_dim", "rotary_base"),
        *("original_max_position_embeddings", "partial_rotary_factors", "yarn_only_types"),
    ),
    "the context's length": (*LENGTH_KEYS, "initial_context_length"),
    "windows, held to what the network's layers see": (
        *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
        *("sliding_window_pattern", "_sliding_window_pattern", "cache_implementation"),
        *("attention_chunk_size", "global_attn_every_n_layers"),
    ),
    "causality, checked before": ("is_causal", "use_bidirectional_attention"),
    "tokens and sampling, which the tokenizer and generation_config.json have": (
        *("*_token_id", "*_token_ids", "*_token_index", "tokenizer_class", "add_*_token"),
        *("temperature", "top_k", "top_p", "do_sample", "repetition_penalty", "max_length"),
        *("min_length", "num_beams", "length_penalty", "suppress_tokens", "bad_words_ids"),
        *("no_repeat_ngram_size", "return_dict_in_generate", "typical_p", "diversity_penalty"),
        *("num_return_sequences", "early_stopping", "exponential_decay_length_penalty"),
        *("num_beam_groups", "encoder_no_repeat_ngram_size", "begin_suppress_tokens"),
        *("forced_*_token_id", "prefix", "remove_invalid_values", "task_specific_params"),
    ),
    "weights: those of another shape or name are refused": (
        *("tie_word_embeddings", "tie_encoder_decoder", "vocab_size", "*_vocab_size"),
        *("hidden_size", "*intermediate_size", "n_inner", "*head_dim", "expand"),
        *("num_key_value_heads", "num_local_experts", "num_experts", "q_lora_rank", "*_kernel_dim"),
        *("mamba_expand", "conv1d_width", "num_hidden_layers", "*bias", "*_kernel_size"),
        *("linear_num_heads", "per_layer_config", "num_sliding_attention_heads"),
        *("lru_width", "n_routed_experts", "interleave_moe_layer_step"),
        *("mlp_only_layers", "decoder_sparse_step", "no_rope_layer_interval"),
        *("mlp_layer_types", "moe_layers", "first_k_dense_replace", "multi_query", "torch_dtype"),
        *("dtype", "quantization", "quantization_config", "compression_config", "pruned_heads"),
        "tf_legacy_loss",
    ),
    "the names of the class and its file": (
        *("_name_or_path", "architectures", "auto_map", "model_type", "transformers*"),
        *("model_file", "*_version", "mlx_lm_version", "unsloth_*", "_*", "base_model_name*"),
        "attn_implementation",
    ),
    "training": (
        *("*dropout*", "*_pdrop", "initializer_*", "*_init_*", "init_*", "*_jitter_noise"),
        *("*_loss_coef", "*loss*", "output_router_logits", "time_step_*", "gradient_*"),
        *("rescale_prenorm_residual", "linear_a_log_*", "linear_dt_*", "use_cut_cross_entropy"),
        *("moe_capacity", "seq_aux", "ep_size", "ignore_index", "for_llm_compressor"),
    ),
    "one of several ways to compute the same, or its precision": (
        *(
            "use_cache",
            "use_mamba_kernels",
            "use_associative_scan",
            "use_mambapy",
            "pretraining_tp",
        ),
        *("chunk_size", "mamba_chunk_size", "num_logits_to_keep", "moe_shared_expert_overlap"),
        *("reorder_and_upcast_attn", "attention_softmax_in_fp32", "residual_in_fp32"),
        *("scale_attention_softmax_in_fp32", "mamba_ssm_*dtype", "use_flash*"),
        *("chunk_size_feed_forward", "low_cpu_mem_usage", "fuse*", "use_fused_*", "fp32_*"),
    ),
    "other heads and outputs": (
        *("summary_*", "classifier_dropout", "problem_type", "id2label", "label2id", "return_dict"),
        *("output_attentions", "output_hidden_states", "torchscript", "finetuning_task"),
        *("is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"),
        *("num_nextn_predict_layers", "*mtp*", "use_bfloat16", "output_scores"),
    ),
    "images and sound, which are not served": (
        *("vision_*", "*vision*", "image_*", "video_*", "audio_*", "*_per_image", "projector_*"),
        *("projection_*", "multimodal_projector_bias", "mm_*", "num_channels", "patch_size"),
        *("spatial_merge_size", "out_hidden_size", "use_*_embedding_for_image", "text_config"),
        *("vit_*", "anyres_*"),
    ),
}
"""Keys that may have any value, as patterns, by the reason."""
NOTHING = object()
"""No value, not even None."""


def check_keys(path: Path, config: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` naming a key that changes what is computed, where the network computes
    as if it had another value."""
    for name, value, fixed in _left_out(config):
        if isinstance(value, list) and fixed is not NOTHING:
            # One value a layer, or none for what they are by default.
            fixed = fixed[: len(value)] if isinstance(fixed, list) else [fixed] * len(value)
        if fixed is not NOTHING and not _alike(value, fixed):
            raise ValueError(
                f"{path / 'config.json'}: {name} is {_short(value)}, and models of the type "
                f"{config['model_type']!r} are computed as if it were {_short(fixed)}: this one "
                "can't be served"
            )


def warn_of_unknown_keys(path: Path, config: Mapping[str, Any]) -> None:
    """Log those that nothing here knows."""
    unknown = [
        f"{name}: {_short(value)}" for name, value, fixed in _left_out(config) if fixed is NOTHING
    ]
    if unknown:
        logger.warning(
            "%s has keys that nothing here reads; if one of them changes what the model computes, "
            "its answers are wrong: %s",
            path / "config.json",
            ", ".join(unknown),
        )


def _left_out(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys that the network does not read, and that are not accounted for otherwise, with their
    values and those that it computes with, or ``NOTHING``."""
    family = family_of_config(config)
    parts = {"": config, "text_config.": config.get("text_config")}
    for prefix, part in parts.items():
        for key, value in sorted(part.items()) if isinstance(part, Mapping) else ():
            known = key in family.reads or key in family.saved.values()
            if not known and value is not None and reason_of(key) is None:
                yield prefix + key, value, family.fixed.get(key, NOTHING)


@cache
def reason_of(key: str) -> str | None:
    """Why the value of ``key`` needs no check here; None: it does."""
    for reason, patterns in ACCOUNTED.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns):
            return reason
    return None


def _short(value: Any) -> str:
    return shorten(repr(value), 60, placeholder=" ...")


def _alike(value: Any, fixed: Any) -> bool:
    if isinstance(value, str) and isinstance(fixed, str):
        # Approximations of one function differ less than bfloat16 does.
        return (
            value == fixed
            or {value, fixed} == {"silu", "swish"}
            or (value.startswith("gelu") and fixed.startswith("gelu"))
        )
    return bool(value == fixed)
