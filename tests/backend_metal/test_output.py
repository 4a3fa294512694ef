from pathlib import Path

from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.thought_meter import ThoughtMeter
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.step import TokenDraw
from backend_metal.engine.text.output import SequenceOutput
from backend_metal.engine.text.token_text import TokenText
from deployments.backend import Delta, SamplingParams, Thoughts
from tests.support.backend_metal.engine_harness import byte_tokenizer


def push_all(path: Path, token_ids: list[int], **sampling: object) -> list[Delta]:
    tokenizer = byte_tokenizer(path)
    params, texts = SamplingParams(**sampling), TokenText(tokenizer)
    meter = ThoughtMeter(params.thoughts, has_begun=True) if params.thoughts else None
    guide = Guide(texts.utf8, thoughts=meter) if meter else None
    sequence = Sequence(
        "a", 0, [65], params, max_tokens=len(token_ids), seed=0, arrival=0, guide=guide
    )
    output = SequenceOutput(sequence, tokenizer, texts, frozenset())
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
    (delta, *_) = push_all(tmp_path, [*"é".encode()], logprobs=1)
    (entry,) = delta.logprobs
    assert (entry.token_id, entry.utf8, entry.logprob) == (0xC3, b"\xc3", -0.5)
    assert entry.top[0].utf8 == b"\xc3"


def test_what_ended_an_answer_may_be_part_of_it(tmp_path: Path) -> None:
    for included, text in ((False, "A"), (True, "ABC")):
        deltas = push_all(tmp_path, [*b"ABC"], stop=("BC",), include_stop=included)
        assert "".join(delta.text for delta in deltas) == text
        assert deltas[-1].finish_reason == "stop"
        deltas = push_all(tmp_path, [*b"AB"], stop_token_ids=(0x42,), include_stop=included)
        assert "".join(delta.text for delta in deltas) == text[:2]
        assert deltas[-1].finish_reason == "stop"


def test_a_stop_string_counts_behind_the_thoughts_alone(tmp_path: Path) -> None:
    deltas = push_all(tmp_path, [*b"aBC</t>dBCe"], stop=("BC",), thoughts=Thoughts("<t>", "</t>"))
    assert "".join(delta.text for delta in deltas) == "aBC</t>d"
    assert deltas[-1].stop_string == "BC"


def test_special_tokens_are_text_where_they_are_not_skipped(tmp_path: Path) -> None:
    begin, end = 256, 257
    for skips, text in ((True, "AB"), (False, "A<|bos|>B")):
        deltas = push_all(tmp_path, [0x41, begin, 0x42], skip_special_tokens=skips)
        assert "".join(delta.text for delta in deltas) == text
    shown = push_all(
        tmp_path, [0x41, end], stop_token_ids=(end,), include_stop=True, skip_special_tokens=False
    )
    assert "".join(delta.text for delta in shown) == "A<|eos|>"


def test_a_stop_string_counts_from_the_least_number_of_tokens_on(tmp_path: Path) -> None:
    deltas = push_all(tmp_path, [*b"ababab"], stop=("ab",), min_tokens=3)
    assert "".join(delta.text for delta in deltas[:4]) == "ab"
    assert deltas[3].finish_reason == "stop"
