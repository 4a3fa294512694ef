"""Thoughts as ``encrypted_content``: some clients send back this alone, and not the text beside it.

It is no cipher, since the text is no secret to whoever gets the answer.
"""

from __future__ import annotations

import base64
import binascii

_PREFIX = "thought."
"""What other servers gave begins otherwise, and can't be read here."""


def carried(thought: str) -> str:
    return _PREFIX + base64.b64encode(thought.encode()).decode()


def read_carried(given: str) -> str:
    """The thought; empty for what another server gave. Raises ``ValueError`` for what was
    changed on the way."""
    if not given.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(given.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("is not what this server gave") from error
