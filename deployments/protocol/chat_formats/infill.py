"""How families of models are asked for what stands between two texts, told by their vocabulary."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class InfillFormat:
    """``before``, ``between`` and ``behind`` stand around the two texts, and the answer follows."""

    before: str
    between: str
    behind: str = ""
    suffix_first: bool = False
    """Whether what comes behind the answer is the first of the two."""
    gap: str = ""
    """What the model expects between a marker and the prefix."""
    ends: tuple[str, ...] = ()
    """Further tokens that end an answer."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.before, self.between, self.behind)))

    def prompt(self, prefix: str, suffix: str) -> str:
        if self.suffix_first:
            return f"{self.before}{suffix}{self.between}{prefix}{self.behind}"
        return f"{self.before}{self.gap}{prefix}{self.between}{suffix}{self.behind}"


_QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
FORMATS = {
    "qwen": InfillFormat(*_QWEN, ends=(*_QWEN, "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")),
    "starcoder": InfillFormat(*_STARCODER, ends=(*_STARCODER, "<fim_pad>", "<file_sep>")),
    "deepseek": InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "codellama": InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", gap=" ", ends=("▁<EOT>",)),
    "codestral": InfillFormat("[SUFFIX]", "[PREFIX]", suffix_first=True),
}


def find_infill(tokens: Collection[str]) -> InfillFormat | None:
    """The first whose markers are all among ``tokens``."""
    found = (one for one in FORMATS.values() if all(marker in tokens for marker in one.markers))
    return next(found, None)
