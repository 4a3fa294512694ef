"""Fields of OpenAI's and vLLM's APIs that aren't served, by name.

Each has the values that ask for nothing, which clients send by default; any other value is a 400,
because an answer that ignores a field is a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VLLM_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "detokenize": (True,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": (),
    "min_tokens": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}

CHAT_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **VLLM_FIELDS,
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "enable_thinking": (),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "include_reasoning": (),
    "metadata": ({},),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

COMPLETION_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **VLLM_FIELDS,
    "best_of": (1,),
    "echo": (False,),
    "max_completion_tokens": (),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
}

MESSAGE_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}

CONTENT_PART_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "audio_url": (),
    "cache_control": (),
    "file": (),
    "image": (),
    "image_url": (),
    "input_audio": (),
    "prompt_cache_breakpoint": (),
    "refusal": (),
    "video_url": (),
}

STRUCTURED_OUTPUTS_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (True, False),
    "structural_tag": (),
    "whitespace_pattern": (),
}

TOOL_CALL_FIELDS: Mapping[str, tuple[Any, ...]] = {"custom": ()}

STREAM_OPTIONS_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}
