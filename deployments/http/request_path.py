"""The path that routes and decisions go by, wherever the application is mounted."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """The path below the root path: Serve leaves an application's ``route_prefix`` in both."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    rest = path.removeprefix(root)
    return rest if rest.startswith("/") or not rest else path
