"""Beats: what a replica sends while it makes an answer that isn't streamed.

A beat keeps the connection alive and tells of the tokens that there are by then, so that an answer
nobody waits for any longer is known by its cost, too. The body's usage has the last word.
"""

from __future__ import annotations

BEAT = b" "
"""JSON may begin with white space."""
TOKEN_BEAT = b"\n"
"""Follows a beat, once for each token since the last one; no encoder writes it into the body."""


def beat(num_new_tokens: int) -> bytes:
    return BEAT + TOKEN_BEAT * num_new_tokens
