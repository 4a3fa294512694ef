"""How streams of the Responses API end."""

from __future__ import annotations

import json
import re

from deployments.protocol.parsed import StreamForm

# No text can contain it: JSON escapes its quotation marks.
_NUMBER = re.compile(rb'"sequence_number":(\d+)')


def _failure_event(error: bytes, told: bytes) -> bytes:
    fault = json.loads(error)["error"]
    numbers = _NUMBER.findall(told)
    event = {
        "type": "error",
        "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        "code": fault["code"] or fault["type"],
        "message": fault["message"],
        "param": fault["param"],
    }
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


RESPONSES_STREAM = StreamForm(failure_event=_failure_event)
