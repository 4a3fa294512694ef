"""A gateway with its page, and an engine that writes an answer of some kind at some pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import cycle, islice
from time import perf_counter

from deployments.backend import Delta, EngineConfig, GenerationRequest, ModelInfo
from ops.bench.relay.servers import MAX_MODEL_LEN, ReadyBackend, serve_gateway, serve_replica

MIXED = """## A prefix cache

It keeps the **keys and values** of prompts that were `computed` before, block by block, as in
[the paper](https://example.org/). When $n$ prompts begin alike, *one* of them is computed.

- what is found is shared
- what is not is computed
  1. in chunks
  2. beside those that decode

| prompt | cached | to compute |
| --- | ---: | ---: |
| the first one | 0 | 768 |
| the same again | 767 | 1 |

```python
def longest_prefix(pool: BlockPool, tokens: list[int]) -> list[int]:
    found = []
    for block_hash in hashes_of(tokens, size=16):
        block = pool.find(block_hash)  # None: nobody had it
        if block is None:
            break
        found.append(block)
    return found
```

> Nothing of it is evicted while somebody reads it.

"""
THOUGHTS = "thoughts"
KINDS = {
    "mixed": ("", MIXED),
    "code": ("```python\n", "def f(a, b): return 'c' + a[1]  # d\n"),
    "list": ("", "- an item with **some** words and `code` in it\n"),
    "table": ("| a | b | c |\n|---|---|---|\n", "| some words | `code` | **3** |\n"),
    "paragraph": ("", "words and **more** words of `one` paragraph that never ends "),
    "quote": ("", "> words and **more** words that somebody else has said\n"),
    "numbers": ("", "1. an item\n\n   with another paragraph, and *more* in it\n"),
    THOUGHTS: ("<think>\n", "words of a thought that goes on and on\n"),
}
"""How an answer begins, and what it then says again and again."""
CHARACTERS = 4
"""Of a token."""
THINKS = "{{ message.content }}<think>{{ messages[0] }}</think>"
"""Never rendered; it tells how thoughts are written."""


class Writer(ReadyBackend):
    """Says the kind of answer that its name is, ``tokens_per_second``, however late it woke up."""

    def __init__(self, kind: str, tokens_per_second: float) -> None:
        super().__init__(kind, 1 / tokens_per_second)
        self._begin, self._again = KINDS[kind]

    async def start(self, config: EngineConfig) -> ModelInfo:
        marks = {"<think>": 1, "</think>": 2}
        return ModelInfo(self.name, MAX_MODEL_LEN, chat_template=THINKS, added_tokens=marks)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        num_tokens = request.sampling.max_tokens or MAX_MODEL_LEN
        pieces = pieces_of(self._begin, self._again, num_tokens)
        start = perf_counter()
        for at, piece in enumerate(pieces):
            await asyncio.sleep(max(0.0, start + at * self.step_s - perf_counter()))
            yield Delta(
                0,
                piece,
                (31_337,),
                num_prompt_tokens=8,
                num_cached_tokens=0,
                finish_reason="length" if at == num_tokens - 1 else None,
            )


def pieces_of(begin: str, again: str, num_tokens: int) -> list[str]:
    """The text of each token."""
    letters = islice(cycle(again), CHARACTERS * num_tokens)
    text = (begin + "".join(letters))[: CHARACTERS * num_tokens]
    return [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]


async def serve(tokens_per_second: float) -> str:
    """Its address; each kind of answer is a model's name."""
    writers = [Writer(kind, tokens_per_second) for kind in KINDS]
    return await serve_gateway([await serve_replica(one) for one in writers])
