"""Which tensors a checkpoint has, and which file each of them comes from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
"""Of the header's length, at the beginning of a file."""
LONGEST_HEADER = 100_000_000
"""As in the format's own library."""
MOST_NAMES = 3
"""In one message."""


class StoredTensor(NamedTuple):
    file: Path
    dtype: str
    """As the format spells it, such as ``F8_E4M3``."""
    shape: tuple[int, ...]
    begin: int
    end: int
    """Of its bytes in the file."""

    def same_bytes(self, other: StoredTensor) -> bool:
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        return np.array_equal(self._bytes(), other._bytes())

    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.memmap(self.file, mode="r")[self.begin : self.end]


class StoredTensors:
    """The tensors that the index lists, or without an index those of all files.

    A name that the index does not list is no tensor of the model, unless its file is one of the
    index: then it is what the index has forgotten.

    Raises:
        ValueError: naming the file, where a file is damaged, the index can't be read, a listed
            tensor is nowhere, or files without an index have different tensors of one name.
    """

    def __init__(self, checkpoint: Path) -> None:
        files = sorted(checkpoint.glob("model*.safetensors"))
        if not files:
            raise ValueError(
                f"{checkpoint} holds no model*.safetensors; `mlx_lm.convert` makes them from other "
                "formats"
            )
        self._headers = {file.name: read_header(file) for file in files}
        index = checkpoint / INDEX
        self._tensors = (
            self._listed(index)
            if index.is_file()
            else {name: _only(name, tensors) for name, tensors in self._by_name().items()}
        )
        self.files = {tensor.file for tensor in self._tensors.values()}
        if unused := [file.name for file in files if file not in self.files]:
            logger.warning(
                "%s: no weight comes from %s, which %s does not list",
                checkpoint,
                abridged(unused),
                INDEX,
            )

    @property
    def by_name(self) -> Mapping[str, StoredTensor]:
        return self._tensors

    def arrays(self) -> dict[str, mx.array]:
        """All of them, lazily; those in FP8 are bytes."""
        loaded: dict[Path, Any] = {file: mx.load(str(file)) for file in self.files}
        return {name: loaded[one.file][name] for name, one in self._tensors.items()}

    def _listed(self, index: Path) -> dict[str, StoredTensor]:
        listed, by_name = read_index(index), self._by_name()
        if missing := sorted(listed.keys() - by_name.keys()):
            shards = {listed[name] for name in missing}
            absent = sorted(shard for shard in shards if not (index.parent / shard).is_file())
            where = f"lacks {abridged(absent)}" if absent else f"has no tensor {abridged(missing)}"
            raise ValueError(f"{index.parent} {where}, which {index.name} lists")
        stale = {name for name, shard in listed.items() if name not in self._headers.get(shard, {})}
        if stale:
            logger.warning("%s is stale: %s lie in other files", index, abridged(sorted(stale)))
        tensors = {
            name: _only(name, by_name[name]) if name in stale else self._headers[shard][name]
            for name, shard in listed.items()
        }
        forgotten: dict[str, StoredTensor] = {}
        for file in sorted({tensor.file.name for tensor in tensors.values()}):
            forgotten |= self._headers[file]
        return forgotten | tensors

    def _by_name(self) -> dict[str, list[StoredTensor]]:
        by_name: dict[str, list[StoredTensor]] = {}
        for header in self._headers.values():
            for name, tensor in header.items():
                by_name.setdefault(name, []).append(tensor)
        return by_name


def _only(name: str, tensors: list[StoredTensor]) -> StoredTensor:
    first, *others = tensors
    for other in others:
        if not first.same_bytes(other):
            raise ValueError(
                f"{first.file.parent}: {first.file.name} and {other.file.name} have different "
                f"tensors of the name {name}, and no {INDEX} says which one counts; remove the "
                "file that is not the model's"
            )
    return first


def read_index(index: Path) -> dict[str, str]:
    """The file of each tensor. Raises ``ValueError`` naming the index when it is none."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{index} is no JSON: {error}; get it again, or remove it") from error
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not (
        isinstance(listed, dict)
        and listed
        and all(isinstance(shard, str) for shard in listed.values())
    ):
        raise ValueError(
            f"{index} must have a weight_map from names of tensors to names of files; get it "
            "again, or remove it"
        )
    return listed


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises ``ValueError`` unless the file is as long as it says."""
    size = file.stat().st_size
    broken = ValueError(
        f"{file} begins with no header of safetensors: it is no such file, or a download of it "
        "broke off; get it again"
    )
    with file.open("rb") as opened:
        first = opened.read(LENGTH_BYTES)
        length = int.from_bytes(first, "little")
        if len(first) < LENGTH_BYTES or not 2 <= length <= LONGEST_HEADER:
            raise broken
        text = opened.read(length)
    start = LENGTH_BYTES + length
    tensors: dict[str, StoredTensor] = {}
    if len(text) == length:
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            for name, one in header.items():
                begin, end = map(int, one["data_offsets"])
                shape = tuple(map(int, one["shape"]))
                tensors[name] = StoredTensor(file, one["dtype"], shape, start + begin, start + end)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise broken from error
    needed = max((tensor.end for tensor in tensors.values()), default=start)
    if size < needed:
        raise ValueError(
            f"{file} is not all there: it has {size:,} of {needed:,} bytes; a copy or download of "
            "it broke off, get it again"
        )
    return tensors


def abridged(names: Iterable[str]) -> str:
    """The first few, and how many others there are."""
    few = [*names]
    others = len(few) - MOST_NAMES
    return ", ".join(few[:MOST_NAMES]) + (f" and {others} others" if others > 0 else "")
