"""The ``response`` object: what was asked, told back, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from deployments.backend import SamplingParams
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.responses.tools import HostedTool
from deployments.replica.answer_json import encode
from deployments.replica.fold import Usage
from deployments.wire.envelope import Envelope

Status = Literal["in_progress", "completed", "incomplete"]


class ResponseObject:
    def __init__(
        self, asked: ResponsesRequest, envelope: Envelope, sampling: SamplingParams
    ) -> None:
        """``sampling``: what came of the request and the model's defaults."""
        self._sampling = sampling
        self._asked = asked
        self._created = envelope.created
        self._id = f"resp_{envelope.answer_id}"
        self._is_stored = envelope.is_stored

    def json(
        self,
        status: Status,
        output: Sequence[str] = (),
        usage: Usage | None = None,
        completed_at: int | None = None,
    ) -> str:
        """``output``: the JSON of each item."""
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        members = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": completed_at,
            "status": status,
            "incomplete_details": reason,
            "error": None,
            "usage": _usage(usage) if usage is not None else None,
            **self._told_back(),
        }
        return f'{encode(members)[:-1]},"output":[{",".join(output)}]}}'

    def _told_back(self) -> dict[str, Any]:
        asked = self._asked
        return {
            "model": asked.model,
            "previous_response_id": asked.previous_response_id,
            "instructions": asked.instructions,
            "tools": [tool.as_json() for tool in asked.tools if not isinstance(tool, HostedTool)],
            "tool_choice": asked.tool_choice,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "truncation": "disabled",
            "text": _text(asked),
            "reasoning": {"effort": asked.reasoning.effort, "summary": None},
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "top_logprobs": asked.top_logprobs,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "store": self._is_stored,
            "background": False,
            "service_tier": "default",
            "metadata": asked.metadata,
            "user": asked.user,
            "safety_identifier": asked.safety_identifier,
            "prompt_cache_key": asked.prompt_cache_key,
        }


def _text(asked: ResponsesRequest) -> dict[str, Any]:
    wanted = asked.text.format
    told: dict[str, Any] = {"type": wanted.type}
    if wanted.type == "json_schema":
        told |= {
            "name": wanted.name,
            "description": wanted.description,
            "schema": wanted.json_schema,
            "strict": True,
        }
    return {"format": told, "verbosity": asked.text.verbosity or "medium"}


def _usage(usage: Usage) -> dict[str, Any]:
    told = usage.as_json()
    return {
        "input_tokens": told["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": told["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": told["total_tokens"],
    }
