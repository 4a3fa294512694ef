"""Requests over HTTP, each read as it is streamed.

By aiohttp, since a client must be cheap beside what it measures: with 64 streams httpx takes half
as much processor time again for a token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import aiohttp

from ops.bench.serve.answer import Answer, EventReader, Heard, shown
from ops.bench.serve.conversation import Conversation, Dialogue, Request
from ops.bench.serve.faults import faults
from ops.bench.serve.target import Sampling, Target

CONNECT_TIMEOUT_S = 30.0


@dataclass
class _Sent:
    at: float
    """When a request was handed to its connection, by ``time.perf_counter``."""
    on_a_used_one: bool = False


async def _note_used_one(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    reused: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.on_a_used_one = True


async def _note_sent(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    sent: aiohttp.TraceRequestChunkSentParams,
) -> None:
    context.trace_request_ctx.at = time.perf_counter()


def session(target: Target, silence_s: float) -> aiohttp.ClientSession:
    # What many requests at once cost the client itself is no time of the server's.
    traces = aiohttp.TraceConfig()
    traces.on_request_chunk_sent.append(_note_sent)
    traces.on_connection_reuseconn.append(_note_used_one)
    return aiohttp.ClientSession(
        trace_configs=[traces],
        # As many connections as there are streams.
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Content-Type": "application/json", **target.headers},
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s
        ),
    )


@dataclass(frozen=True)
class Client:
    session: aiohttp.ClientSession
    target: Target
    sampling: Sampling

    def dialogue(self, conversation: Conversation, number: int) -> Dialogue:
        return Dialogue(self.target, self.sampling, conversation, number)

    async def ask(self, request: Request, due: float) -> Answer:
        """``due``: when it was to be sent, by ``time.perf_counter``."""
        while True:
            answer, was_closed = await self._ask(request, due)
            if not was_closed:
                return answer

    async def _ask(self, request: Request, due: float) -> tuple[Answer, bool]:
        """And whether the server had closed the connection after another request, which
        llama.cpp's does without a word. That is no answer to this one."""
        heard = Heard()
        status, retry_after, error = 0, "", ""
        broke = False
        sent = _Sent(time.perf_counter())
        try:
            async with self.session.post(
                self.target.endpoint, data=request.body, trace_request_ctx=sent
            ) as response:
                status = response.status
                retry_after = response.headers.get("Retry-After", "")
                if status == 200:
                    await _read(response, heard)
                else:
                    error = f"status {status}: {shown(await response.text())}"
        except TimeoutError:
            error = "the server was silent for too long"
        except aiohttp.ClientError as failure:
            broke = True
            error = f"the connection broke: {failure!r}"
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            # All that an event may lack.
            error = f"not a stream of OpenAI's: {failure}"
        answer = Answer(
            request.number,
            request.turn,
            due,
            sent.at,
            time.perf_counter(),
            status,
            error,
            retry_after,
            "".join(heard.text),
            None if heard.token_ids is None else tuple(heard.token_ids),
            tuple(heard.times),
            tuple(heard.finish_reasons),
            heard.done,
            heard.usage,
        )
        was_closed = broke and status == 0 and sent.on_a_used_one
        return replace(answer, faults=faults(request, answer)), was_closed


async def _read(response: aiohttp.ClientResponse, heard: Heard) -> None:
    events = EventReader()
    async for data in response.content.iter_any():
        now = time.perf_counter()
        for event in events.feed(data):
            heard.hear(event, now)
