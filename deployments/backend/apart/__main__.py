"""``python -m deployments.backend.apart NAME FD LEVEL``, as ``EngineProcess`` starts it."""

from __future__ import annotations

import sys

from deployments.backend.apart.server import main

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
