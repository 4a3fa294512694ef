"""One load on one target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ops.bench.serve.answer import Answer
from ops.bench.serve.client import Client, session
from ops.bench.serve.conversation import Conversation, check
from ops.bench.serve.errors import LoadError
from ops.bench.serve.load import Load
from ops.bench.serve.metrics import added, read_counts, settled_counts
from ops.bench.serve.result import Result
from ops.bench.serve.target import Target

OnAnswer = Callable[[Answer], None]


def ignore(answer: Answer) -> None: ...


@dataclass
class _Run:
    """Conversations that are held at the same time, and what came of them."""

    client: Client
    concurrency: int | None
    on_answer: OnAnswer = ignore
    answers: list[Answer] = field(default_factory=list)

    @property
    def num_good(self) -> int:
        return sum(one.is_good for one in self.answers)

    async def hold(
        self, conversations: Sequence[Conversation], arrivals: Sequence[float] | None = None
    ) -> None:
        """Each begins so many seconds from now, by default at once, or as there is a place."""
        places = asyncio.Semaphore(self.concurrency or max(1, len(conversations)))
        start = time.perf_counter()

        async def hold_in_turn(number: int, conversation: Conversation) -> None:
            due = start + (arrivals[number] if arrivals else 0.0)
            await asyncio.sleep(due - time.perf_counter())
            waits = places.locked()
            async with places:
                await self._hold(number, conversation, time.perf_counter() if waits else due)

        await asyncio.gather(*(hold_in_turn(*item) for item in enumerate(conversations)))

    async def _hold(self, number: int, conversation: Conversation, due: float) -> None:
        dialogue = self.client.dialogue(conversation, number)
        for turn in conversation.turns:
            due += turn.pause_s
            await asyncio.sleep(due - time.perf_counter())
            answer = await self.client.ask(dialogue.ask(turn), due)
            self.answers.append(answer)
            self.on_answer(answer)
            if not answer.is_good:
                # There is nothing to go on from.
                return
            dialogue.hear(answer)
            due = answer.ended


async def run_load(target: Target, load: Load, *, on_answer: OnAnswer = ignore) -> Result:
    """``on_answer`` hears of each answer that is measured. What goes wrong with an answer is in the
    result. Raises ``ValueError`` for a load that the target can't be given, and ``LoadError`` if
    the warm-up fails or metrics can't be read before the load."""
    if not load.conversations:
        raise ValueError("a load needs a conversation")
    for conversation in (*load.warm_up, *load.conversations):
        check(target, conversation)
    async with session(target, load.silence_s) as connections:
        client = Client(connections, target, load.sampling)
        before = await read_counts(target)
        warm_up = _Run(client, load.concurrency)
        await warm_up.hold(load.warm_up)
        for answer in warm_up.answers:
            if not answer.is_good:
                raise LoadError(f"the warm-up failed: {answer.faults or answer.error}")
        before = await settled_counts(target, before, warm_up.num_good)
        run = _Run(client, load.concurrency, on_answer)
        start, cpu_start = time.perf_counter(), time.process_time()
        await run.hold(load.conversations, load.arrivals())
        cpu_s = time.process_time() - cpu_start
        try:
            counts = added(before, await settled_counts(target, before, run.num_good))
        except LoadError:
            # What was measured is there, and no count will agree with it.
            counts = {}
        repeated = _Run(client, load.concurrency)
        await repeated.hold(load.conversations[: load.repeats])
    return Result(
        target=target,
        load=load,
        answers=tuple(run.answers),
        repeats=tuple(repeated.answers),
        start=start,
        client_cpu_s=cpu_s,
        server_counts=counts if target.metrics_urls else None,
    )
