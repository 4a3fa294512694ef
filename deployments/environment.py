"""Variables that Ray reads before any of this package is imported.

`serve run` works without them; they spare its users questions and surprises. `make serve` and the
service files take them from here: ``python -m deployments.environment`` prints them for a shell.
"""

from __future__ import annotations

import platform
import shlex
import sys

EVERYWHERE = {
    # Only who holds the token may submit code. A single machine makes one on first use; a cluster
    # needs `ray get-auth-token --generate` once, and ~/.ray/auth_token on every host.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise lines that differ only in numbers are shown once: most of the request log.
    "RAY_DEDUP_LOGS": "0",
}
MACOS = {
    # Without it Ray refuses workers on other Macs and calls this one 127.0.0.1.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}


def variables(system: str) -> dict[str, str]:
    """For a host whose ``platform.system()`` is ``system``."""
    return EVERYWHERE | (MACOS if system == "Darwin" else {})


def main() -> None:
    for name, value in variables(platform.system()).items():
        # What the user has set wins.
        sys.stdout.write(f'export {name}="${{{name}:-{shlex.quote(value)}}}"\n')


if __name__ == "__main__":
    main()
