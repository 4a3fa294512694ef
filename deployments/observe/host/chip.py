"""What the machine's processor is called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 5
SYSCTL = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")


def chip(platform: str = sys.platform, cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Such as ``Apple M4 Pro``; None: the system doesn't tell. On macOS this runs a command."""
    try:
        if platform == "darwin":
            told = subprocess.run(SYSCTL, capture_output=True, check=True, timeout=TIMEOUT_S).stdout
            return told.decode().strip() or None
        found = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)
    except (OSError, subprocess.SubprocessError):
        return None
    return found[1].strip() if found else None
