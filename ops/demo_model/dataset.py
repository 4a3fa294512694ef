"""Documents packed into rows of token ids, and the rows into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from ops.demo_model.corpus import Document
from ops.demo_model.tokenizer import NUM_SPECIAL_TOKENS, VOCAB_SIZE, segments

_PADDING = 0
_NOISE = 0.08
"""Share of prompt tokens that are replaced in a noisy row."""
_DOCUMENTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Rows:
    """All ``[num_rows, length]``: int32 tokens, bool targets, int32 document of the row.

    ``targets[r, i]`` says whether ``tokens[r, i]`` is to be predicted from what precedes it.
    Documents never cross a row; document 0 is padding.
    """

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.bool_]
    documents: npt.NDArray[np.int32]

    def batches(self, batch_size: int, num_steps: int, seed: int) -> Iterator[Rows]:
        """``num_steps`` batches, epoch after epoch in a new order.

        In half of the rows some prompt tokens are replaced by random ones, so that the model
        learns to rely on no single word of a question.
        """
        rng = np.random.default_rng(seed)
        order = chain.from_iterable(rng.permutation(len(self.tokens)) for _ in count())
        for _ in range(num_steps):
            rows = np.fromiter(order, np.int64, batch_size)
            tokens, targets = self.tokens[rows], self.targets[rows]
            noisy = rng.random(tokens.shape) < _NOISE * rng.integers(0, 2, (batch_size, 1))
            noisy &= ~targets & (tokens >= NUM_SPECIAL_TOKENS)
            noise = rng.integers(NUM_SPECIAL_TOKENS, VOCAB_SIZE, tokens.shape, np.int32)
            yield Rows(np.where(noisy, noise, tokens), targets, self.documents[rows])


def pack(documents: Iterable[Document], tokenizer: Tokenizer, length: int) -> Rows:
    """First-come packing of ``documents``; one that is longer than ``length`` is left out."""
    rows: list[tuple[list[int], list[bool], list[int]]] = []
    for tokens, targets in _encode(documents, tokenizer):
        if len(tokens) > length:
            continue
        if not rows or len(rows[-1][0]) + len(tokens) > length:
            rows.append(([], [], []))
        row_tokens, row_targets, row_documents = rows[-1]
        number = row_documents[-1] + 1 if row_documents else 1
        row_tokens += tokens
        row_targets += targets
        row_documents += [number] * len(tokens)
    shape = (len(rows), length)
    packed = Rows(
        np.full(shape, _PADDING, np.int32), np.zeros(shape, np.bool_), np.zeros(shape, np.int32)
    )
    for index, (row_tokens, row_targets, row_documents) in enumerate(rows):
        used = len(row_tokens)
        packed.tokens[index, :used] = row_tokens
        packed.targets[index, :used] = row_targets
        packed.documents[index, :used] = row_documents
    return packed


def _encode(
    documents: Iterable[Document], tokenizer: Tokenizer
) -> Iterator[tuple[list[int], list[bool]]]:
    """Token ids and target flags of each document."""
    for chunk in _chunks(documents):
        pieces = [segments(document) for document in chunk]
        encodings = iter(tokenizer.encode_batch_fast([text for p in pieces for text, _ in p]))
        for document_pieces in pieces:
            tokens: list[int] = []
            targets: list[bool] = []
            for _, target in document_pieces:
                ids = next(encodings).ids
                tokens += ids
                targets += [target] * len(ids)
            # The first token of a document has nothing that it could be predicted from.
            targets[0] = False
            yield tokens, targets


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    for document in documents:
        chunk.append(document)
        if len(chunk) == _DOCUMENTS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
