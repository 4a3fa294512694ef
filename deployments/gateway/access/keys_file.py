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
"""

from __future__ import annotations

import logging
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
MAX_DEPTH = 8
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
    """At least one key. Raises ``SettingsError``, which repeats nothing of a key."""
    try:
        _check_mode(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            raise UnreadableError(f"{SETTING}: {error.strerror}: {path}") from None
        raise SettingsError(f"{SETTING}: not UTF-8: {path}") from None
    keys = _entries(path, text) if path.suffix in YAML_SUFFIXES else _lines(text)
    if not keys:
        # An empty file must not turn authentication off.
        raise SettingsError(f"{SETTING}: {path} holds no key")
    return checked_keys(keys)


def _check_mode(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH:
        raise SettingsError(f"{SETTING}: everybody may write {path}: use chmod 600")
    if mode & stat.S_IROTH:
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
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    keys: list[_Entry]


def _entries(path: Path, text: str) -> tuple[ApiKey, ...]:
    try:
        _check_depth(path, text)
        content = yaml.load(text, Loader=_LOADER)
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
        told = "; ".join(f"{_where(mistake['loc'])}{mistake['msg']}" for mistake in mistakes)
        raise SettingsError(f"{SETTING}: {path}: {told}") from None
    return tuple(entry.api_key() for entry in entries)


def _check_depth(path: Path, text: str) -> None:
    """The fast loader recurses without end, and a crash would take the whole process along."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise SettingsError(f"{SETTING}: {path} nests more than {MAX_DEPTH} levels deep")


def _where(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
