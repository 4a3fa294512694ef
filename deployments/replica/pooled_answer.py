"""Vectors and scores as the bodies that clients expect, put together as they come.

A vector is made text when it comes: all of them at once would hold up every stream for seconds.
"""

from __future__ import annotations

import base64
import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deployments.backend import Pooled, PoolingInfo
from deployments.protocol.pooling import EmbeddingRequest, RerankRequest
from deployments.replica.answer_json import encode
from deployments.wire.envelope import Envelope

Floats = npt.NDArray[np.float32]
SHORTEST = 1e-12
"""No vector is divided by less."""


class PooledAnswer(Protocol):
    def add(self, pooled: Pooled) -> None: ...

    def whole(self, num_tokens: int) -> bytes:
        """The body, once every input was added."""
        ...


def answer_for(
    request: EmbeddingRequest | RerankRequest, info: PoolingInfo, envelope: Envelope
) -> PooledAnswer:
    if isinstance(request, EmbeddingRequest):
        return EmbeddingAnswer(request, is_normalized=info.is_normalized)
    return RerankAnswer(request, envelope, by_score=info.ranks_by == "score")


class EmbeddingAnswer:
    """OpenAI's ``list`` of ``embedding``."""

    def __init__(self, request: EmbeddingRequest, *, is_normalized: bool) -> None:
        self._request = request
        self._is_normalized = is_normalized
        self._made: dict[int, bytes] = {}

    def add(self, pooled: Pooled) -> None:
        vector = self._cut(pooled.values)
        if self._request.encoding_format == "base64":
            told = f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'
        else:
            told = encode(vector.tolist())
        head = f'{{"object":"embedding","index":{pooled.index},"embedding":'
        self._made[pooled.index] = f"{head}{told}}}".encode()

    def _cut(self, vector: Floats) -> Floats:
        """Its first ``dimensions``, of the length that whole ones have."""
        if self._request.dimensions is None:
            return vector
        vector = vector[: self._request.dimensions]
        if self._is_normalized:
            vector = vector / np.float32(max(float(np.linalg.norm(vector)), SHORTEST))
        return vector

    def whole(self, num_tokens: int) -> bytes:
        data = b",".join(self._made[index] for index in sorted(self._made))
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        rest = f'"model":{encode(self._request.model)},"usage":{encode(usage)}}}'
        return b'{"object":"list","data":[' + data + b"]," + rest.encode()


class RerankAnswer:
    """Jina's and vLLM's: results by relevance, the most relevant first."""

    def __init__(self, request: RerankRequest, envelope: Envelope, *, by_score: bool) -> None:
        self._request = request
        self._id = f"rerank-{envelope.answer_id}"
        self._by_score = by_score
        self._values: dict[int, Floats] = {}

    def add(self, pooled: Pooled) -> None:
        self._values[pooled.index] = pooled.values

    def whole(self, num_tokens: int) -> bytes:
        request, relevance = self._request, self._relevance()
        ranked = sorted(range(len(relevance)), key=lambda index: (-relevance[index], index))
        results = [
            {"index": index, "relevance_score": relevance[index]}
            | ({"document": {"text": request.documents[index]}} if request.return_documents else {})
            for index in ranked[: request.top_n or None]
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        answer = {"id": self._id, "model": request.model, "usage": usage, "results": results}
        return encode(answer).encode()

    def _relevance(self) -> list[float]:
        """Of each document: between 0 and 1, or a cosine."""
        ordered = [self._values[index] for index in range(len(self._values))]
        if self._by_score:
            return [_sigmoid(float(values[0])) for values in ordered]
        query, *documents = ordered
        return [_cosine(query, document) for document in documents]


def _sigmoid(score: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * score))


def _cosine(one: Floats, other: Floats) -> float:
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.dot(one, other)) / max(lengths, SHORTEST)
