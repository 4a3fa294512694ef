"""Checkpoints: how far a stream had got when its replica was lost.

For a gateway, a replica ends whatever it writes of a stream with an SSE comment that lists the
token ids behind the events before it. The gateway takes the comments out and passes on nothing
that no checkpoint has followed yet, so that what the client has seen is always what the log says.
The next replica gets the log as it is and continues from there; the gateway only counts its tokens.

A checkpoint is ``:~`` and entries with spaces in between: ``2:17,4`` for tokens of choice 2,
``1=32/45`` once a prompt has begun: of the 45 tokens of prompt 1, 32 were in the prefix cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deployments.backend import Delta
from deployments.http.errors import ApiError
from deployments.http.sse import EVENT_END

# JSON escapes line feeds, so this can't stand inside of an event.
_AFTER_EVENTS = EVENT_END + b":~"


@dataclass(frozen=True)
class Progress:
    """What a log adds up to."""

    token_ids: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By choice, over all prompts."""
    cached_tokens: Mapping[int, int] = field(default_factory=dict)
    """By prompt; for each prompt that has begun."""

    @classmethod
    def parse(cls, log: bytes) -> Progress:
        """Raises ``ApiError`` 400."""
        ids_of: defaultdict[bytes, list[bytes]] = defaultdict(list)
        cached_tokens: dict[int, int] = {}
        try:
            for entry in log.split():
                choice, _, ids = entry.partition(b":")
                if ids:
                    # When a replica is lost, all of its logs come at once: numbers are cheaper
                    # to read together.
                    ids_of[choice].append(ids)
                else:
                    prompt, _, count = entry.partition(b"=")
                    cached_tokens[int(prompt)] = int(count.partition(b"/")[0])
            token_ids = {
                int(choice): [*map(int, b",".join(entries).split(b","))]
                for choice, entries in ids_of.items()
            }
        except ValueError as error:
            raise ApiError(400, f"The log of checkpoints is malformed: {error}.") from error
        return cls(token_ids, cached_tokens)

    def of_prompt(self, prompt: int, num_choices: int) -> tuple[tuple[int, ...], ...]:
        """Tokens of each choice, none for those that have not begun. Empty if nothing has: then
        nobody knows yet that any prompt was let in."""
        if not (self.token_ids or self.cached_tokens):
            return ()
        first = prompt * num_choices
        return tuple(tuple(self.token_ids.get(first + index, ())) for index in range(num_choices))


class CheckpointWriter:
    """The replica's side."""

    def __init__(self, choices_per_prompt: int, progress: Progress) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._prompts_begun = set(progress.cached_tokens)
        self._entries: list[str] = []

    def add(self, choice: int, delta: Delta) -> None:
        """``delta`` will be behind the events before the next checkpoint."""
        prompt = choice // self._choices_per_prompt
        if prompt not in self._prompts_begun:
            self.add_prompt(prompt, delta.num_cached_tokens, delta.num_prompt_tokens)
        if delta.token_ids:
            self._entries.append(f"{choice}:{','.join(map(str, delta.token_ids))}")

    def add_prompt(self, prompt: int, num_cached_tokens: int, num_prompt_tokens: int) -> None:
        """It has begun."""
        self._prompts_begun.add(prompt)
        self._entries.append(f"{prompt}={num_cached_tokens}/{num_prompt_tokens}")

    def take(self) -> bytes:
        entries = " ".join(self._entries)
        self._entries.clear()
        return b":~%b\n\n" % entries.encode()


class CheckpointReader:
    """The gateway's side: a stream of bytes, cut anywhere, into events and a log."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.num_logged = 0
        """Generated tokens in ``log``."""
        self.num_events = 0
        """That have a name, and have become certain."""
        self.prompt_tokens = 0
        """Of the prompts that have begun."""
        self.num_prompts = 0
        """That have begun."""
        self._held: list[bytes] = []

    @property
    def held(self) -> bytes:
        """What came after the last checkpoint, and so has not been told."""
        return b"".join(self._held)

    def restart(self) -> None:
        """Another replica goes on after the last checkpoint."""
        self._held.clear()

    def forget(self) -> None:
        """Another replica begins anew."""
        self.restart()
        self.log.clear()
        self.num_events = 0
        self.num_logged = 0
        self.prompt_tokens = 0
        self.num_prompts = 0

    def feed(self, chunk: bytes) -> bytes:
        """The events that have become certain."""
        last = self._held[-1][-1:] if self._held else b""
        self._held.append(chunk)
        if EVENT_END not in last + chunk:
            # No checkpoint ends here, and a long event is joined once, not with each of its chunks.
            return b""
        events, *checked = self.held.split(_AFTER_EVENTS)
        certain: list[bytes] = []
        for piece in checked:
            entries, end, following = piece.partition(EVENT_END)
            if not end:
                # Only the last piece can be cut off.
                events += _AFTER_EVENTS + piece
                break
            certain.append(self._pass(events, entries))
            events = following
        self._held = [events] if events else []
        certain.append(b"")
        return EVENT_END.join(certain)

    def _pass(self, events: bytes, entries: bytes) -> bytes:
        """What goes on of the ``events`` before a checkpoint, without the end of the last one."""
        # There is one checkpoint for about every token of every stream.
        self.num_events += num_named(events)
        if not entries:
            return events
        self.log += entries + b" "
        self.num_logged += entries.count(b":") + entries.count(b",")
        if b"/" in entries:
            for entry in entries.split():
                _, has_size, size = entry.partition(b"/")
                self.prompt_tokens += int(size) if has_size else 0
                self.num_prompts += bool(has_size)
        return events


def num_named(events: bytes) -> int:
    """How many of ``events`` have a name, on a line before their data."""
    return events.count(b"\ndata: ") - events.count(EVENT_END + b"data: ")
