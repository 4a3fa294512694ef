"""Parts of messages that no model here reads."""

from __future__ import annotations

import re
from typing import Any

from deployments.http.errors import shown
from deployments.protocol.dropped import drop
from deployments.protocol.strict import RefusedError

IMAGE_REFUSED = "Could not process image: "
"""So begins an error upon which agents take the image out and go on."""
_KIND = re.compile("[a-zA-Z0-9_.:-]{1,64}")
_KINDS = {
    "audio_url": "audio",
    "computer_screenshot": "image",
    "image_file": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_image": "image",
    "video_url": "video",
}


def refuse_image(part: Any) -> None:
    """Raises ``RefusedError``."""
    kind = part.get("type") if isinstance(part, dict) else None
    if _known(kind) == "image":
        message = f"is {shown(kind)}, but this model reads text"
        raise RefusedError(message, where=".type", lead=IMAGE_REFUSED)


def without_unreadable(parts: Any, *kinds: str) -> Any:
    """``parts`` of a tool's result with a line of text in place of each that is none of ``kinds``:
    a client sends what its tools gave, and has no other. The first of ``kinds`` is text's."""
    return [_readable(part, kinds) for part in parts] if isinstance(parts, list) else parts


def _readable(part: Any, kinds: tuple[str, ...]) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in kinds or not isinstance(kind, str) or not _KIND.fullmatch(kind):
        return part
    drop(known := _known(kind))
    return {"type": kinds[0], "text": f"[{known} left out: this model reads text]"}


def _known(kind: Any) -> Any:
    return _KINDS.get(kind, kind) if isinstance(kind, str) else kind
