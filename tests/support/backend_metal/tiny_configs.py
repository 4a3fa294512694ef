"""Tiny configurations of every supported family, and of some that must be refused."""

from __future__ import annotations

from typing import Any

from tests.support.backend_metal import recurrent_configs

VOCAB_SIZE = 288
WINDOW = 16

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# Families whose head dim is always hidden_size / num_attention_heads.
DERIVED = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
ALTERNATING = ["sliding_attention", "full_attention"]
GRANITE = {
    "intermediate_size": 128,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
GEMMA3 = {"sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64}
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
MLA = LATENT | {"kv_lora_rank": 512, "qk_nope_head_dim": 64, "v_head_dim": 64}
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
DEEPSEEK_V3 = (
    EXPERTS
    | SHARED_EXPERTS
    | MLA
    | {"model_type": "deepseek_v3", "n_group": 2, "topk_group": 1, "moe_layer_freq": 1}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "rope_scaling": YARN}
)
# So many heads of the index that no key's score is 0, which makes several equally good.
SPARSE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 12,
}
ROPES = {
    "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"},
    "full_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
_ATTENDS = {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False}
_FFN = {"ffn_mult": 1.3125, "no_op": False, "replace_with_linear": False}
NEMOTRON_BLOCKS = [
    {"attention": _ATTENDS, "ffn": _FFN},
    {"attention": _ATTENDS | {"no_op": True}, "ffn": _FFN},
    {"attention": _ATTENDS, "ffn": _FFN},
]
QWEN3_MOE = EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
GEMMA4 = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 3,
    "num_key_value_heads": 1,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 3,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
LLAMA4 = LOCAL_EXPERTS | {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": WINDOW,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 96,
    "rope_scaling": None,
    "use_qk_norm": True,
    # So that the few tokens of a test have several temperatures.
    "floor_scale": 8,
}
GEMMA3N = {
    "model_type": "gemma3n",
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "sliding_window": WINDOW,
    "rope_local_base_freq": 1000.0,
    "final_logit_softcapping": 30.0,
    "layer_types": ALTERNATING * 2,
    "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
    "hidden_size_per_layer_input": 32,
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 8,
}

LONGCAT = (
    recurrent_configs.LATENT
    | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_layers": 2, "ffn_hidden_size": 96}
    | {"attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 2}
    | {"n_routed_experts": 6, "moe_topk": 3, "expert_ffn_hidden_size": 32}
    | {"routed_scaling_factor": 1.5, "mla_scale_q_lora": True, "mla_scale_kv_lora": True}
)

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "afm7": {"hidden_dim": 128, "num_heads": 2, "num_kv_heads": 1, "num_layers": 4}
    | {"num_kv_reuse_layers": 2},
    "apertus": DERIVED | {"post_norm": False, "qk_norm": True},
    "bailing_moe": DERIVED
    | EXPERTS
    | {"num_shared_experts": 1, "norm_topk_prob": True, "first_k_dense_replace": 1},
    "bitnet": DERIVED | {"hidden_act": "relu2"},
    "cohere": DERIVED | {"use_qk_norm": True},
    "cohere2": DERIVED | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "dots1": EXPERTS | SHARED_EXPERTS | {"n_group": 1, "topk_group": 1},
    "ernie4_5": {"use_bias": True},
    "ernie4_5_moe": EXPERTS
    | {"use_bias": False, "moe_num_experts": 8, "moe_capacity": [], "moe_k": 2}
    | {"moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "exaone": DERIVED | {"num_layers": 2, "layer_norm_epsilon": 1e-5},
    "exaone4": {
        "intermediate_size": 128,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LG",
        "rope_scaling": None,
        "layer_types": ALTERNATING,
    },
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 64},
    "gemma3": {"text_config": BASE | GEMMA3 | {"model_type": "gemma3_text"}},
    "gemma3_text": GEMMA3,
    "glm": {"partial_rotary_factor": 1.0},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": EXPERTS
    | SHARED_EXPERTS
    | {"n_group": 1, "topk_group": 1, "rope_scaling": None, "use_qk_norm": True}
    | {"partial_rotary_factor": 0.5},
    "gpt_neox": DERIVED | {"layer_norm_eps": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gpt_oss": LOCAL_EXPERTS | {"sliding_window": WINDOW, "layer_types": ALTERNATING},
    "granite": DERIVED | GRANITE,
    "granitemoe": DERIVED | GRANITE | LOCAL_EXPERTS,
    "helium": DERIVED,
    "hunyuan_v1_dense": {},
    "internlm2": DERIVED,
    "internlm3": DERIVED | {"qkv_bias": False},
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": WINDOW},
    "llama": {},
    "mimo": DERIVED,
    "minimax": LOCAL_EXPERTS | {"rotary_dim": 32, "shared_intermediate_size": 0},
    "ministral3": {
        "layer_types": ALTERNATING,
        "sliding_window": WINDOW,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {},
    "mistral3": {"text_config": BASE | {"model_type": "llama"}},
    "mixtral": DERIVED | LOCAL_EXPERTS,
    "nanbeige": {"num_loops": 2},
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5},
    "olmo2": {},
    "olmo3": {"layer_types": ALTERNATING, "sliding_window": WINDOW},
    "olmoe": EXPERTS | {"intermediate_size": 32},
    "phi": DERIVED | {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
    "phi3": DERIVED,
    "phimoe": DERIVED | LOCAL_EXPERTS,
    "qwen2": DERIVED,
    "qwen2_moe": DERIVED | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": QWEN3_MOE,
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "smollm3": {"num_hidden_layers": 4},
    "stablelm": DERIVED
    | {"use_qkv_bias": True, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    "starcoder2": DERIVED | {"norm_epsilon": 1e-5},
    # Mixtures of experts.
    "Klear": DERIVED
    | EXPERTS
    | {"mlp_only_layers": [0], "decoder_sparse_step": 1, "n_shared_experts": 1}
    | {"norm_topk_prob": True},
    "afmoe": EXPERTS
    | {"layer_types": ALTERNATING, "sliding_window": WINDOW, "num_dense_layers": 1},
    "dbrx": {
        "d_model": 128,
        "n_layers": 2,
        "n_heads": 2,
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek": DERIVED | EXPERTS | SHARED_EXPERTS | {"norm_topk_prob": False},
    "deepseek_v2": EXPERTS
    | SHARED_EXPERTS
    | LATENT
    | {"topk_method": "greedy", "rope_scaling": YARN, "norm_topk_prob": False},
    "exaone_moe": EXPERTS
    | {"layer_types": ALTERNATING, "sliding_window": WINDOW, "num_shared_experts": 1}
    | {"is_moe_layer": [False, True]},
    "hunyuan": DERIVED
    | {"num_hidden_layers": 4, "moe_topk": 2, "num_experts": 4, "num_shared_expert": 1}
    | {"use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True, "cla_share_factor": 2}
    | {"rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "laguna": EXPERTS
    | {"layer_types": ALTERNATING, "sliding_window": WINDOW, "rope_parameters": ROPES}
    | {"shared_expert_intermediate_size": 32, "num_attention_heads_per_layer": [4, 8]},
    "mellum": EXPERTS
    | {"layer_types": ALTERNATING, "sliding_window": WINDOW, "rope_parameters": ROPES}
    | {"norm_topk_prob": True},
    "mimo_v2_flash": EXPERTS
    | SHARED_EXPERTS
    | {"hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 1], "sliding_window_size": WINDOW}
    | {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 1, "topk_group": 1}
    | {"layernorm_epsilon": 1e-5, "swa_rope_theta": 1000.0, "partial_rotary_factor": 0.5}
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}
    | {"head_dim": 192, "v_head_dim": 128, "swa_head_dim": 192, "swa_v_head_dim": 128},
    "solar_open": EXPERTS | SHARED_EXPERTS | {"partial_rotary_factor": 1.0},
    "step3p5": {
        "num_attention_groups": 2,
        "rope_theta": [10000.0, 1000.0],
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention"],
        "partial_rotary_factors": [0.5, 1.0],
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
        "moe_layers_enum": "1",
    },
    # Dense ones.
    "gpt2": {"n_ctx": 4096, "n_embd": 128, "n_head": 2, "n_layer": 2, "n_positions": 4096}
    | {"layer_norm_epsilon": 1e-5},
    "gpt_bigcode": {"n_embd": 128, "n_head": 2, "n_layer": 2, "n_inner": 96, "n_positions": 4096}
    | {"num_key_value_heads": 1, "layer_norm_epsilon": 1e-5},
    "gptj": {"n_embd": 128, "n_head": 2, "rotary_dim": 32, "n_layer": 2, "n_positions": 4096},
    "lille-130m": {"block_size": 4096, "n_layer": 2, "n_head": 2, "n_kv_heads": 1, "n_embd": 128}
    | {"layer_norm_eps": 1e-5, "tie_word_embeddings": True},
    "minicpm": DERIVED
    | {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12, "rope_scaling": None},
    "minicpm3": LATENT
    | {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12}
    | {
        "rope_scaling": {
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 32,
            "long_factor": [1.0 + i / 8 for i in range(32)],
        }
    },
    "muse_glimmer": {"layer_types": ALTERNATING, "sliding_window": WINDOW},
    "nanochat": DERIVED,
    "nemotron-nas": DERIVED | {"num_hidden_layers": 3, "block_configs": NEMOTRON_BLOCKS},
    "openelm": {
        "num_transformer_layers": 2,
        "model_dim": 64,
        "ffn_dim_divisor": 16,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 1],
        "ffn_multipliers": [1.0, 2.0],
    },
    "phixtral": {"num_vocab": VOCAB_SIZE, "model_dim": 128, "num_heads": 2, "num_layers": 2}
    | LOCAL_EXPERTS,
    "plamo": DERIVED | {"n_shared_head": 2},
    "qwen": DERIVED | {"kv_channels": 64},
    "spark2_5": {"layer_types": ALTERNATING, "sliding_window": WINDOW, "rope_parameters": ROPES},
    "talkie": DERIVED | {"head_dim": 64},
    "telechat3": {},
    "youtu_llm": LATENT | {"num_key_value_heads": 4},
    # Of vision, mlx-lm keeps the language model.
    "lfm2-vl": {"text_config": BASE | recurrent_configs.CONFIGS["lfm2"] | {"model_type": "lfm2"}},
    "pixtral": {"text_config": BASE | {"model_type": "mistral"}},
    "qwen2_vl": {"text_config": BASE | DERIVED | {"model_type": "qwen2"}},
    "qwen3_vl": {"text_config": BASE | {"model_type": "qwen3"}},
    "qwen3_vl_moe": {"text_config": BASE | QWEN3_MOE | {"model_type": "qwen3_moe"}},
    # Latent attention.
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": SPARSE,
    "glm_moe_dsa": SPARSE
    | {"rope_scaling": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "glm4_moe_lite": DEEPSEEK_V3 | {"rope_scaling": None},
    "kimi_k25": {"text_config": BASE | DEEPSEEK_V3},
    "kimi_vl": {"text_config": BASE | DEEPSEEK_V3},
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": LONGCAT
    | {"ngram_vocab_size_ratio": 3, "emb_neighbor_num": 4, "emb_split_num": 2},
    "mistral4": DEEPSEEK_V3
    | {
        "rope_scaling": None,
        "rope_parameters": YARN
        | {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1}
        | {"original_max_position_embeddings": 32},
    },
    "llama4": {"text_config": BASE | LLAMA4},
    "llama4_text": {
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 96,
        "no_rope_layers": [1, 1, 1, 0],
        "use_qk_norm": True,
    },
    # Layers that attend over what others keep.
    "gemma3n": {"text_config": BASE | GEMMA3N},
    "gemma4": {"text_config": BASE | GEMMA4 | {"model_type": "gemma4_text"}},
    "gemma4_text": GEMMA4,
    **recurrent_configs.CONFIGS,
}

# Variants of a family that take another way through the seam.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-sliding": {"layer_types": ALTERNATING, "sliding_window": WINDOW},
    "llama-llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "qwen3-yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "phi3-longrope": DERIVED
    | {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 24,
            "long_factor": [1.0 + i / 8 for i in range(24)],
        },
    },
    "gear-capped": recurrent_configs.CONFIGS["gear"] | {"attn_logit_softcapping": 5.0},
    "gemma2-dense": {"query_pre_attn_scalar": 64},
    "deepseek_v3-80": DEEPSEEK_V3 | {"kv_lora_rank": 64, "qk_rope_head_dim": 16},
    "deepseek_v32-320": SPARSE | {"index_topk": 320},
    "deepseek_v3-without-lora": DEEPSEEK_V3 | {"q_lora_rank": None},
    "gemma4_text-moe": GEMMA4
    | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "enable_moe_block": True}
    | {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
    | {"attention_k_eq_v": True, "num_key_value_heads": 2, "num_global_key_value_heads": 1},
    "llama-16": {"head_dim": 16},
    "qwen3-32": {"head_dim": 32},
    "llama-48": {"head_dim": 48},
    "qwen3-512": {"head_dim": 512},
}
REFUSED_CONFIGS: dict[str, dict[str, Any]] = {
    "plamo3": {"window_size": WINDOW, "sliding_window": WINDOW},
}
"""Those that mlx-lm builds and the trace must see through."""
WITHOUT_KERNELS = ("llama-16", "qwen3-32", "llama-48")
"""Those whose head dims only the reference takes."""
