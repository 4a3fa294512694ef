"""``string.Template`` for languages in which ``$`` means something."""

from __future__ import annotations

from pathlib import Path
from string import Template


class ConfigTemplate(Template):
    """Placeholders are ``%%{name}``."""

    delimiter = "%%"


def fill(name: str, values: dict[str, object]) -> str:
    """The template ``name`` of this folder, every placeholder with a value. A line that consists
    of an empty value goes away."""
    text = (Path(__file__).parent / name).read_text()
    lines = []
    for line in text.splitlines():
        filled = ConfigTemplate(line).substitute(values)
        if filled.strip() or not line.strip():
            lines.append(filled + "\n")
    return "".join(lines).replace("\n\n\n", "\n\n")
