"""The chat in a terminal, against servers that answer as tests say, and in process."""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deployments.command import chat
from deployments.command.chat import Chat
from deployments.command.chat_partner import Message, Piece, ServerPartner
from deployments.command.server_url import KEY_VARIABLE, ServerError
from deployments.command.terminal import printable
from tests.support.deployments.told_server import Answer, told_server

MODELS: Answer = (200, json.dumps({"data": [{"id": "demo"}, {"id": "other"}]}).encode())
CHAT = "/v1/chat/completions"


def events(*deltas: Any, end: str = "data: [DONE]\n\n") -> bytes:
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return (": keep-alive\n\n" + "".join(lines) + end).encode()


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str, arguments: Sequence[str]) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return chat.run(list(arguments))


def test_an_answer_streams_and_the_next_question_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-key")
    answer = events({"role": "assistant"}, {"reasoning_content": "Hm. "}, {"content": "Yes"}, {})
    saved = tmp_path / "chat.json"
    with told_server({"/v1/models": MODELS, CHAT: (200, answer)}) as server:
        status = talk(
            monkeypatch,
            *("First?", "Second?", f"/save {saved}"),
            arguments=[f"{server.url}/v1", "--model", "other", "--system", "Be brief."],
        )
    assert status == 0
    assert "Hm. Yes\n" in capsys.readouterr().out
    paths, bodies, keys = zip(*server.asked, strict=True)
    assert paths == ("/v1/models", CHAT, CHAT)
    assert set(keys) == {"Bearer a-key"}
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Second?"},
    ]
    assert bodies[2] == {"model": "other", "messages": conversation, "stream": True}
    assert json.loads(saved.read_text()) == [
        *conversation,
        {"role": "assistant", "content": "Yes"},
    ]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, b'{"error": {"message": "No such key."}}'), "401 No such key. Set POMONA_API_KEY."),
        ((502, b"<html>"), "502 <html>"),
        ((200, events({"content": "Ye"}, end="")), "the answer broke off"),
        (
            (200, events({"content": "Ye"}, end='data: {"error": {"message": "lost"}}\n\n')),
            "lost",
        ),
    ],
)
def test_a_failed_answer_is_told_and_leaves_the_conversation_as_it_was(
    answer: Answer, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with told_server({"/v1/models": MODELS, CHAT: answer}) as server:
        conversation = Chat(ServerPartner(server.url))
        conversation.say("Well?")
    assert told in capsys.readouterr().err
    assert conversation.messages == []


@pytest.mark.parametrize(
    ("models", "model", "told"),
    [
        (MODELS, "mine", "serves no 'mine'; it serves demo, other"),
        ((200, b'{"data": []}'), None, "serves no model yet"),
        ((200, b"<html>"), None, "its answer is no JSON"),
        ((200, b"[]"), None, "has no list of models"),
    ],
)
def test_a_server_without_the_model_is_told(models: Answer, model: str | None, told: str) -> None:
    with told_server({"/v1/models": models}) as server, pytest.raises(ServerError, match=told):
        ServerPartner(server.url, model)


def test_ctrl_c_stops_an_answer_which_stays(capsys: pytest.CaptureFixture[str]) -> None:
    closed = []

    class Interrupted:
        name = "one that is interrupted"

        def answer(self, messages: Sequence[Message]) -> Generator[Piece, None, None]:
            try:
                yield Piece("As far as")
                raise KeyboardInterrupt
            finally:
                closed.append(True)

    conversation = Chat(Interrupted())
    conversation.say("Well?")
    assert closed
    assert conversation.messages[-1] == {"role": "assistant", "content": "As far as"}
    assert "(stopped)" in capsys.readouterr().out


def test_beginning_again_keeps_instructions_unless_there_are_others() -> None:
    class Silent:
        name = "silent"

        def answer(self, messages: Sequence[Message]) -> Generator[Piece, None, None]:
            yield Piece("yes")

    conversation = Chat(Silent(), "Be brief.")
    conversation.say("Well?")
    conversation.begin_again()
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]
    conversation.begin_again("Be long.")
    assert conversation.messages == [{"role": "system", "content": "Be long."}]


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x1b[2J\r\x08", "\ufffd[2J\ufffd\ufffd"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202eb", "a\ufffdb"),
        ("line\n\ttab \U0001f469\u200d\U0001f4bb", "line\n\ttab \U0001f469\u200d\U0001f4bb"),
    ],
)
def test_what_would_steer_the_terminal_is_shown_as_a_mark(hostile: str, shown: str) -> None:
    assert printable(hostile) == shown
