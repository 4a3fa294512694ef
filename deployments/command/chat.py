"""``pomona chat``: a chat in the terminal, with a server or with an engine in this process."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path

from deployments.backend import BackendError
from deployments.command.chat_partner import EnginePartner, Message, Partner, ServerPartner
from deployments.command.server_url import DEFAULT_URL, KEY_VARIABLE, ServerError, server_url
from deployments.command.terminal import Parser, add_backend, fail, printable

HOST_AND_PORT = re.compile(r"(localhost|[\w.-]+|\[[\da-fA-F:]+\]):\d+(/v1)?/?")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
COMMANDS = """\
/save FILE     write the conversation to FILE, as JSON messages
/system TEXT   begin again with these instructions
/new           begin again
/quit          end (so does Ctrl-D)
Ctrl-C stops an answer; what came of it stays in the conversation."""
EXAMPLES = f"""
examples:
  pomona chat                              with what 'pomona serve' serves on this machine
  pomona chat http://edge-1:8000           with another server; {KEY_VARIABLE} may hold its key
  pomona chat demo                         without a server: loads the model here

in the chat:
{COMMANDS}
"""


def run(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = _parser().parse_args(arguments)
    try:
        opened = _partner(options.target, options.model, options.backend)
    except ValueError as error:
        return fail(str(error), status=2)
    except ServerError as error:
        return fail(str(error))
    # Lines are edited, and go through earlier ones with the arrow keys, where Python has it.
    with suppress(ImportError):
        import readline  # noqa: F401
    with opened as partner:
        print(f"Chatting with {printable(partner.name)}. /help lists the commands.")
        return _talk(Chat(partner, options.system))


class Chat:
    """One conversation. ``messages`` are what the next answer is to."""

    def __init__(self, partner: Partner, system: str | None = None) -> None:
        self._partner = partner
        self.messages: list[Message] = []
        self.begin_again(system)

    def begin_again(self, system: str | None = None) -> None:
        """Without ``system`` the instructions stay as they are."""
        kept = [one for one in self.messages if one["role"] == "system"]
        self.messages = [{"role": "system", "content": system}] if system else kept

    def say(self, text: str) -> None:
        """Prints the answer as it comes. One that fails takes its question with it; one that
        Ctrl-C stops stays as far as it came."""
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            with closing(self._partner.answer(self.messages)) as pieces:
                for piece in pieces:
                    answer += "" if piece.is_thought else piece.text
                    _show(piece.text, dim=piece.is_thought)
        except KeyboardInterrupt:
            _show("\n(stopped)", dim=True)
        except (ServerError, BackendError) as error:
            self.messages.pop()
            print()
            fail(printable(str(error)))
            return
        print()
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()

    def save(self, path: Path) -> None:
        """Raises ``OSError``."""
        path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n")


def _talk(chat: Chat) -> int:
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print("\nCtrl-D ends the chat.")
            continue
        command, _, rest = line.partition(" ")
        if command == "/quit":
            return 0
        if not line:
            continue
        if line.startswith("/"):
            _do(chat, command, rest.strip())
        else:
            chat.say(line)


def _do(chat: Chat, command: str, rest: str) -> None:
    if command == "/new":
        chat.begin_again()
    elif command == "/system" and rest:
        chat.begin_again(rest)
    elif command == "/save" and rest:
        try:
            chat.save(Path(rest).expanduser())
        except OSError as error:
            fail(f"{rest}: {error.strerror}")
        else:
            print(f"Saved {len(chat.messages)} messages to {rest}.")
    else:
        print(COMMANDS)


def _partner(target: str, model: str | None, backend: str) -> AbstractContextManager[Partner]:
    if "://" in target or HOST_AND_PORT.fullmatch(target):
        return nullcontext(ServerPartner(server_url(target), model))
    if model is not None:
        raise ValueError("--model chooses one of a server's models: give the server's URL")
    return closing(EnginePartner(backend, target))


def _show(text: str, *, dim: bool) -> None:
    text = printable(text)
    sys.stdout.write(f"{DIM}{text}{PLAIN}" if dim and sys.stdout.isatty() else text)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pomona chat",
        description="Chats with a model in this terminal.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        nargs="?",
        default=DEFAULT_URL,
        metavar="MODEL|URL",
        help=f"a server's URL ({DEFAULT_URL}), or a model to load here: an id on the Hugging Face "
        "hub, a folder, or 'demo'",
    )
    parser.add_argument("--model", help="which of the server's models (default: its first)")
    add_backend(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions for the model")
    return parser
