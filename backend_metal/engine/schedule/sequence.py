"""One continuation of one prompt, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.restrictions import TokenRestrictions
from backend_metal.engine.pooling.readout import Readout
from backend_metal.engine.schedule.block_hash import block_hash, root_hash
from backend_metal.engine.schedule.block_table import BlockTable
from backend_metal.engine.schedule.int_buffer import Int32Array, IntBuffer
from backend_metal.engine.schedule.prompt_readings import PromptReadings
from deployments.backend import PrefixMiss, SamplingParams

Order = tuple[int, int, int]
"""Priority, arrival and index in the request."""


def pending_token(row: int) -> int:
    """Stands for a token that the device has and the host hasn't: that of row ``row``. Negative, so
    that it is no token id."""
    return -1 - row


KNOWN = 0
"""In the place of a pending token: there is none."""
FROM_ZEROS = -1
"""Where a sequence reads its state that has none yet."""


@dataclass
class HeldState:
    """The slots of a running sequence's recurrent state."""

    read: int
    """Where its next step finds the state; ``FROM_ZEROS``: it is all zeros."""
    write: int
    """Where it leaves the state; the sequence alone has this slot."""
    borders: list[int]
    """Ascending: how many tokens are computed where a snapshot is to be kept."""
    of_answer: bytes | None = None
    """The name of the snapshot that the next one of its answer replaces."""

    @property
    def slots(self) -> list[int]:
        return [self.write] if self.read in (FROM_ZEROS, self.write) else [self.read, self.write]


class Status(Enum):
    NEW = auto()
    """Not yet given to the scheduler."""
    WAITING = auto()
    RUNNING = auto()
    PAUSED = auto()
    """Its client is to read first: until then it has no blocks and no place."""
    ENDING = auto()
    """All that it wants has been submitted, and has not come back: it needs no blocks any more."""
    FINISHED = auto()


class Sequence:
    """Tokens, and how many of them have their K/V in the blocks of ``block_tables``, or will have
    it when the steps that were submitted are done.

    The newest token may be pending: drawn on the device, and not read yet. Until it is, ``tokens``
    ends in ``pending_token`` of its row.

    Invariant between two steps, while it runs: ``num_computed_tokens < num_tokens``, since the
    newest token is always still to be run, and ``block_tables`` cover the computed tokens, but for
    those behind a window.
    """

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_token_ids: Iterable[int],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        seed: int,
        arrival: int,
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        group: str = "",
        cache_salt: str | None = "",
        output_token_ids: Iterable[int] = (),
        num_history_tokens: int = 0,
        guide: Guide | None = None,
        restrictions: TokenRestrictions | None = None,
        readout: Readout | None = None,
    ) -> None:
        """A sequence that waits to be given to the scheduler.

        ``tenant``, ``weight``, ``group``: as in ``GenerationRequest``.
        ``cache_salt``: those who have the same share cached blocks; with None, nobody does.
        ``output_token_ids``: what another engine has generated; it is recomputed, as after a
        preemption. ``num_history_tokens``: of the prompt, those before its last message.
        ``guide``: its own, at the beginning of the output.
        ``readout``: of a prompt that nothing is generated for, which ends when it is computed.
        """
        self.request_id = request_id
        self.index = index
        self.sampling = sampling
        self.guide = guide
        self.restrictions = restrictions
        self.readout = readout
        self.readings: PromptReadings | None = None
        """Of its prompt, where somebody asks for them."""
        self.max_tokens = max_tokens
        self.seed = seed
        self.order: Order = (priority, arrival, index)
        """Lower runs first and is preempted last, where shares are equal."""
        self.priority = priority
        self.tenant = tenant
        self.weight = weight
        self.group = group or request_id
        self.tokens = IntBuffer(prompt_token_ids)
        self.num_prompt_tokens = len(self.tokens)
        for token_id in output_token_ids:
            self.tokens.append(token_id)
        self.num_resumed_tokens = len(self.tokens) - self.num_prompt_tokens
        self.pending = KNOWN
        """The newest token, as ``pending_token`` says, while the device has it and the host
        hasn't."""
        self.num_computed_tokens = 0
        self.num_starts = 0
        """How often it has begun to run: a step that was submitted before the latest start filled
        blocks that it no longer holds."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache when the sequence first ran."""
        self.prefix_miss: PrefixMiss | None = None
        """Why these were not more."""
        self.block_tables: list[BlockTable] = []
        """One for each group, while it runs."""
        self.borders: set[int] = set()
        """Numbers of blocks at whose end others are likely to part from it."""
        self.state: HeldState | None = None
        """None unless it runs, and for models without recurrent layers."""
        self.num_history_tokens = num_history_tokens
        self.status = Status.NEW
        self.counts_prefix_hit = cache_salt is not None and not self.num_resumed_tokens
        """Whether what it finds in the prefix cache is still to be counted, once."""
        self.awaited_gains = (0, 0)
        """A group, and its pool's ``num_gains`` before which its blocks can't fit."""
        self._root_hash = None if cache_salt is None else root_hash(cache_salt)
        self._block_hashes: list[bytes] = []

    @property
    def is_pending(self) -> bool:
        """Whether the newest token is."""
        return self.pending < 0

    @property
    def num_tokens(self) -> int:
        return self.tokens.length

    @property
    def num_known_tokens(self) -> int:
        return self.tokens.length - (self.pending < 0)

    @property
    def num_output_tokens(self) -> int:
        return self.tokens.length - self.num_prompt_tokens

    @property
    def wants_more(self) -> bool:
        """Whether another token is to be drawn, as far as that is known ahead."""
        return self.tokens.length - self.num_prompt_tokens < self.max_tokens

    @property
    def least_room(self) -> int:
        """Tokens that the cache must be able to hold for it: with one to generate, if it does."""
        return self.num_tokens + self.wants_more

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.tokens.length - self.num_computed_tokens

    @property
    def is_prompt_computed(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def output_token_ids(self) -> Int32Array:
        return self.tokens.view()[self.num_prompt_tokens :]

    @property
    def reads_prompt(self) -> bool:
        """Whether logits of its prompt are still to be read."""
        return self.readings is not None and not self.readings.is_complete

    def draw(self, row: int) -> None:
        """The next token is what row ``row`` of the step that was submitted last draws."""
        self.pending = pending_token(row)
        self.tokens.append(self.pending)

    def learn(self, token_id: int) -> None:
        """What the pending token is."""
        self.tokens.replace_last(token_id)
        self.pending = KNOWN

    def read_prompt(self, num_alternatives: int) -> None:
        first_token = int(self.tokens[0])
        self.readings = PromptReadings(num_alternatives, first_token, self.num_prompt_tokens)

    def token_range(self, start: int, stop: int) -> Int32Array:
        return self.tokens.view()[start:stop]

    def block_hashes(self, block_size: int) -> list[bytes]:
        """Hashes of the blocks that known tokens fill, first to last; none if nobody may share
        them.

        The sequence's own list, not a copy.
        """
        hashes = self._block_hashes
        if self._root_hash is not None:
            for block in range(len(hashes), self.num_known_tokens // block_size):
                tokens = self.token_range(block * block_size, (block + 1) * block_size)
                hashes.append(block_hash(hashes[-1] if hashes else self._root_hash, tokens))
        return hashes
