"""What a document points to exists."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import DOCUMENTS, REPOSITORY

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: str) -> None:
    broken = []
    for link in LINK.findall(DOCUMENTS[path]):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (REPOSITORY / path).parent / file if file else REPOSITORY / path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS)
def test_commands_of_this_repository_exist(path: str) -> None:
    for module in re.findall(r"python -m ((?:ops|deployments|tests)[\w.]*\w)", DOCUMENTS[path]):
        file = REPOSITORY / module.replace(".", "/")
        assert (file / "__main__.py").exists() or file.with_suffix(".py").exists(), module
