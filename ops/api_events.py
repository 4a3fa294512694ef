"""What becomes of every event of the APIs' streams, by the names that their vendors' packages know.

The tests of this table hold it to those packages, and to what streams are seen to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sent:
    when: str


@dataclass(frozen=True)
class NeverSent:
    why: str
    """A stream without it is right."""


Fates = Mapping[str, Sent | NeverSent]

_NOT_RUN = NeverSent("tools that their vendor runs are dropped")
_NO_AUDIO = NeverSent("models here read and write text")
_NO_REFUSAL = NeverSent("what a model says is text: none marks its refusals")
_NO_SUMMARY = NeverSent("thoughts are told as they are")
_NO_QUEUE = NeverSent("nothing runs in the background, and a stream waits for its place in silence")
_NO_SOURCES = NeverSent("nothing is searched that could be cited")
_NO_FILTER = NeverSent("nothing is moderated")

RESPONSES: Fates = {
    "response.created": Sent("first"),
    "response.in_progress": Sent("second"),
    "response.output_item.added": Sent("a thought, a text or a call begins"),
    "response.output_item.done": Sent("it has ended"),
    "response.content_part.added": Sent("a text begins"),
    "response.content_part.done": Sent("it has ended"),
    "response.output_text.delta": Sent("there is more of a text, with logprobs if asked"),
    "response.output_text.done": Sent("a text has ended"),
    "response.reasoning_text.delta": Sent("there is more of a thought"),
    "response.reasoning_text.done": Sent("a thought has ended"),
    "response.function_call_arguments.delta": Sent("there is more of a call's arguments"),
    "response.function_call_arguments.done": Sent("a call's arguments have ended"),
    "response.custom_tool_call_input.delta": Sent("there is more of a custom tool's input"),
    "response.custom_tool_call_input.done": Sent("a custom tool's input has ended"),
    "response.completed": Sent("last, of an answer that has ended by itself"),
    "response.incomplete": Sent("last, of an answer as long as it may be"),
    "error": Sent("last, of a stream that breaks off"),
    "response.failed": NeverSent("a stream that breaks off ends with `error`"),
    "response.queued": _NO_QUEUE,
    "response.refusal.delta": _NO_REFUSAL,
    "response.refusal.done": _NO_REFUSAL,
    "response.reasoning_summary_part.added": _NO_SUMMARY,
    "response.reasoning_summary_part.done": _NO_SUMMARY,
    "response.reasoning_summary_text.delta": _NO_SUMMARY,
    "response.reasoning_summary_text.done": _NO_SUMMARY,
    "response.output_text.annotation.added": _NO_SOURCES,
    "response.compaction.compacting": NeverSent("a model is told all of what came before"),
    **dict.fromkeys(
        (
            "response.audio.delta",
            "response.audio.done",
            "response.audio.transcript.delta",
            "response.audio.transcript.done",
        ),
        _NO_AUDIO,
    ),
    **dict.fromkeys(
        (
            "response.code_interpreter_call.completed",
            "response.code_interpreter_call.in_progress",
            "response.code_interpreter_call.interpreting",
            "response.code_interpreter_call_code.delta",
            "response.code_interpreter_call_code.done",
            "response.file_search_call.completed",
            "response.file_search_call.in_progress",
            "response.file_search_call.searching",
            "response.image_generation_call.completed",
            "response.image_generation_call.generating",
            "response.image_generation_call.in_progress",
            "response.image_generation_call.partial_image",
            "response.mcp_call.completed",
            "response.mcp_call.failed",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.delta",
            "response.mcp_call_arguments.done",
            "response.mcp_list_tools.completed",
            "response.mcp_list_tools.failed",
            "response.mcp_list_tools.in_progress",
            "response.shell_call_command.added",
            "response.shell_call_command.delta",
            "response.shell_call_command.done",
            "response.shell_call_output_content.delta",
            "response.shell_call_output_content.done",
            "response.web_search_call.completed",
            "response.web_search_call.in_progress",
            "response.web_search_call.searching",
        ),
        _NOT_RUN,
    ),
}
MESSAGES: Fates = {
    "message_start": Sent("first"),
    "ping": Sent("second; later a comment shows that the stream is alive"),
    "content_block_start": Sent("a thought, a text or a call begins"),
    "content_block_delta": Sent("there is more of it"),
    "content_block_stop": Sent("it has ended"),
    "message_delta": Sent("the answer has ended, with why and with its usage"),
    "message_stop": Sent("last"),
    "error": Sent("last, of a stream that breaks off"),
}
MESSAGES_DELTAS: Fates = {
    "text_delta": Sent("of a text"),
    "thinking_delta": Sent("of a thought, unless thinking.display is `omitted`"),
    "signature_delta": Sent("a thought ends"),
    "input_json_delta": Sent("of a call's input"),
    "citations_delta": _NO_SOURCES,
}
MESSAGES_BLOCKS: Fates = {
    "text": Sent("the model says something"),
    "thinking": Sent("the model thinks"),
    "tool_use": Sent("the model calls a tool"),
    "redacted_thinking": NeverSent("nobody hides what was thought"),
    **dict.fromkeys(
        (
            "bash_code_execution_tool_result",
            "code_execution_tool_result",
            "container_upload",
            "server_tool_use",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "web_fetch_tool_result",
            "web_search_tool_result",
        ),
        _NOT_RUN,
    ),
}
MESSAGES_STOP_REASONS: Fates = {
    "end_turn": Sent("the model ends its answer"),
    "max_tokens": Sent("max_tokens is reached, or what the key's limits leave"),
    "stop_sequence": Sent("one of stop_sequences has come"),
    "tool_use": Sent("the model has called a tool"),
    "model_context_window_exceeded": Sent("the context is full"),
    "pause_turn": _NOT_RUN,
    "refusal": _NO_REFUSAL,
}
CHAT_CHUNK: Fates = {
    "id": Sent("always; the same in all chunks"),
    "object": Sent("always"),
    "created": Sent("always; the same in all chunks"),
    "model": Sent("always"),
    "choices": Sent("always; empty in the one with the usage"),
    "usage": Sent("include_usage, in a last chunk; null in others, or continuous_usage_stats"),
    "service_tier": Sent("the request names one"),
    "prompt_token_ids": Sent("return_token_ids, in the first chunk of a choice"),
    "moderation": _NO_FILTER,
    "obfuscation": NeverSent("events are padded for nobody"),
    "system_fingerprint": NeverSent("a seed gives the same answer at any replica of a model"),
}
CHAT_CHOICE: Fates = {
    "index": Sent("always"),
    "delta": Sent("always; empty in the last chunk of a choice"),
    "finish_reason": Sent("in the last chunk of a choice; null in the others"),
    "logprobs": Sent("logprobs; null without"),
    "token_ids": Sent("return_token_ids"),
}
CHAT_DELTA: Fates = {
    "role": Sent("in the first chunk of a choice"),
    "content": Sent("there is more of the text; empty in the first chunk"),
    "reasoning_content": Sent("there is more of a thought"),
    "reasoning": Sent("the same once more, for clients that look there"),
    "tool_calls": Sent("a call begins, with its name; then there is more of its arguments"),
    "function_call": Sent("in its place, where the request has functions"),
    "refusal": Sent("null, in the first chunk"),
    "audio": _NO_AUDIO,
}
CHAT_FINISH_REASONS: Fates = {
    "stop": Sent("the model ends its answer, or one of stop has come"),
    "length": Sent("max_tokens is reached, what the key's limits leave, or the context is full"),
    "tool_calls": Sent("the model has called a tool"),
    "function_call": Sent("in its place, where the request has functions"),
    "content_filter": _NO_FILTER,
}

STREAMS: Mapping[str, Mapping[str, Fates]] = {
    "/v1/chat/completions": {
        "member of a chunk": CHAT_CHUNK,
        "member of a choice": CHAT_CHOICE,
        "member of a delta": CHAT_DELTA,
        "finish_reason": CHAT_FINISH_REASONS,
    },
    "/v1/responses": {"event": RESPONSES},
    "/v1/messages": {
        "event": MESSAGES,
        "type of a delta": MESSAGES_DELTAS,
        "type of a block": MESSAGES_BLOCKS,
        "stop_reason": MESSAGES_STOP_REASONS,
    },
}
"""By the endpoint, and by what there are several kinds of."""
