"""What an answer is made of, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """More of what the user is to read."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins; its arguments follow until the next one begins or the answer ends."""

    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the JSON of the latest call's arguments."""

    json: str


Event = Text | Reasoning | CallStart | CallArguments
