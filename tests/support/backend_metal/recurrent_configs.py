"""Tiny configurations of the families with recurrent layers, and weights that make state matter."""

from __future__ import annotations

from typing import Any

import numpy as np

# Families whose head dim is always hidden_size / num_attention_heads.
_DERIVED = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "num_hidden_layers": 3,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
}
_QWEN3_5_ROPE = {
    "rope_parameters": {
        "type": "default",
        "mrope_section": [4, 2, 2],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    }
}
_QWEN3_5_TEXT = {
    "model_type": "qwen3_5",
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 288,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_SHARED_EXPERT = _EXPERTS | {"shared_expert_intermediate_size": 32, "norm_topk_prob": True}
_LFM2 = _DERIVED | {
    "num_hidden_layers": 3,
    "norm_eps": 1e-5,
    "conv_bias": True,
    "conv_L_cache": 3,
    "full_attn_idxs": [1],
}

LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
_BAILING = _EXPERTS | {
    "num_hidden_layers": 3,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "layer_group_size": 2,
    "group_norm_size": 2,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "routed_scaling_factor": 1.5,
    "n_group": 2,
    "topk_group": 1,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "partial_rotary_factor": 0.5,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "baichuan_m1": _DERIVED
    | {"sliding_window": 16, "sliding_window_layers": [0], "conv_window": 2}
    | {"num_swa_attention_heads": 2, "num_swa_key_value_heads": 2},
    "bailing_hybrid": _BAILING | LATENT,
    "bailing_moe_linear": _BAILING
    | _DERIVED
    # So that no head's answer, which may be almost nothing, is scaled up alone.
    | {"group_norm_size": 1},
    "bailing_moe_v3": _BAILING
    | LATENT
    | {"head_dim": 32, "moe_shared_expert_intermediate_size": 32, "short_conv_kernel_size": 4},
    "falcon_h1": {
        "mamba_d_ssm": 96,
        "mamba_n_heads": 4,
        "mamba_d_head": 24,
        "mamba_d_state": 16,
        "mamba_n_groups": 2,
        "mamba_rms_norm": True,
        "tie_word_embeddings": True,
    },
    "gear": {
        "num_hidden_layers": 3,
        "layer_types": ["conv_mixer", "sliding_attention", "full_attention"],
        "sliding_window": 16,
        "conv_L_cache": 3,
    },
    "granitemoehybrid": _DERIVED
    | {
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.1,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 64,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
        "mamba_conv_bias": True,
    },
    "jamba": _DERIVED
    | {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 4,
        "mamba_expand": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "kimi_k3": {
        "text_config": LATENT
        | {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 288,
            "linear_attn_config": {
                "num_heads": 2,
                "head_dim": 32,
                "kda_layers": [1, 3],
                "short_conv_kernel_size": 4,
                "gate_lower_bound": -5.0,
                "use_full_rank_gate": True,
            },
            "activation_situ_beta": 1.5,
            "activation_situ_linear_beta": 2.0,
            "attn_res_block_size": 2,
            "mla_use_output_gate": True,
            "num_experts": 4,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "routed_expert_hidden_size": 32,
            "latent_moe_use_norm": True,
        }
    },
    "kimi_linear": {
        "linear_attn_config": {
            "num_heads": 2,
            "head_dim": 32,
            "kda_layers": [1],
            "short_conv_kernel_size": 4,
        },
        "model_max_length": 4096,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
    },
    "lfm2": _LFM2
    | {
        "block_dim": 128,
        "block_ff_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    },
    "lfm2_moe": _LFM2
    | _EXPERTS
    | {"norm_topk_prob": True, "use_expert_bias": True, "num_dense_layers": 1},
    "mamba": {
        "state_size": 8,
        "intermediate_size": 96,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 8,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.001, 100.0],
        "time_step_rank": "auto",
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "-", "*", "M"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 24,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
    },
    "olmo_hybrid": _DELTA
    | {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "linear_allow_neg_eigval": True,
        "partial_rotary_factor": 1.0,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "plamo2": {
        "num_hidden_layers": 4,
        "hidden_size_per_head": 64,
        "mamba_d_state": 16,
        "mamba_num_heads": 2,
        "intermediate_size": 96,
    },
    "prism_hadamard_qwen35": {
        "text_config": _QWEN3_5_TEXT
        | _DELTA
        | _QWEN3_5_ROPE
        | {"hidden_size": 512, "num_hidden_layers": 2},
        "schema_version": 1,
        "tensor_namespace": "mlx-lm-text",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": path, "embedding": path.endswith("tokens"), "dtype": "float16", "block": 512}
            for path in ("model.embed_tokens", "lm_head", "model.layers.1.mlp.up_proj")
        ],
    },
    "qwen3_5": _DELTA | _QWEN3_5_ROPE,
    "qwen3_5_moe": _DELTA | _QWEN3_5_ROPE | _SHARED_EXPERT,
    "qwen3_next": _DELTA | _SHARED_EXPERT | {"decoder_sparse_step": 1, "mlp_only_layers": [0]},
    "recurrent_gemma": _DERIVED
    | {
        "num_hidden_layers": 3,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 16,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": {
        "head_dim": 32,
        "norm_eps": 1e-5,
        "a_low_rank_dim": 64,
        "v_low_rank_dim": 64,
        "gate_low_rank_dim": 64,
        "decay_low_rank_dim": 64,
    },
}


def weight(name: str, noise: np.ndarray) -> np.ndarray | None:
    """Of parameters that would make state fade within a few tokens, as other random ones do: decay
    so slow that the first token of a sequence still shows in its last. None: any will do."""
    if name.endswith("A_log"):
        return -4.0 + 0.3 * noise
    if name.endswith("recurrent_param"):
        return -5.0 + 0.3 * noise
    return None
