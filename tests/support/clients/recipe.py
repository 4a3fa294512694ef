"""Lines to copy for a client, as its document has them, with a server in them."""

from __future__ import annotations

import shlex

from tests.support.documents import block

YOUR_HOST = "http://YOUR_HOST:8000"
YOUR_MODEL = "YOUR_MODEL"
YOUR_KEY = "YOUR_KEY"


def recipe(client: str, url: str, model: str, **others: str) -> str:
    """``others``: what else is the user's, such as ``TOKENIZER``."""
    text = block(client)
    given = {YOUR_HOST: url, YOUR_MODEL: model, YOUR_KEY: "none"}
    given |= {f"YOUR_{name}": value for name, value in others.items()}
    for name, value in given.items():
        text = text.replace(name, value)
    assert "YOUR_" not in text, text
    return text


def exports(lines: str) -> dict[str, str]:
    """The variables that they set for a command, which is the last of them."""
    *variables, command = lines.splitlines()
    words = [shlex.split(line.removeprefix("export ")) for line in variables]
    assert command
    return dict(one.split("=", 1) for [one] in words)


def arguments(lines: str) -> list[str]:
    """Of their only command."""
    _, *words = shlex.split(lines.replace("\\\n", ""))
    return words
