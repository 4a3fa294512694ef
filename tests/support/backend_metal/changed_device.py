"""Devices as others are, but for some of what they do."""

from __future__ import annotations

import copy
from typing import Any

from backend_metal.device import Device


def changed(device: Device, **fields: Any) -> Device:
    """A copy of ``device`` that has, or does, ``fields`` in its own way."""
    other = copy.copy(device)
    vars(other).update(fields)
    return other
