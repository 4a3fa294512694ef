"""What stands in a prompt for the part of a tool's result that no model here reads."""

from __future__ import annotations

from typing import Any

_KINDS = {
    "audio": "audio",
    "audio_url": "audio",
    "computer_screenshot": "image",
    "document": "document",
    "file": "file",
    "image": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_image": "image",
    "search_result": "search result",
    "video_url": "video",
}


def without_unreadable(parts: Any, text_type: str = "text") -> Any:
    """``parts`` with a line of text, of that type, in place of each that is none: a client sends
    what its tools gave, and has no other."""
    if not isinstance(parts, list):
        return parts
    return [
        {"type": text_type, "text": f"[{kind} left out: this model reads text alone]"}
        if isinstance(part, dict) and (kind := _KINDS.get(str(part.get("type"))))
        else part
        for part in parts
    ]
