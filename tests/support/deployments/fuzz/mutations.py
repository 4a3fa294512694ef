"""The mutations together: input NUMBER of a SEED."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from random import Random

from tests.support.deployments.fuzz import of_bytes, of_heads, of_json
from tests.support.deployments.fuzz.recorded import Message, recorded


class Manner(Enum):
    AT_ONCE = "at once"
    IN_PIECES = "in pieces"
    LEAVES = "leaves before the end of the answer"
    ENDS = "says that it will send no more"


@dataclass(frozen=True)
class Input:
    seed: int
    number: int
    raw: bytes
    manner: Manner


class Mutations:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._raw = list(recorded().values())
        self._json = [body for raw in self._raw if _is_json(body := Message.parse(raw).body)]

    def input(self, number: int) -> Input:
        dice = Random(f"{self._seed}/{number}")
        raw = dice.choice(self._raw)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            raw = self._mutated(dice, raw)
        manner = dice.choices(list(Manner), (12, 4, 3, 1))[0]
        return Input(self._seed, number, raw, manner)

    def _mutated(self, dice: Random, raw: bytes) -> bytes:
        message, kind = Message.parse(raw), dice.random()
        if kind < 0.45 and _is_json(message.body):
            body = of_json.mutate(dice, message.body, self._json)
            return message.with_body(body).raw()
        if kind < 0.55 and message.body:
            body = of_bytes.mutate(dice, message.body, self._json)
            return message.with_body(body).raw()
        if kind < 0.8:
            return of_heads.mutate(dice, message).raw()
        return of_bytes.mutate(dice, raw, self._raw)


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False
