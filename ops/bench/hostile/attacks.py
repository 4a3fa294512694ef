"""What one client can do to the others: each attack, and the ordinary neighbour they all are
compared with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple

from ops.bench.hostile import bodies
from ops.bench.hostile.agent import Agent
from ops.bench.hostile.attacker import CHAT, COMPLETIONS, Attacker

Work = Coroutine[None, None, None]

LEAVES_AFTER_S = (0.3, 1.0, 2.0, 4.0)
"""Beats tell of tokens now and then; a client that leaves between two of them was not charged."""
PIPELINED = 16


class Attack(NamedTuple):
    name: str
    """A number and a few words; a neighbour has no number."""
    begin: Callable[[Attacker], Sequence[Work]]
    """One for each connection."""
    is_limited: bool = False
    """With a key of few tokens a minute."""


def _neighbour(attacker: Attacker) -> list[Work]:
    async def ask_again() -> None:
        client = Agent(attacker.url, attacker.model, attacker.key)
        while True:
            await client.ask()

    return [ask_again()]


def _unread(attacker: Attacker) -> list[Work]:
    return [attacker.leave_unread(attacker.request(COMPLETIONS, bodies.much_output(1)))]


def _unread_prompts(attacker: Attacker) -> list[Work]:
    return [attacker.leave_unread(attacker.request(COMPLETIONS, bodies.much_output(2)))]


def _pausing(attacker: Attacker) -> list[Work]:
    return [attacker.pause(attacker.request(COMPLETIONS, bodies.much_output(1)))]


def _many_prompts(attacker: Attacker) -> list[Work]:
    request = attacker.request(COMPLETIONS, bodies.many_sequences(256))
    return [attacker.keep_asking(request) for _ in range(4)]


def _two_prompts(attacker: Attacker) -> list[Work]:
    request = attacker.request(COMPLETIONS, bodies.many_sequences(2))
    return [attacker.keep_asking(request) for _ in range(4)]


def _cancelled(attacker: Attacker) -> list[Work]:
    request = attacker.request(CHAT, bodies.whole_answer())
    return [attacker.leave(request, after_s) for after_s in LEAVES_AFTER_S]


def _stop_strings(attacker: Attacker) -> list[Work]:
    sizes = (256, 256, 1, 1)
    return [
        attacker.keep_asking(attacker.request(COMPLETIONS, bodies.stop_strings(size)))
        for size in sizes
    ]


def _template_argument(attacker: Attacker) -> list[Work]:
    request = attacker.request(CHAT, bodies.template_argument())
    return [attacker.keep_asking(request) for _ in range(4)]


def _long_name(attacker: Attacker) -> list[Work]:
    request = attacker.request(CHAT, bodies.long_name())
    return [attacker.keep_asking(request) for _ in range(4)]


def _long_prompts(attacker: Attacker) -> list[Work]:
    request = attacker.request(COMPLETIONS, bodies.long_prompt())
    return [attacker.keep_asking(request) for _ in range(8)]


def _small_parts(attacker: Attacker) -> list[Work]:
    request = attacker.request(CHAT, bodies.many_parts())
    return [attacker.keep_asking(request) for _ in range(16)]


def _small_ids(attacker: Attacker) -> list[Work]:
    request = attacker.request(COMPLETIONS, bodies.many_ids())
    return [attacker.keep_asking(request) for _ in range(16)]


def _pipelined(attacker: Attacker) -> list[Work]:
    one = attacker.request(CHAT, bodies.chat(max_tokens=500, ignore_eos=True, stream=True))
    return [attacker.leave(one * PIPELINED, 0.2) for _ in range(8)]


def _control_tokens(attacker: Attacker) -> list[Work]:
    request = attacker.request(CHAT, bodies.control_tokens())
    return [attacker.keep_asking(request) for _ in range(4)]


NEIGHBOUR = Attack("an ordinary neighbour", _neighbour)
ATTACKS = (
    Attack("1 does not read, n=16 and logprobs=20", _unread),
    Attack("1 does not read, two prompts", _unread_prompts),
    Attack("1 pauses", _pausing),
    Attack("2 256 prompts x 16", _many_prompts),
    Attack("2 two prompts x 16", _two_prompts),
    Attack("3 cancels whole answers", _cancelled, is_limited=True),
    Attack("4 stop strings", _stop_strings),
    Attack("5 template argument, 4.7 MB", _template_argument),
    Attack("5 name, 4.9 MB", _long_name),
    Attack("6 eight prompts, 850 KB", _long_prompts),
    Attack("7 sixteen bodies of parts, 6.2 MB", _small_parts),
    Attack("7 sixteen bodies of ids, 6.1 MB", _small_ids),
    Attack("8 pipelines and leaves", _pipelined),
    Attack("9 control tokens, 1 MB", _control_tokens),
)


_begun: list[asyncio.Task[None]] = []


async def begin(attack_name: str, attacker: Attacker) -> None:
    """Attack for as long as this process lives."""
    [attack] = [one for one in (NEIGHBOUR, *ATTACKS) if one.name == attack_name]
    for work in attack.begin(attacker):
        task = asyncio.create_task(work)
        # None ends but by a mistake, which is to be seen.
        task.add_done_callback(asyncio.Task.result)
        _begun.append(task)
