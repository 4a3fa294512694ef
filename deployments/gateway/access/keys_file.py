"""The files that API keys are in: one key a line, or YAML with names and limits.

A file whose name ends in ``.yaml`` or ``.yml`` looks like this; every key of an entry but ``name``
and one of ``key`` and ``sha256`` may be left out, and those two may be lists while a key is being
replaced::

    keys:
      - name: search
        sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b
        requests_per_minute: 600
        tokens_per_minute: 200000
        max_concurrent_requests: 16
        priority: -1
        weight: 2
        operator: true
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from deployments.gateway.access.api_keys import ApiKey, KeyRing, key_digest
from deployments.gateway.access.rate_limits import RateLimits
from deployments.settings import GatewaySettings, SettingsError

logger = logging.getLogger(__name__)

SETTING = "gateway.api_keys_file"
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 8
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_MISTAKES = 5
"""Told of one file."""
YAML_SUFFIXES = (".yaml", ".yml")

# Ten times as fast, where PyYAML was built with it: who parses holds up everybody's threads.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DIGEST_PATTERN = r"^[0-9a-fA-F]{64}$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


class UnreadableError(SettingsError):
    """Nobody knows what the file holds."""


def configured_keys(settings: GatewaySettings) -> tuple[ApiKey, ...]:
    """Those of ``gateway.api_keys``. Raises ``SettingsError`` naming what is wrong."""
    return checked_keys(
        tuple(
            _unnamed(f"settings-{position}", key.get_secret_value(), f"key number {position}")
            for position, key in enumerate(settings.api_keys, start=1)
        )
    )


def read_keys_file(path: Path) -> tuple[ApiKey, ...]:
    """At least one key. Raises ``SettingsError``, which repeats nothing that the file holds."""
    try:
        content = _content(path)
    except OSError as error:
        raise UnreadableError(f"{SETTING}: {error.strerror}: {path}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{SETTING}: not UTF-8 at line {line}: {path}") from None
    keys = _entries(path, text) if path.suffix in YAML_SUFFIXES else _lines(text)
    if not keys:
        # An empty file must not turn authentication off.
        raise SettingsError(f"{SETTING}: {path} holds no key")
    return checked_keys(keys)


def _content(path: Path) -> bytes:
    with open(path, "rb", opener=_open_at_once) as file:
        _check_status(path, os.fstat(file.fileno()))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{SETTING}: {path} is larger than {MAX_BYTES} bytes")
    return content


def _open_at_once(path: str, flags: int) -> int:
    # A pipe would wait for somebody to write to it.
    return os.open(path, flags | os.O_NONBLOCK)


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"{SETTING}: {path} is not a regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise SettingsError(
            f"{SETTING}: {path} belongs to user {status.st_uid}, and must to user {os.geteuid()}, "
            "which reads it, or to root"
        )
    if status.st_mode & stat.S_IWOTH:
        raise SettingsError(f"{SETTING}: everybody may write {path}: use chmod 600")
    if status.st_mode & stat.S_IROTH:
        logger.warning("%s: everybody on this host may read %s: use chmod 600.", SETTING, path)


def checked_keys(keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
    """``keys``. Raises ``SettingsError`` for a name or a key that comes twice."""
    try:
        KeyRing(keys)
    except ValueError as error:
        raise SettingsError(f"gateway.api_keys: {error}") from None
    return keys


def _lines(text: str) -> tuple[ApiKey, ...]:
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return tuple(
        _unnamed(f"line-{number}", line, f"the key in line {number} of the file")
        for number, line in lines
        if line and not line.startswith("#")
    )


def _unnamed(name: str, key: str, what: str) -> ApiKey:
    if not _is_sendable(key):
        raise SettingsError(f"gateway.api_keys: {what} must be printable ASCII without spaces")
    return ApiKey(name, (key_digest(key),), is_named=False)


def _is_sendable(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and " " not in key


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    name: str = Field(pattern=NAME_PATTERN)
    key: Annotated[list[SecretStr], BeforeValidator(_as_list)] = []
    sha256: Annotated[
        list[Annotated[str, Field(pattern=DIGEST_PATTERN)]], BeforeValidator(_as_list)
    ] = []
    requests_per_minute: float | None = Field(None, gt=0, allow_inf_nan=False)
    tokens_per_minute: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_concurrent_requests: int | None = Field(None, ge=1)
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    weight: float = Field(1.0, ge=MIN_WEIGHT, le=MAX_WEIGHT)
    operator: bool = False

    @model_validator(mode="after")
    def _has_usable_keys(self) -> _Entry:
        if not self.key and not self.sha256:
            raise ValueError("needs key or sha256")
        if not all(_is_sendable(key.get_secret_value()) for key in self.key):
            raise ValueError("key must be printable ASCII without spaces")
        return self

    def api_key(self) -> ApiKey:
        return ApiKey(
            self.name,
            (
                *(key_digest(key.get_secret_value()) for key in self.key),
                *map(bytes.fromhex, self.sha256),
            ),
            RateLimits(
                self.requests_per_minute, self.tokens_per_minute, self.max_concurrent_requests
            ),
            self.priority,
            self.weight,
            self.operator,
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    keys: list[_Entry]


def _entries(path: Path, text: str) -> tuple[ApiKey, ...]:
    try:
        _check_depth(path, text)
        document, content = _load(text)
    except SettingsError:
        raise
    except Exception as error:  # noqa: BLE001
        # What is no date or number after all has PyYAML raise whatever Python does. What any of
        # them quotes could be a key.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{SETTING}: {path} is not YAML{where}") from None
    try:
        entries: Sequence[_Entry] = _File.model_validate(content).keys
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)
        told = [
            f"line {_line(document, mistake['loc'])}: {_field(mistake['loc'])}{mistake['msg']}"
            for mistake in mistakes[:MAX_MISTAKES]
        ]
        if len(mistakes) > MAX_MISTAKES:
            told.append(f"and {len(mistakes) - MAX_MISTAKES} more")
        raise SettingsError(f"{SETTING}: {path}: {'; '.join(told)}") from None
    return tuple(entry.api_key() for entry in entries)


def _load(text: str) -> tuple[yaml.Node | None, Any]:
    """The document as written, with its lines, and what it means."""
    loader = _LOADER(text)
    try:
        document = loader.get_single_node()
        return document, None if document is None else loader.construct_document(document)
    finally:
        loader.dispose()


def _check_depth(path: Path, text: str) -> None:
    """The fast loader recurses without end, and a crash would take the whole process along."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            where = f" at line {event.start_mark.line + 1}" if event.start_mark else ""
            raise SettingsError(f"{SETTING}: {path} nests more than {MAX_DEPTH} levels deep{where}")


def _line(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Of what stands at ``location``, as far as there is anything."""
    line = 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = (node.value[part], node.value[part])
        else:
            found = None
        if found is None:
            break
        line, node = found[0].start_mark.line, found[1]
    return line + 1


def _field(location: tuple[int | str, ...]) -> str:
    """Its name, if it is one of ours: any other text may be a key."""
    names = [part for part in location if part in _Entry.model_fields]
    return f"{names[-1]}: " if names else ""
