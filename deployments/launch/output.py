"""What of the server's output a terminal shows: this project's own lines, and warnings.

Ray hands on what all processes of its cluster print, each line behind the actor's name; all of it
is in Ray's log files, too.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import deque
from collections.abc import Iterable

from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.serve_status import SLOW_START

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DASHBOARD = re.compile(r"View the dashboard at (\S+)")
ACTOR = re.compile(r"\((?P<actor>[^()]+?) pid=\d+(?:, ip=[^()]+)?\) (?P<line>.*)")
TEXT_LINE = re.compile(r"(?P<level>[A-Z]+) \S+ \S+ .*? -- (?P<message>.*)")
GENERATION = re.compile(
    r"generation (?P<outcome>finished|client gone|failed) .*"
    r"prompt_tokens=(?P<prompt>\d+) cached_tokens=(?P<cached>\d+) completion_tokens=(?P<out>\d+) "
    r"first_token_s=(?P<first_s>\d+\.?\d*) seconds=(?P<all_s>\d+\.?\d*) .* request_id=(?P<id>\S+)"
)
"""All of it: where two processes write at once, a line may have a part of another in it."""
PROGRESS = re.compile(
    r"(?P<work>[a-z ]+): (?P<figures>(?P<done>\d+\.\d\d)(?: of (?P<total>\d+\.\d\d))? GB, .*)"
)
"""An engine's, while it downloads a model or loads its weights."""
IDLE_WARNING = re.compile(f"{SLOW_START.pattern}|Cannot deregister autoscaling state")
"""The controller's, when all is well: it has never scaled what it begins to deploy."""
REPLICA = "ServeReplica:"
QUIET = "ray.serve._private"
"""In what Serve tells of its own parts within a replica."""
OF_A_REQUEST = re.compile(r"POST \S+ 200 ")
"""The gateway's line, where the engine's tells more."""
LAST_WORDS = 30


class ServerOutput:
    """Reads the server's lines in a thread of its own and writes what is of interest."""

    def __init__(self, lines: Iterable[str], terminal: LiveTerminal, *, verbose: bool) -> None:
        self._lines = lines
        self._terminal = terminal
        self._verbose = verbose
        self._last: deque[str] = deque(maxlen=LAST_WORDS)
        self.dashboard_url: str | None = None
        self.progress_at = -math.inf
        """On the monotonic clock: when an engine told last how far it is."""
        self._thread = threading.Thread(target=self._read, name="server-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def last_words(self) -> str:
        """What the server said at last beside its actors, after it has ended."""
        self._thread.join()
        return "".join(self._last)

    def _read(self) -> None:
        for line in self._lines:
            plain = COLOUR.sub("", line)
            if self.dashboard_url is None and (found := DASHBOARD.search(plain)):
                self.dashboard_url = found[1]
            if not plain.startswith("("):
                self._last.append(plain)
            shown = line if self._verbose else to_show(plain)
            if not shown:
                continue
            if not self._verbose and (progress := PROGRESS.fullmatch(shown)):
                self.progress_at = time.monotonic()
                total = float(progress["total"] or 0)
                share = float(progress["done"]) / total if total else None
                self._terminal.show(progress["work"], share, progress["figures"])
                continue
            self._terminal.write(shown if self._verbose else f"{shown}\n")
            self._terminal.flush()


def to_show(line: str) -> str | None:
    """``line`` as a terminal shows it, or None."""
    actor = ACTOR.match(line)
    if actor is None:
        return None
    parsed = _level_and_message(actor["line"])
    if parsed is None:
        return None
    level, message = parsed
    is_replica = actor["actor"].startswith(REPLICA)
    if level in ("DEBUG", "INFO"):
        if not is_replica or QUIET in message or OF_A_REQUEST.match(message):
            return None
        if generation := GENERATION.match(message):
            return _request_line(generation)
        return message
    if IDLE_WARNING.search(message):
        return None
    where = actor["actor"].rpartition(":")[2] if is_replica else actor["actor"]
    return f"{level} {where}: {message}"


def _level_and_message(line: str) -> tuple[str, str] | None:
    """Serve writes lines as text, or as JSON if ``observability.log_format`` says so."""
    if line.startswith("{"):
        try:
            members = json.loads(line)
        except ValueError:
            return None
        return members.get("levelname", "INFO"), members.get("message", "")
    text = TEXT_LINE.match(line)
    return (text["level"], text["message"]) if text else None


def _request_line(generation: re.Match[str]) -> str:
    """``generation`` is the engine's line of a request."""
    out = int(generation["out"])
    told = [f"{generation['prompt']} tokens in ({generation['cached']} cached)", f"{out} out"]
    if out:
        first_s, all_s = float(generation["first_s"]), float(generation["all_s"])
        told.append(f"first after {first_s:.2f} s")
        if out > 1 and all_s > first_s:
            told.append(f"{(out - 1) / (all_s - first_s):.1f} tokens/s")
    if generation["outcome"] != "finished":
        told.append(generation["outcome"])
    return f"{generation['id']}: {', '.join(told)}"
