"""What a relayed request uses of its key's tokens."""

from __future__ import annotations

import logging

from deployments.gateway.access.reservation import Reservation
from deployments.gateway.relay.connections import ConnectionLostError, UnreachableError
from deployments.gateway.relay.request import CutOff, RelayedRequest
from deployments.wire.last_word import ATTEMPTS_PATH, LastWord

logger = logging.getLogger(__name__)


class RefusalMeter:
    """Of a prompt that is refused for what it is, before any replica has it."""

    def __init__(self, reservation: Reservation) -> None:
        self._tokens = reservation.demand.likely_prompt_tokens

    def at_most(self) -> int:
        return self._tokens

    async def used(self) -> int:
        return self._tokens


class RequestMeter:
    """The engine's work counts, whoever has seen it: of an answer that its client leaves, the
    replica says how far it had got. What it doesn't say stays as it was reserved."""

    def __init__(self, request: RelayedRequest, reservation: Reservation | None) -> None:
        """``reservation``: None if nobody counted when the request came."""
        self._request = request
        self._reservation = reservation

    def at_most(self) -> int:
        request, reservation = self._request, self._reservation
        if reservation is None or request.has_ended:
            return self._told
        if request.reader.num_prompts < len(reservation.demand.prompts):
            return reservation.tokens
        return reservation.after_prompts(request.reader.prompt_tokens)

    async def used(self) -> int:
        if self._request.cut_off is None:
            return self._told
        last_word = await self._last_word(self._request.cut_off)
        if last_word is None:
            return self.at_most()
        reader = self._request.reader
        return max(reader.prompt_tokens, last_word.prompt_tokens) + max(
            reader.num_logged, last_word.completion_tokens
        )

    @property
    def _told(self) -> int:
        """By replicas so far. A prompt that one refuses as wrong it has read, and maybe
        tokenized."""
        reader, refusal = self._request.reader, self._request.client.refusal
        told = reader.prompt_tokens + reader.num_logged
        if told or self._reservation is None or refusal is None or refusal[0].status != 400:
            return told
        return self._reservation.demand.likely_prompt_tokens

    async def _last_word(self, cut_off: CutOff) -> LastWord | None:
        parts, replica = self._request.parts, cut_off.replica
        try:
            async with parts.connections.request(
                "DELETE",
                replica.url,
                f"{ATTEMPTS_PATH}/{cut_off.attempt}",
                headers={"Authorization": f"Bearer {replica.secret}"},
                connect_timeout_s=parts.settings.connect_timeout_s,
                stall_timeout_s=parts.settings.stall_timeout_s,
            ) as response:
                body = await response.read()
        except (UnreachableError, ConnectionLostError, TimeoutError) as error:
            logger.warning("%s does not say what a request used: %s", replica.replica_id, error)
            return None
        return LastWord.parse(body) if response.status == 200 else None
