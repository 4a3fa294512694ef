"""What a machine needs for a cluster in namespaces."""

from __future__ import annotations

import os
import shutil

TOOLS = (
    "ip",
    "unshare",
    "nsenter",
    "setpriv",
    "pkill",
    "redis-server",
    "prometheus",
    "nft",
    "haproxy",
    "nginx",
)


def what_is_missing() -> str | None:
    """A sentence, or None."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "Network namespaces need root on Linux."
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"Not installed: {', '.join(missing)}." if missing else None
