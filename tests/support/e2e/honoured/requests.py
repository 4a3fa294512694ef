"""Tables of requests."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.protocol.responses.request import LOGPROBS
from tests.support.e2e.honoured.rows import Elsewhere, Shown, Shows, Table
from tests.support.e2e.shaped_model import BOS_ID

GREEDY = {"temperature": 0.0, "max_tokens": 12}
LONG = {**GREEDY, "max_tokens": 40}
HOT = {"temperature": 2.0, "seed": 3, "max_tokens": 12}
TO_ITS_END = {**HOT, "max_tokens": 400}
REPEATS = {**GREEDY, "logit_bias": {"97": 100}}
"""Every token is an "a"."""
WRITES_A_MARKER = {**GREEDY, "logit_bias": {"258": 100}, "ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
FUNCTIONS = {"functions": [TOOL["function"]], "temperature": 0.0, "max_tokens": 120}
MESSAGES_TOOL = {"name": "look", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
RESPONSE_TOOL = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
CALLS = {"tools": [TOOL], "tool_choice": "required", "temperature": 0.0, "max_tokens": 120}
COLD = {"temperature": 0.0}
LONG_RESPONSE = {**COLD, "max_output_tokens": 40}
RESPONSE_CALLS = {
    **COLD,
    "tools": [RESPONSE_TOOL],
    "tool_choice": "required",
    "max_output_tokens": 120,
}
CONTINUES = {
    **GREEDY,
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "It is"}],
    "add_generation_prompt": False,
}

GENERATION: Shows = {
    "model": Elsewhere(
        "deployments/test_gateway_http.py", "test_a_model_answers_to_its_other_names"
    ),
    "allowed_token_ids": Shown([65, 66], GREEDY),
    "bad_words": Shown(["a"], REPEATS),
    "cache_salt": Elsewhere("backend_metal/test_engine.py", "test_salts_keep_tenants_apart"),
    "frequency_penalty": Shown(2.0, LONG),
    "guided_choice": Shown(["abc"], GREEDY),
    "guided_grammar": Shown('root ::= "abc"', GREEDY),
    "guided_json": Shown({"const": "abc"}, GREEDY),
    "guided_regex": Shown("abc", GREEDY),
    "ignore_eos": Shown(True, TO_ITS_END),
    "include_stop_str_in_output": Shown(True, {**REPEATS, "stop": ["aa"]}),
    "logit_bias": Shown({"65": 100}, GREEDY),
    "max_tokens": Shown(3, {"temperature": 0.0}),
    "min_p": Shown(1.0, HOT),
    "min_tokens": Shown(400, TO_ITS_END),
    "n": Shown(2, GREEDY),
    "presence_penalty": Shown(2.0, LONG),
    "priority": Elsewhere(
        "backend_metal/test_scheduler.py", "test_lower_priority_numbers_run_first"
    ),
    "prompt_cache_key": Elsewhere(
        "deployments/test_routing_affinity.py", "test_a_prompt_cache_key_is_a_session"
    ),
    "prompt_logprobs": Shown(1, GREEDY),
    "repetition_penalty": Shown(10.0, LONG),
    "response_format": Shown({"type": "json_object"}, GREEDY),
    "return_token_ids": Shown(True, GREEDY),
    "seed": Shown(5, {"temperature": 2.0, "max_tokens": 12}),
    "skip_special_tokens": Shown(False, WRITES_A_MARKER),
    "stop": Shown(["aa"], REPEATS),
    "stop_token_ids": Shown([97], REPEATS),
    "stream": Shown(True, GREEDY),
    "stream_options": Shown({"include_usage": True}, {**GREEDY, "stream": True}),
    "structured_outputs": Shown({"regex": "abc"}, GREEDY),
    "temperature": Shown(0.0, {"seed": 3, "max_tokens": 12}),
    "top_k": Shown(1, HOT),
    "top_p": Shown(0.01, HOT),
    "truncate_prompt_tokens": Shown(4, GREEDY),
}
REASONING = "deployments/test_reasoning.py"
STORED = "deployments/test_stored_responses.py"
TEMPLATE_IS_TOLD = Elsewhere(REASONING, "test_what_the_template_is_told")
EFFORT_OF_A_RESPONSE = Elsewhere(
    "deployments/test_responses.py", "test_how_hard_it_thinks_is_told_to_the_template"
)
THINKING_OF_MESSAGES = Elsewhere("deployments/test_messages.py", "test_how_much_it_thinks")
HAS_A_BUDGET = Elsewhere(REASONING, "test_thoughts_have_a_budget")
REQUESTS: Mapping[str, Table] = {
    "ChatCompletionRequest": Table(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}]},
        {
            **GENERATION,
            "add_generation_prompt": Shown(False, GREEDY),
            "chat_template_kwargs": TEMPLATE_IS_TOLD,
            "continue_final_message": Shown(True, CONTINUES),
            "enable_thinking": TEMPLATE_IS_TOLD,
            "function_call": Shown({"name": "look"}, FUNCTIONS),
            "functions": Shown([TOOL["function"]], GREEDY),
            "include_reasoning": Elsewhere(
                "deployments/test_tool_calls.py", "test_thoughts_may_be_left_out"
            ),
            "logprobs": Shown(True, GREEDY),
            "max_completion_tokens": Shown(3, {"temperature": 0.0}),
            "messages": Shown([{"role": "user", "content": "Bye"}], GREEDY),
            "parallel_tool_calls": Shown(False, {**CALLS, "seed": 1, "temperature": 1.0}),
            "reasoning": TEMPLATE_IS_TOLD,
            "reasoning_effort": TEMPLATE_IS_TOLD,
            "return_tokens_as_token_ids": Shown(True, {**GREEDY, "logprobs": True}),
            "service_tier": Shown("default", GREEDY),
            "thinking": TEMPLATE_IS_TOLD,
            "thinking_budget": HAS_A_BUDGET,
            "thinking_token_budget": HAS_A_BUDGET,
            "tool_choice": Shown("required", {**CALLS, "tool_choice": None}),
            "tools": Shown([TOOL], GREEDY),
            "top_logprobs": Shown(2, {**GREEDY, "logprobs": True}),
        },
    ),
    "CompletionRequest": Table(
        "/v1/completions",
        {"prompt": "Hello"},
        {
            **GENERATION,
            "echo": Shown(True, GREEDY),
            "logprobs": Shown(1, GREEDY),
            "prompt": Shown("Bye", GREEDY),
            "return_tokens_as_token_ids": Shown(True, {**GREEDY, "logprobs": 1}),
            "suffix": Elsewhere(
                "deployments/test_infill.py", "test_each_family_is_asked_in_its_own_way"
            ),
        },
    ),
    "MessagesRequest": Table(
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12},
        {
            "max_tokens": Shown(3, {"temperature": 0.0}),
            "messages": Shown([{"role": "user", "content": "Bye"}], {"temperature": 0.0}),
            "metadata": Elsewhere(
                "deployments/test_gateway_routing.py",
                "test_a_user_of_the_messages_api_is_a_session",
            ),
            "model": GENERATION["model"],
            "output_config": Shown(
                {"format": {"type": "json_schema", "schema": {"const": "abc"}}},
                {"temperature": 0.0},
            ),
            "stop_sequences": Shown(["*"], {"temperature": 0.0}),
            "stream": Shown(True, {"temperature": 0.0}),
            "system": Shown("Be brief.", {"temperature": 0.0}),
            "temperature": Shown(0.0),
            "thinking": THINKING_OF_MESSAGES,
            "tool_choice": Shown(
                {"type": "any"},
                {"tools": [MESSAGES_TOOL], "temperature": 0.0, "max_tokens": 120},
            ),
            "tools": Shown([MESSAGES_TOOL], {"temperature": 0.0}),
            "top_k": Shown(1),
            "top_p": Shown(0.01),
        },
    ),
    "ResponsesRequest": Table(
        "/v1/responses",
        {"input": "Hello", "max_output_tokens": 12},
        {
            "frequency_penalty": Shown(2.0, LONG_RESPONSE),
            "include": Shown([LOGPROBS], COLD),
            "input": Shown("Bye", COLD),
            "instructions": Shown("Be brief.", COLD),
            "max_output_tokens": Shown(3, COLD),
            "metadata": Shown({"a": "b"}, COLD, told="metadata"),
            "model": GENERATION["model"],
            "parallel_tool_calls": Shown(False, {**RESPONSE_CALLS, "temperature": 1.0}),
            "presence_penalty": Shown(2.0, LONG_RESPONSE),
            "previous_response_id": Elsewhere(
                STORED, "test_the_next_goes_on_with_all_that_was_said"
            ),
            "prompt_cache_key": GENERATION["prompt_cache_key"],
            "reasoning": EFFORT_OF_A_RESPONSE,
            "safety_identifier": Shown("a", COLD, told="safety_identifier"),
            "store": Elsewhere(STORED, "test_store_false_keeps_nothing"),
            "stream": Shown(True, COLD),
            "temperature": Shown(0.0),
            "text": Shown({"format": {"type": "json_object"}}, COLD),
            "tool_choice": Shown("required", {**RESPONSE_CALLS, "tool_choice": None}),
            "tools": Shown([RESPONSE_TOOL], COLD),
            "top_logprobs": Shown(2, {**COLD, "include": [LOGPROBS]}),
            "top_p": Shown(0.01),
            "user": Shown("a", COLD, told="user"),
        },
    ),
    "EmbeddingRequest": Table(
        "/v1/embeddings",
        {"input": "Hello there"},
        {
            "dimensions": Shown(3),
            "encoding_format": Shown("base64"),
            "input": Shown("Bye"),
            "model": GENERATION["model"],
            "priority": GENERATION["priority"],
            "truncate_prompt_tokens": Shown(4),
        },
    ),
    "RerankRequest": Table(
        "/v1/rerank",
        {"query": "Hello", "documents": ["one", "another"]},
        {
            "documents": Shown(["one", "two", {"text": "three"}]),
            "model": GENERATION["model"],
            "priority": GENERATION["priority"],
            "query": Shown("Bye"),
            "return_documents": Shown(False),
            "top_n": Shown(1),
        },
    ),
    "TokenizePrompt": Table(
        "/tokenize",
        {"prompt": "Hello"},
        {
            "add_special_tokens": Shown(False),
            "model": GENERATION["model"],
            "prompt": Shown("Bye"),
            "return_token_strs": Shown(True),
        },
    ),
    "TokenizeContent": Table(
        "/tokenize",
        {"content": "Hello"},
        {
            "add_special": Shown(True),
            "content": Shown("Bye"),
            "model": GENERATION["model"],
            "with_pieces": Shown(True),
        },
    ),
    "DetokenizeRequest": Table(
        "/detokenize",
        {"tokens": [72, 105]},
        {"model": GENERATION["model"], "tokens": Shown([BOS_ID, 66])},
    ),
}
