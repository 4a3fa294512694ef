from __future__ import annotations

import pytest

from deployments.settings import AppSettings
from ops.config_reference import DOCUMENT, embed, reference


def test_the_document_holds_the_current_reference() -> None:
    document = DOCUMENT.read_text()
    assert embed(document) == document, "run: python -m ops.config_reference --write"


def test_every_setting_has_a_row_that_says_what_it_means() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    names = [name for section in AppSettings.model_fields.values() for name in fields(section)]
    assert [row.split("`")[1] for row in rows] == names
    assert all(row.rstrip(" |").endswith(".") for row in rows)


def fields(section: object) -> list[str]:
    return list(section.annotation.model_fields)  # type: ignore[attr-defined]


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="configuration: begin"):
        embed("nothing here")
