"""Flags for every setting, made from the settings' classes: ``--engine.max-num-seqs=64``."""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deployments.settings import AppSettings

SECRET = ("gateway.api_keys",)
"""Every user of a machine sees its command lines."""


@dataclass(frozen=True)
class SettingFlag:
    """``key`` is the setting's path, such as ``engine.max_num_seqs``."""

    key: str
    field: FieldInfo

    @property
    def option(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def is_switch(self) -> bool:
        return self._types == (bool,)

    @property
    def help(self) -> str:
        default = self.field.get_default(call_default_factory=True)
        told = self.field.description or ""
        if default not in (None, (), {}, PydanticUndefined):
            told = f"{told} (default: {_as_typed(default)})"
        # Pydantic's texts are Markdown, and argparse reads % in its own way.
        return told.strip().replace("`", "'").replace("%", "%%")

    @property
    def placeholder(self) -> str:
        """What stands for the value in help."""
        one = self._types[0]
        if get_origin(one) is Literal:
            choices = [str(choice) for choice in get_args(one)]
            return "{" + ",".join(choices) + "}" if len(choices) <= 6 else "NAME"
        if get_origin(one) is tuple:
            return "A,B,..."
        if one is dict or get_origin(one) is dict:
            return "YAML"
        return {bool: "true|false", int: "N", float: "X", str: "TEXT"}.get(one, "PATH")

    def parse(self, text: str) -> Any:
        """``text`` as a config file would have it; that it fits is for the settings to say."""
        if text == "null":
            return None
        kinds = [get_origin(one) or one for one in self._types]
        if Literal in kinds:
            of_choices = {type(choice) for choice in get_args(self._types[kinds.index(Literal)])}
            return text if of_choices == {str} else _read(text)
        if tuple in kinds:
            listed = _read(text)
            return listed if isinstance(listed, list) else [one for one in text.split(",") if one]
        return _read(text) if set(kinds) & {int, float, bool, dict} else text

    @property
    def _types(self) -> tuple[Any, ...]:
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, types.UnionType):
            return tuple(one for one in get_args(annotation) if one is not type(None))
        return (annotation,)


def setting_flags() -> list[SettingFlag]:
    """One for every setting, in the settings' own order."""
    return list(_flags(AppSettings, ""))


def _flags(settings: type[BaseModel], prefix: str) -> Iterator[SettingFlag]:
    for name, field in settings.model_fields.items():
        key, annotation = prefix + name, field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _flags(annotation, f"{key}.")
        elif key not in SECRET:
            yield SettingFlag(key, field)


def add_setting_flags(parser: argparse.ArgumentParser, *, shown: bool) -> None:
    """Each setting that is given becomes an attribute of the parsed options, by its key. Help has
    them if they are ``shown``."""
    groups: dict[str, argparse._ActionsContainer] = {}
    for flag in setting_flags():
        if flag.section not in groups:
            annotation = AppSettings.model_fields[flag.section].annotation
            told = (annotation.__doc__ or "").replace("`", "'") if annotation else ""
            groups[flag.section] = (
                parser.add_argument_group(flag.section, told) if shown else parser
            )
        groups[flag.section].add_argument(
            flag.option,
            dest=flag.key,
            metavar=flag.placeholder,
            default=argparse.SUPPRESS,
            help=flag.help if shown else argparse.SUPPRESS,
        )


def normalized(arguments: list[str]) -> list[str]:
    """``arguments`` with settings spelled as their flags are: with dashes for the underscores of
    config files, and a value for switches that were given without."""
    switches = {flag.option for flag in setting_flags() if flag.is_switch}
    found = []
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        after = arguments[at + 1] if at + 1 < len(arguments) else ""
        if name in switches and not equals and after not in ("true", "false"):
            equals, value = "=", "true"
        found.append(name + equals + value if name.startswith("--") else argument)
    return found


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that ``options`` has, by their keys. Raises ``ValueError`` naming a flag whose
    value can't be read."""
    given = vars(options)
    found = {}
    for flag in setting_flags():
        if flag.key in given:
            try:
                found[flag.key] = flag.parse(given[flag.key])
            except yaml.YAMLError:
                raise ValueError(f"{flag.option}: can't read {given[flag.key]!r}") from None
    return found


def in_flags(mistakes: Mapping[str, str], given: Mapping[str, Any]) -> list[str]:
    """``mistakes`` (``SettingsError.mistakes``), a line each, by their flags where these were
    ``given``."""
    lines = []
    for key, told in mistakes.items():
        flag = next((one for one in given if key == one or key.startswith(f"{one}.")), None)
        lines.append(f"{'--' + flag.replace('_', '-') if flag else key}: {told}")
    return lines


def _read(text: str) -> Any:
    return yaml.safe_load(text)


def _as_typed(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)
