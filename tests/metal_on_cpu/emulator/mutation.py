"""Sources with one barrier less."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .translate import tokens

_BARRIER = re.compile(r"\b(?:metal::)?((?:threadgroup|simdgroup)_barrier)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """`source` is the text of `file` without the barrier that stood in `line`."""

    file: str
    line: int
    barrier: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def without_a_barrier(source: str, file: str = "source.metal") -> Iterator[Mutant]:
    """`source` once for each of its barriers, in order."""
    # Comments keep their length, so that offsets stay.
    code = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    for match in _BARRIER.finditer(code):
        end = tokens.past_match(code, match.end() - 1, "(", ")")
        mutated = source[: match.start()] + "(void)0" + source[end:]
        yield Mutant(file, source.count("\n", 0, match.start()) + 1, match[1], mutated)


def folder_without_a_barrier(folder: Path) -> Iterator[Mutant]:
    """The same for every file below a folder of shaders."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".metal", ".h"):
            yield from without_a_barrier(path.read_text(), str(path.relative_to(folder)))
