"""Apple's container of compiled kernels (`.metallib`).

A header of section offsets, a list of functions, each a list of tagged fields, and the functions'
bitcode, one module each. Numbers are little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SECTIONS = struct.Struct("<8Q")  # offset and size of: functions, public, private metadata, bitcode
_SECTIONS_AT = 24


class MetalLibrary:
    """The functions of the file `path`. Raises `ValueError` for another format."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:4] != b"MTLB":
            raise ValueError(f"{path} is not a Metal library")
        functions, _, _, _, _, _, self._bitcode, _ = _SECTIONS.unpack_from(self._data, _SECTIONS_AT)
        self._places = dict(self._read_list(functions))

    @property
    def names(self) -> list[str]:
        return sorted(self._places)

    def bitcode(self, name: str) -> bytes:
        """The module of one function. Raises `KeyError`."""
        offset, size = self._places[name]
        begin = self._bitcode + offset
        return self._data[begin : begin + size]

    def _read_list(self, position: int) -> list[tuple[str, tuple[int, int]]]:
        (count,) = struct.unpack_from("<I", self._data, position)
        position += 4
        entries = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", self._data, position)
            fields = self._read_fields(position + 4)
            name = fields["NAME"].rstrip(b"\0").decode()
            offset = struct.unpack("<3Q", fields["OFFT"])[2]
            entries.append((name, (offset, struct.unpack("<Q", fields["MDSZ"])[0])))
            position += size
        return entries

    def _read_fields(self, position: int) -> dict[str, bytes]:
        fields = {}
        while (tag := self._data[position : position + 4]) != b"ENDT":
            (size,) = struct.unpack_from("<H", self._data, position + 4)
            fields[tag.decode()] = self._data[position + 6 : position + 6 + size]
            position += 6 + size
        return fields
