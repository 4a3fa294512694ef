"""``pomona serve``: what a config, a model and settings on the command line say, served."""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
from logging import StreamHandler
from pathlib import Path
from typing import Any

import yaml

from deployments.command.setting_flags import (
    SECRET,
    add_setting_flags,
    given_settings,
    in_flags,
    normalized,
    setting_flags,
)
from deployments.command.shipped import CONFIGS
from deployments.command.terminal import Parser, fail
from deployments.launch.live_terminal import LiveTerminal
from deployments.settings import SettingsError

DEFAULT_CONFIG = CONFIGS / "app.yaml"

EXAMPLES = f"""
Any setting of a config file is a flag, too, such as --engine.max-num-seqs=64 or
--gateway.allowed-origins=https://chat.example.com; --help-settings lists them all.

examples:
  pomona serve                                       the small embedded model
  pomona serve mlx-community/Qwen3-0.6B-4bit         a model from the Hugging Face hub
  pomona serve ~/models/mine --port 9000             one in a folder, at another port
  pomona serve --config my.yaml --dry-run > all.yaml
  serve deploy all.yaml                              the same in a running cluster

Config files to copy are in {CONFIGS}.

Ctrl-C ends it. Exit status: 0 if it was told to end, 1 if it could not start or go on, 2 for a
mistake in the command, the config or the model.
"""


def run(arguments: list[str]) -> int:
    terminal = LiveTerminal(sys.stderr)
    logging.basicConfig(
        level=logging.INFO, format="%(name)s: %(message)s", handlers=[StreamHandler(terminal)]
    )
    options = _options(arguments)
    if not options.dry_run:
        from deployments.launch.prepare import prepare

        try:
            prepare()
        except OSError as error:
            return fail(f"Ray can't be kept from other users: {error}", status=2)
    path: Path = options.config
    try:
        config = effective_config(path, options)
    except ValueError as error:
        return fail(str(error), status=2)
    if options.dry_run:
        sys.stdout.write(yaml.dump(config, Dumper=_Plain, sort_keys=False, allow_unicode=True))
        return 0
    from deployments.launch.launcher import launch

    has_model = options.model or path == DEFAULT_CONFIG
    return launch(config, None if has_model else path, terminal, verbose=options.verbose)


def effective_config(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The Serve config of ``path`` with what ``options`` say over it, checked. Raises
    ``ValueError`` naming the file's key, or the flag, that is wrong."""
    from deployments.launch.serve_config import check, with_address, with_model, with_settings

    given = given_settings(options)
    try:
        config = yaml.safe_load(path.read_text())
        check(config)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    model = given.pop("engine.model", None) or options.model
    if model is not None:
        config = with_model(config, model)
    config = with_address(config, options.host, options.port)
    try:
        config = with_settings(config, given)
        check(config)
    except SettingsError as error:
        raise ValueError("\n".join(in_flags(error.mistakes, given)) or str(error)) from error
    return config


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = _parser(with_settings=False)
    options, unknown = parser.parse_known_args(normalized(arguments))
    for argument in unknown:
        parser.error(_explain(argument))
    return options


def _parser(*, with_settings: bool) -> argparse.ArgumentParser:
    parser = Parser(
        prog="pomona serve",
        usage="pomona serve [MODEL] [--config FILE] [--port N] [--SECTION.SETTING=VALUE ...]",
        description="Serves a model on this machine until Ctrl-C.",
        epilog=None if with_settings else EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="an id on the Hugging Face hub, or a folder (default: the config's, which is the "
        "embedded 'demo' unless there is a --config)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help="a Ray Serve config file to start from (default: the built-in one)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="where clients reach it (default: the config's, which is 8000)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="the address to listen at (default: the config's, which is 127.0.0.1: this machine "
        "alone). Others are served only with a key: set --gateway.api-keys-file",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the config that would be served, for 'serve deploy', and end; settings are "
        "checked, the model is not",
    )
    parser.add_argument("--verbose", action="store_true", help="show all that Ray has to say, too")
    parser.add_argument(
        "--help-settings", action=_HelpSettings, nargs=0, help="list every setting and end"
    )
    add_setting_flags(parser, shown=with_settings)
    return parser


class _HelpSettings(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        _parser(with_settings=True).print_help()
        parser.exit()


class _Plain(yaml.SafeDumper):
    """Writes a part that stands in two places twice, as people would."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _explain(unknown: str) -> str:
    name = unknown.partition("=")[0]
    if not name.startswith("--"):
        return f"one model at most, {unknown!r} is too much"
    if name in ["--" + key.replace("_", "-") for key in SECRET]:
        return f"{name} would show the keys to every user of this machine: put them into a file"
    known = [flag.option for flag in setting_flags()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    ending = [one for one in known if one.endswith(name.lstrip("-"))]
    told = " or ".join(near or ending)
    return f"there is no flag {name}" + (f"; did you mean {told}?" if told else "")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is 1 to 65535, not {text!r}")
    return int(text)
