"""``pomona``, or ``python -m deployments.command``: finds the subcommand."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version

SUBCOMMANDS = {
    "serve": "serve a model on this machine, for OpenAI's and Anthropic's clients",
    "chat": "chat with a model in this terminal",
    "models": "list, download and remove models",
    "status": "show the engines and gateways of a running server",
    "doctor": "check what goes wrong at a first start, on this machine or a cluster's hosts",
    "bench": "measure this machine's engine, or a server",
}
"""Each is a module here, with ``run(arguments) -> exit status``."""

HELP = """usage: pomona COMMAND ...

Serve language models with a paged MLX engine behind Ray Serve.

{commands}

`pomona COMMAND --help` tells more. The shortest way to an answer:

  pomona serve                                     the small embedded model, without a network
  pomona serve mlx-community/Qwen3-0.6B-4bit       one from the Hugging Face hub
"""


def main() -> int:
    """The exit status: 0 if it went well, 1 if something failed, 2 for a mistake in the command or
    in what it names."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(help_text(), end="")
        return 0
    if name == "--version":
        print(f"pomona {version('pomona-serve')}")
        return 0
    if name not in SUBCOMMANDS:
        known = ", ".join(SUBCOMMANDS)
        print(f"pomona: there is no command {name!r}; there are {known}", file=sys.stderr)
        return 2
    run = import_module(f"deployments.command.{name}").run
    try:
        status: int = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read it, `head` for one, has had enough. At exit Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def help_text() -> str:
    width = max(map(len, SUBCOMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{told}" for name, told in SUBCOMMANDS.items())
    return HELP.format(commands=commands)


if __name__ == "__main__":
    sys.exit(main())
