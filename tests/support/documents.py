"""The repository's documents, and the commands in them."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("", "backend_metal", "configs", "deployments", "deployments/protocol", "ops")
DOCUMENTS = {
    str(path.relative_to(REPOSITORY)): path.read_text()
    for folder in FOLDERS
    for path in sorted((REPOSITORY / folder).glob("*.md"))
}
"""The text of each, by its path."""


def block(name: str) -> str:
    """The code block below the marker ``<!-- test: name -->``, which one document has."""
    marked = re.compile(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", re.DOTALL)
    found = [code for text in DOCUMENTS.values() for code in marked.findall(text)]
    assert len(found) == 1, f"{len(found)} documents have a block {name!r}"
    return str(found[0])
