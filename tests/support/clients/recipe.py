"""Lines to copy for a client, as its document has them, with a server in them."""

from __future__ import annotations

import shlex

from tests.support.documents import block

YOUR_HOST = "http://YOUR_HOST:8000"
YOUR_MODEL = "YOUR_MODEL"
YOUR_KEY = "YOUR_KEY"
CONTEXT = 200_000
"""Of the model that does what its user says."""


def limits_of(context: int) -> dict[str, str]:
    """As the document tells to make them of a context."""
    output, compact = min(context // 8, 32_000), context * 3 // 4
    return {"CONTEXT": str(context), "OUTPUT": str(output), "COMPACT": str(compact)}


def recipe(client: str, url: str, model: str, context: int = CONTEXT, **others: str) -> str:
    """``context``: of the model, in tokens; ``others``: what else is the user's, such as
    ``TOKENIZER``."""
    text = block(client)
    given = {YOUR_HOST: url, YOUR_MODEL: model, YOUR_KEY: "none"}
    given |= {f"YOUR_{name}": value for name, value in {**limits_of(context), **others}.items()}
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
