"""What is wrong with an answer."""

from __future__ import annotations

from collections.abc import Iterator

from ops.bench.serve.answer import Answer
from ops.bench.serve.conversation import Request


def faults(request: Request, answer: Answer) -> tuple[str, ...]:
    """Of an answer that was refused there are none: it is counted as such."""
    return () if answer.is_refused else tuple(_faults(request, answer))


def _faults(request: Request, answer: Answer) -> Iterator[str]:
    if answer.error:
        # All that is missing for that reason is no other fault.
        yield answer.error
        return
    if not answer.done:
        yield "the stream ends without [DONE]"
    if len(answer.finish_reasons) != 1:
        yield f"{len(answer.finish_reasons)} finish reasons, not one: {answer.finish_reasons}"
    if request.wants_ids and answer.token_ids is None:
        yield "no token ids, which were asked for"
    yield from _of_length(request, answer)
    yield from _of_usage(request, answer)


def _of_length(request: Request, answer: Answer) -> Iterator[str]:
    ids, most = answer.token_ids, request.max_tokens
    num_tokens = answer.num_tokens if ids is None else len(ids)
    if num_tokens > most:
        yield f"{num_tokens} tokens, but {most} were asked for at most"
    for reason in answer.finish_reasons:
        if reason == "length" and num_tokens < most:
            yield f"finish reason 'length' after {num_tokens} of {most} tokens"
        if reason != "length" and request.all_tokens:
            yield f"finish reason {reason!r}, though nothing but the length may end it"
    if num_tokens and not answer.times:
        yield f"{num_tokens} tokens, but no event that brings any"


def _of_usage(request: Request, answer: Answer) -> Iterator[str]:
    if answer.usage is None:
        yield "no usage, which was asked for"
        return
    told, prompt = answer.usage.completion_tokens, answer.usage.prompt_tokens
    if answer.token_ids is None:
        if told < len(answer.times):
            yield f"usage says {told} tokens, but {len(answer.times)} events brought some"
    elif told != len(answer.token_ids):
        yield f"usage says {told} tokens, but {len(answer.token_ids)} came"
    if request.prompt_tokens not in (None, prompt):
        yield f"usage says {prompt} prompt tokens, but {request.prompt_tokens} were sent"


def difference(first: Answer, second: Answer) -> str:
    """Of two answers to one request, which must be the same; empty if they are."""
    one, other = (a.text if a.token_ids is None else a.token_ids for a in (first, second))
    if one == other:
        return ""
    unit = "character" if first.token_ids is None else "token"
    pairs = enumerate(zip(one, other, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    return f"answered differently when asked again, from {unit} {same} on"
