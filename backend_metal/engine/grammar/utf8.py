"""Characters of which a part has come."""

MOST_BYTES_TO_COME = 3
"""Of a character that has begun."""


def is_cut(text: bytes) -> bool:
    """Whether it ends in a part of a UTF-8 character."""
    for length in range(1, min(len(text), MOST_BYTES_TO_COME) + 1):
        byte = text[-length]
        if byte >= 0xC0:
            return length < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return False
