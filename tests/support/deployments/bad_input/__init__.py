"""Requests that must be refused, and how: data for the parser, the replica and the whole system."""

from __future__ import annotations

from tests.support.deployments.bad_input.bodies import bodies
from tests.support.deployments.bad_input.case import BadInput
from tests.support.deployments.bad_input.chat import chat_fields, chat_messages
from tests.support.deployments.bad_input.chat_tools import chat_tools
from tests.support.deployments.bad_input.completions import completion_fields
from tests.support.deployments.bad_input.generation import token_fields, unsupported
from tests.support.deployments.bad_input.grammars import grammars
from tests.support.deployments.bad_input.responses import responses
from tests.support.deployments.bad_input.server_side import only_the_server_knows

__all__ = ["BadInput", "bad_inputs"]


def bad_inputs(*, model: str, max_body_bytes: int, max_model_len: int) -> list[BadInput]:
    return [
        *bodies(model, max_body_bytes),
        *chat_fields(model),
        *chat_messages(model),
        *completion_fields(model),
        *chat_tools(model),
        *grammars(model),
        *responses(model),
        *token_fields(model),
        *unsupported(model),
        *only_the_server_knows(model, max_model_len),
    ]
