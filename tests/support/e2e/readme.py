"""The README and the commands in it."""

from __future__ import annotations

import re

from tests.support.e2e.serve_process import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def block(name: str) -> str:
    """The code block below the marker ``<!-- test: name -->``."""
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"README.md has no block {name!r}"
    return found.group(1)
