"""Names of calls, by which their results come back."""

from __future__ import annotations

from hashlib import blake2b

from deployments.protocol.chat_formats.reader import ChatFormat


def call_id(chat_format: ChatFormat, name: str, *, seed: str, number: int) -> str:
    """The same for the same ``seed``, so that whoever goes on with an answer gives its calls the
    names that they had. ``number`` counts the calls of the conversation."""
    digest = blake2b(seed.encode(), digest_size=12).hexdigest()
    match chat_format.call_ids:
        case "short":
            return digest[:9]
        case "numbered":
            return f"functions.{name}:{number}"
        case "plain":
            return f"call_{digest}"
