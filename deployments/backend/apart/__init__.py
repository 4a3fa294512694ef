"""A backend in a process of its own, so that HTTP and the engine share no interpreter lock.

``EngineProcess`` is a ``Backend`` like any other. It starts the package as a program, which creates
the backend that does the work, and drives it over a socket that the two alone have.
"""

from __future__ import annotations

from deployments.backend.apart.engine_process import EngineProcess

__all__ = ["EngineProcess"]
