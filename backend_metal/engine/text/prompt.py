"""From a request's prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError

from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import ChatPrompt, InvalidRequestError, Prompt

_RESERVED_TEMPLATE_ARGUMENTS = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

# Whatever Python or Jinja raises while a template works on a client's messages is about them.
_TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, vocab_size: int) -> list[int]:
    """Token ids in ``[0, vocab_size)``, at least one.

    A string gets the special tokens that the tokenizer adds by itself; the rendering of a chat
    template gets none, since the template writes its own. Raises ``InvalidRequestError``.
    """
    if isinstance(prompt, ChatPrompt):
        param = "messages"
        text = _render(tokenizer, prompt)
        token_ids = _encode(tokenizer, text, param, add_special_tokens=False)
    elif isinstance(prompt, str):
        param = "prompt"
        begins_itself = bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
        token_ids = _encode(tokenizer, prompt, param, add_special_tokens=not begins_itself)
    else:
        param = "prompt"
        token_ids = list(prompt)
    if not token_ids:
        raise InvalidRequestError(f"{param} must give at least one token", param=param)
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has token id {token_id}; the model's are 0 to {vocab_size - 1}",
                param=param,
            )
    return token_ids


def _encode(tokenizer: Tokenizer, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} has an unpaired surrogate, which is no character: {error}", param=param
        ) from error
    return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _render(tokenizer: Tokenizer, prompt: ChatPrompt) -> str:
    if not _has_chat_template(tokenizer):
        raise InvalidRequestError(
            "this model has no chat template: use /v1/completions, or set engine.chat_template",
            param="messages",
        )
    if reserved := sorted(_RESERVED_TEMPLATE_ARGUMENTS & prompt.template_arguments.keys()):
        raise InvalidRequestError(
            f"{', '.join(reserved)} can't be set by a request", param="chat_template_kwargs"
        )
    if not prompt.messages:
        raise InvalidRequestError("messages must not be empty", param="messages")
    messages = [_flatten(index, message) for index, message in enumerate(prompt.messages)]
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, **{"add_generation_prompt": True, **prompt.template_arguments}
        )
    except _TEMPLATE_ERRORS as error:
        raise InvalidRequestError(
            f"the chat template refused the messages: {error}", param="messages"
        ) from error


def _has_chat_template(tokenizer: Any) -> bool:
    # mlx-lm's wrapper also knows templates that are Python functions.
    known = getattr(tokenizer, "has_chat_template", None)
    return tokenizer.chat_template is not None if known is None else bool(known)


def _flatten(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined: every template takes a string."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(
                f"messages[{index}].content must be a string or text parts; {kind!r} is not text",
                param="messages",
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}
