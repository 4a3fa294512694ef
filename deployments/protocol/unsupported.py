"""The fields of OpenAI's and vLLM's APIs that nothing here stands behind, by name, and what becomes
of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from deployments.protocol.field_rules import FieldRules, Refused, WithoutEffect

MAX_PAIRS = 16
"""Of metadata; OpenAI's own bound."""

_TEXT = ("a string", str)
_FOR_THE_VENDOR = "it is kept with the answer for the vendor's own pages, of which there are none"
_CACHE_CONTROL = WithoutEffect(
    "prefixes are cached whatever is marked",
    'an object such as {"type": "ephemeral"}',
    dict[str, Any],
)
_OWN_WEIGHTS = "the engine draws one continuation at a time"
_TEXT_ALONE = "models here read and write text"

IDENTIFIERS: FieldRules = {
    "metadata": WithoutEffect(
        _FOR_THE_VENDOR,
        f"an object of at most {MAX_PAIRS} strings",
        Annotated[dict[str, str], Field(max_length=MAX_PAIRS)],
    ),
    "safety_identifier": WithoutEffect("nobody is watched for abuse", *_TEXT),
    "store": WithoutEffect(_FOR_THE_VENDOR, "a boolean", bool),
    "user": WithoutEffect("keys, not users, have limits and shares", *_TEXT),
}

VLLM_FIELDS: FieldRules = {
    "detokenize": Refused("answers are text", (True,)),
    "early_stopping": Refused(_OWN_WEIGHTS, (False,)),
    "ec_transfer_params": Refused("no key or value leaves its engine"),
    "kv_transfer_params": Refused("no key or value leaves its engine"),
    "length_penalty": Refused(_OWN_WEIGHTS, (1, 1.0)),
    "logits_processors": Refused("it would run a client's Python"),
    "logprob_token_ids": Refused("alternatives are the most likely tokens"),
    "prompt_embeds": Refused(_TEXT_ALONE),
    "repetition_detection": Refused("an answer may repeat itself"),
    "request_id": WithoutEffect("the header X-Request-Id names a request", *_TEXT),
    "session_id": WithoutEffect("headers and prompt_cache_key name a session", *_TEXT),
    "spaces_between_special_tokens": Refused("the tokenizer says what is between tokens", (True,)),
    "stream_interval": WithoutEffect(
        "an event is sent as soon as there is something to tell",
        "an integer of at least 1",
        Annotated[int, Field(ge=1)],
    ),
    "truncation_side": Refused("a prompt that is truncated keeps its end", ("left",)),
    "use_beam_search": Refused(_OWN_WEIGHTS, (False,)),
    "vllm_xargs": Refused("there are no extensions that read them", ({},)),
    "watermarking": Refused("answers bear no mark", (False,)),
}

_OWN_SAMPLING = "tokens are drawn in the ways that the fields of OpenAI and vLLM name"

LOCAL_SERVERS_FIELDS: FieldRules = {
    "cache_prompt": WithoutEffect("prefixes are cached as there is room", "a boolean", bool),
    "dry_multiplier": Refused(_OWN_SAMPLING, (0, 0.0)),
    "dynatemp_range": Refused(_OWN_SAMPLING, (0, 0.0)),
    "grammar": Refused("structured_outputs has one", ("",)),
    "id_slot": WithoutEffect("the engine says where an answer is made", "an integer", int),
    "keep_alive": WithoutEffect("models stay loaded", "a string or an integer", str | int),
    "mirostat": Refused(_OWN_SAMPLING, (0,)),
    "n_keep": Refused("no context is shifted", (0, -1)),
    "n_predict": Refused("max_tokens is its name here", (-1,)),
    "n_probs": Refused("logprobs is its name here", (0,)),
    "num_predict": Refused("max_tokens is its name here", (-1,)),
    "options": Refused("fields stand beside the messages here", ({},)),
    "repeat_penalty": Refused("repetition_penalty is its name here", (1, 1.0)),
    "return_progress": Refused("no event tells of a prompt's progress", (False,)),
    "tfs_z": Refused(_OWN_SAMPLING, (1, 1.0)),
    "timings_per_token": WithoutEffect("usage tells of the tokens", "a boolean", bool),
    "top_n_sigma": Refused(_OWN_SAMPLING, (-1, -1.0)),
    "typical_p": Refused(_OWN_SAMPLING, (1, 1.0)),
    "xtc_probability": Refused(_OWN_SAMPLING, (0, 0.0)),
}
"""llama.cpp's and Ollama's."""

CHAT_FIELDS: FieldRules = {
    **VLLM_FIELDS,
    **LOCAL_SERVERS_FIELDS,
    **IDENTIFIERS,
    "add_special_tokens": Refused("templates write their own", (False,)),
    "audio": Refused(_TEXT_ALONE),
    "best_of": Refused(_OWN_WEIGHTS, (1,)),
    "chat_template": Refused("templates are programs: engine.chat_template may name another"),
    "documents": Refused("templates get messages and tools", ([],)),
    "echo": Refused("a chat's prompt is no text of the client's", (False,)),
    "media_io_kwargs": Refused(_TEXT_ALONE),
    "mm_processor_kwargs": Refused(_TEXT_ALONE),
    "modalities": Refused(_TEXT_ALONE, (["text"],)),
    "moderation": Refused("nothing is moderated"),
    "prediction": WithoutEffect("an answer is the same without it", "an object", dict[str, Any]),
    "prompt_cache_options": WithoutEffect(
        "prefixes are cached as the engine has room", "an object", dict[str, Any]
    ),
    "prompt_cache_retention": WithoutEffect(
        "prefixes are cached as long as there is room",
        '"in_memory", "in-memory" or "24h"',
        Literal["in_memory", "in-memory", "24h"],
    ),
    "suffix": Refused("a chat has no text to fit in", ("",)),
    "verbosity": WithoutEffect(
        "it is a hint, which no open model knows",
        '"low", "medium" or "high"',
        Literal["low", "medium", "high"],
    ),
    "web_search_options": Refused("nothing is searched"),
}

COMPLETION_FIELDS: FieldRules = {
    **VLLM_FIELDS,
    **LOCAL_SERVERS_FIELDS,
    **IDENTIFIERS,
    "add_special_tokens": Refused("the tokenizer adds its own, if they are not sent", (True,)),
    "best_of": Refused(_OWN_WEIGHTS, (1,)),
    "max_completion_tokens": Refused("max_tokens is its name here"),
    "service_tier": WithoutEffect(
        "there is one tier", '"auto" or "default"', Literal["auto", "default"]
    ),
}

_POOLING_FIELDS: FieldRules = {
    "add_special_tokens": Refused("texts are read as the model was trained to", (True,)),
    "media_io_kwargs": Refused(_TEXT_ALONE),
    "mm_processor_kwargs": Refused(_TEXT_ALONE),
    "user": IDENTIFIERS["user"],
}

EMBEDDING_FIELDS: FieldRules = {
    **_POOLING_FIELDS,
    "embed_dtype": Refused("vectors are of 32-bit floats", ("float32",)),
    "endianness": Refused("base64 is of little-endian floats", ("native", "little")),
    "messages": Refused("input is its name here"),
    "normalize": Refused("the checkpoint says whether vectors have the length 1"),
    "use_activation": Refused("the checkpoint says whether vectors have the length 1"),
}

RERANK_FIELDS: FieldRules = {
    **_POOLING_FIELDS,
    "instruction": Refused("the model's chat template says what is asked of it"),
    "max_tokens_per_doc": Refused("documents are read as they were sent"),
    "rank_fields": Refused("documents are texts", (["text"],)),
    "truncate_prompt_tokens": Refused("documents are read as they were sent"),
    "use_activation": Refused("scores are from 0 to 1, or cosines", (True,)),
}

MESSAGE_FIELDS: FieldRules = {
    "annotations": WithoutEffect(
        "they tell of the text what no template writes", "an array of objects", list[dict[str, Any]]
    ),
    "audio": Refused(_TEXT_ALONE),
    "cache_control": _CACHE_CONTROL,
    # LiteLLM's answers have it, and those who go on with one send it back.
    "provider_specific_fields": WithoutEffect(
        "no template writes what others told of an answer", "an object", dict[str, Any]
    ),
    "refusal": WithoutEffect("it is the content where there is no other", *_TEXT),
}

CONTENT_PART_FIELDS: FieldRules = {
    "audio_url": Refused(_TEXT_ALONE),
    "cache_control": _CACHE_CONTROL,
    "file": Refused(_TEXT_ALONE),
    "image": Refused(_TEXT_ALONE),
    "image_url": Refused(_TEXT_ALONE),
    "input_audio": Refused(_TEXT_ALONE),
    "prompt_cache_breakpoint": _CACHE_CONTROL,
    "refusal": Refused("no template writes refusals"),
    "video_url": Refused(_TEXT_ALONE),
}

_EARLIER_THOUGHTS = "the model's template says which thoughts it sees again"

THINKING_FIELDS: FieldRules = {
    "clear_thinking": Refused(_EARLIER_THOUGHTS, (True,)),
    "keep": Refused(_EARLIER_THOUGHTS),
}

STRUCTURED_OUTPUTS_FIELDS: FieldRules = {
    "disable_additional_properties": Refused("the schema says it", (False,)),
    "disable_any_whitespace": Refused("blanks between members are the model's choice", (False,)),
    "disable_fallback": WithoutEffect(
        "there is one library, without a fallback", "a boolean", bool
    ),
    "whitespace_pattern": Refused("blanks between members are bounded here"),
}

FUNCTION_FIELDS: FieldRules = {"cache_control": _CACHE_CONTROL}

TOOL_FIELDS: FieldRules = {
    "cache_control": _CACHE_CONTROL,
    "custom": Refused("calls are of functions"),
    "defer_loading": WithoutEffect("the model is told of every tool", "a boolean", bool),
    "eager_input_streaming": WithoutEffect(
        "arguments are sent as they are drawn", "a boolean", bool
    ),
}

TOOL_CALL_FIELDS: FieldRules = {
    "custom": Refused("calls are of functions"),
    "index": WithoutEffect("calls stand in their order", "an integer", int),
}

STREAM_OPTIONS_FIELDS: FieldRules = {
    "include_obfuscation": WithoutEffect(
        "events are padded for nobody: connections are the deployment's own", "a boolean", bool
    ),
}

_TOLD_WITH_TEXT = WithoutEffect(
    "no template writes what was told beside a text", "an array of objects", list[dict[str, Any]]
)
_OF_THE_VENDOR = "it is about what its vendor runs beside the model"

RESPONSES_FIELDS: FieldRules = {
    "access_programs": Refused(_OF_THE_VENDOR),
    "background": Refused("an answer is made while its client waits", (False,)),
    "background_options": Refused("an answer is made while its client waits"),
    "client_metadata": WithoutEffect(
        "it is for the vendor's own statistics", "an object", dict[str, Any]
    ),
    "context_management": WithoutEffect(
        "edits make room, and here all that was said has room or is refused",
        "an array of objects",
        list[dict[str, Any]],
    ),
    "conversation": Refused("responses are kept, and previous_response_id names them"),
    "image": Refused(_TEXT_ALONE),
    "max_tool_calls": WithoutEffect(
        "it counts calls of tools that the vendor runs",
        "an integer of at least 1",
        Annotated[int, Field(ge=1)],
    ),
    "moderation": Refused("nothing is moderated"),
    "personality": WithoutEffect("it is a hint, which no open model knows", *_TEXT),
    "prompt": Refused("prompts are kept with their answers alone"),
    "prompt_cache_options": CHAT_FIELDS["prompt_cache_options"],
    "prompt_cache_retention": CHAT_FIELDS["prompt_cache_retention"],
    "truncation": Refused("what is left out of a prompt is the client's choice", ("disabled",)),
}

RESPONSES_STREAM_OPTIONS_FIELDS: FieldRules = {
    "include_obfuscation": STREAM_OPTIONS_FIELDS["include_obfuscation"]
}

RESPONSES_REASONING_FIELDS: FieldRules = {
    "context": Refused(_EARLIER_THOUGHTS, ("auto",)),
    "generate_summary": WithoutEffect(
        "thoughts are told in full", "a string", Literal["auto", "concise", "detailed"]
    ),
    "mode": Refused("there is one mode", ("standard",)),
    "summary": WithoutEffect(
        "thoughts are told in full",
        '"auto", "concise", "detailed" or "none"',
        Literal["auto", "concise", "detailed", "none"],
    ),
}

RESPONSES_TEXT_PART_FIELDS: FieldRules = {
    "annotations": _TOLD_WITH_TEXT,
    "logprobs": _TOLD_WITH_TEXT,
    "prompt_cache_breakpoint": _CACHE_CONTROL,
}

RESPONSES_ITEM_FIELDS: FieldRules = {
    "caller": WithoutEffect("no template writes who called", "an object", dict[str, Any]),
    "id": WithoutEffect("items are known by their place", *_TEXT),
    "internal_chat_message_metadata_passthrough": WithoutEffect(
        "it is for the vendor's own statistics", "an object", dict[str, Any]
    ),
    "phase": WithoutEffect("no template writes it", *_TEXT),
    "status": WithoutEffect(
        "what was said was said",
        '"in_progress", "completed" or "incomplete"',
        Literal["in_progress", "completed", "incomplete"],
    ),
}

RESPONSES_CALL_FIELDS: FieldRules = {
    **RESPONSES_ITEM_FIELDS,
    "async": WithoutEffect("a call was answered when it was", "a boolean", bool),
}

RESPONSES_OUTPUT_FIELDS: FieldRules = {
    **RESPONSES_ITEM_FIELDS,
    "name": WithoutEffect("a call is known by its id", *_TEXT),
    "namespace": WithoutEffect("a call is known by its id", *_TEXT),
}

RESPONSES_TOOL_FIELDS: FieldRules = {
    "allowed_callers": Refused("a model calls tools itself", (["direct"],)),
    "async": Refused("answers end with their calls", (False,)),
    "cache_control": _CACHE_CONTROL,
    "defer_loading": TOOL_FIELDS["defer_loading"],
    "output_schema": WithoutEffect(
        "no template writes what calls give back", "an object", dict[str, Any]
    ),
}
