"""Thoughts as ``encrypted_content`` of a response and ``signature`` of a message: some clients send
back this alone, and not the text beside it.

It is no cipher, since the text is no secret to whoever gets the answer, and it is bound to no API
key, since a request may hold any thought as text.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from deployments.protocol.strict import RefusedError

_PREFIX = "thought."
"""What other servers gave begins otherwise, and can't be read here."""


def carried(thought: str) -> str:
    return _PREFIX + base64.b64encode(thought.encode()).decode()


def read_carried(given: str) -> str:
    """The thought; empty for what another server gave. Raises ``RefusedError`` for what was
    changed on the way."""
    if not given.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(given.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise RefusedError("is not what this server gave") from error


def checked_thought(value: Any) -> Any:
    """``value``, of a field that may carry a thought, as it is. Raises as ``read_carried``."""
    if isinstance(value, str):
        read_carried(value)
    return value
