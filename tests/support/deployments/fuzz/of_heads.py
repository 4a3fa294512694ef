"""Mutations of a request's line, headers and framing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.support.deployments.fuzz.recorded import Message

METHODS = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"CONNECT", b"TRACE", b"get")
TARGETS = (
    b"*",
    b"/",
    b"//v1/models",
    b"/v1/models/" + b"a" * 300,
    b"/v1/models/%ff%00",
    b"/v1/chat/completions/",
    b"/v1/chat/completions?" + b"a=b&" * 50,
    b"http://other.test/v1/models",
    b"/v1/completions#x",
    b"/v1/\xc3\xa9",
    b"/targets",
    b"/openapi.json",
    b"/metrics",
)
VERSIONS = (b"HTTP/1.0", b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"")
LINES = (
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: -1",
    b"Content-Length: 1e3",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 9000000",
    b"content-length : 5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding:\tchunked",
    b"Connection: close, Transfer-Encoding",
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Host: other.test",
    b"Host:",
    b"Host: localhost:8000, other.test",
    b"Origin: http://other.test",
    b"Origin: null",
    b"Authorization: Basic \xff\xfe",
    b"Authorization: Bearer",
    b"X-Request-Id: a b\tc",
    b"X-Request-Id: " + b"r" * 200,
    b"X-Session-Id: \xc3\xa9",
    b"X-Pomona-Resumable: 1",
    b"X-Pomona-Resumable: 0",
    b"Last-Event-ID: eyJhIjoxfQ",
    b"Last-Event-ID: \xff\xff",
    b"traceparent: 00-0-0-00",
    b"Cookie: " + b"c=d; " * 2000,
    b"X-Long: " + b"l" * 70_000,
    b" folded",
    b": no name",
    b"no colon",
    b"X-Null: a\0b",
    b"X-Return: a\rb",
    b"X-Bytes: \xf0\x28\x8c\x28",
)
CHUNK_SIZES = (b"-1", b"0x5", b"ffffffffffffffffff", b"5 ", b"g", b"", b"00000005", b"7fffffff")


def request_line(dice: Random, message: Message) -> Message:
    parts = [*message.lines[0].split(b" "), b"", b"", b""][:3]
    which = dice.randrange(3)
    parts[which] = dice.choice((METHODS, TARGETS, VERSIONS)[which])
    return Message((b" ".join(parts), *message.lines[1:]), message.body)


def add_line(dice: Random, message: Message) -> Message:
    at = dice.randint(1, len(message.lines))
    line = dice.choice(LINES)
    return Message((*message.lines[:at], line, *message.lines[at:]), message.body)


def many_lines(dice: Random, message: Message) -> Message:
    lines = (b"X-%d: y" % number for number in range(dice.choice((50, 500, 8000))))
    return Message((*message.lines, *lines), message.body)


def without_line(dice: Random, message: Message) -> Message:
    at = dice.randrange(len(message.lines))
    return Message((*message.lines[:at], *message.lines[at + 1 :]), message.body)


def twice(dice: Random, message: Message) -> Message:
    line = dice.choice(message.lines)
    return Message((*message.lines, line), message.body)


def shuffled(dice: Random, message: Message) -> Message:
    lines = list(message.lines[1:])
    dice.shuffle(lines)
    return Message((message.lines[0], *lines), message.body)


def other_case(dice: Random, message: Message) -> Message:
    change = dice.choice((bytes.upper, bytes.lower, bytes.swapcase))
    return Message((message.lines[0], *map(change, message.lines[1:])), message.body)


def other_length(dice: Random, message: Message) -> Message:
    length = b"Content-Length: %d" % max(0, len(message.body) + dice.choice((-9, -1, 1, 9, 5000)))
    lines = [line for line in message.lines if not line.lower().startswith(b"content-length")]
    return Message((*lines, length), message.body)


def chunked(dice: Random, message: Message) -> Message:
    lines = [line for line in message.lines if not line.lower().startswith(b"content-length")]
    rest, body = message.body, b""
    while rest:
        size = dice.randint(1, len(rest))
        body += b"%x%b\r\n%b\r\n" % (size, dice.choice((b"", b"", b";a=b")), rest[:size])
        rest = rest[size:]
    return Message((*lines, b"Transfer-Encoding: chunked"), body + b"0\r\n\r\n")


def badly_chunked(dice: Random, message: Message) -> Message:
    sent = chunked(dice, message)
    pieces = sent.body.split(b"\r\n")
    pieces[dice.randrange(len(pieces))] = dice.choice(CHUNK_SIZES)
    return Message(sent.lines, b"\r\n".join(pieces))


def followed(dice: Random, message: Message) -> Message:
    """By itself, on the same connection."""
    lines = [line for line in message.lines if not line.lower().startswith(b"connection:")]
    again = Message(tuple(lines), message.body).raw()
    return Message(tuple(lines), message.body + again * dice.choice((1, 3, 20)))


HEADS: tuple[Callable[[Random, Message], Message], ...] = (
    request_line,
    add_line,
    add_line,
    many_lines,
    without_line,
    twice,
    shuffled,
    other_case,
    other_length,
    chunked,
    badly_chunked,
    followed,
)


def mutate(dice: Random, message: Message) -> Message:
    return dice.choice(HEADS)(dice, message)
