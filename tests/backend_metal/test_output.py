from pathlib import Path

from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import TokenDraw
from backend_metal.engine.text.output import SequenceOutput
from backend_metal.engine.text.token_text import TokenText
from deployments.backend import Delta, SamplingParams
from tests.support.backend_metal.engine_harness import byte_tokenizer


def push_all(path: Path, token_ids: list[int], **sampling: object) -> list[Delta]:
    tokenizer = byte_tokenizer(path)
    params = SamplingParams(**sampling)
    sequence = Sequence("a", 0, [65], params, max_tokens=len(token_ids), seed=0, arrival=0)
    output = SequenceOutput(sequence, tokenizer, TokenText(tokenizer), frozenset())
    deltas = []
    for token_id in token_ids:
        sequence.tokens.append(token_id)
        deltas.append(output.push(TokenDraw(token_id, -0.5, ((token_id, -0.5),))))
    return deltas


def test_a_character_is_sent_when_it_is_whole(tmp_path: Path) -> None:
    deltas = push_all(tmp_path, [*"é".encode(), *b"!"])
    assert [delta.text for delta in deltas] == ["", "é", "!"]
    assert [delta.token_ids for delta in deltas] == [(0xC3,), (0xA9,), (0x21,)]


def test_a_character_cut_off_by_the_limit_is_flushed(tmp_path: Path) -> None:
    deltas = push_all(tmp_path, [0x41, 0xC3])
    assert [delta.text for delta in deltas] == ["A", "\ufffd"]
    assert deltas[-1].finish_reason == "length"


def test_a_stop_string_that_only_the_flush_completes_ends_with_stop(tmp_path: Path) -> None:
    deltas = push_all(tmp_path, [0x41, 0xC3], stop=("\ufffd",))
    assert [delta.text for delta in deltas] == ["A", ""]
    assert deltas[-1].finish_reason == "stop"


def test_logprobs_carry_the_tokens_own_bytes(tmp_path: Path) -> None:
    (delta, *_) = push_all(tmp_path, [*"é".encode()])
    (entry,) = delta.logprobs
    assert (entry.token_id, entry.utf8, entry.logprob) == (0xC3, b"\xc3", -0.5)
    assert entry.top[0].utf8 == b"\xc3"
