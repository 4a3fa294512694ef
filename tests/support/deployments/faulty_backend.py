"""A backend that does what none should, by the words of a prompt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from typing import Any

from deployments.backend import Delta, GenerationRequest, Prefill
from tests.support.deployments.fake_backend import FakeBackend


class Panic(BaseException):
    """As PyO3 makes of Rust's."""


class FaultyBackend(FakeBackend):
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        word = str(request.prompt)
        if word == "panic":
            raise Panic("of a library")
        if word == "log":
            logging.getLogger("tests.faulty").warning("noted", extra={"lock": threading.Lock()})
            try:
                raise KeyError("seen")
            except KeyError:
                logging.getLogger("tests.faulty").exception("failed")
        if word == "unsendable":
            item: Any = threading.Lock()
            yield Prefill(0, 1, prompt_text=item)
        async for made in super().generate(request):
            yield made

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        raise asyncio.CancelledError

    async def stop(self) -> None:
        # A thread that keeps an interpreter from ending.
        threading.Thread(target=threading.Event().wait).start()
        raise OSError("a device that is gone")
