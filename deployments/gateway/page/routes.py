"""The page's files, with the headers that keep everything else out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No string becomes markup, not even by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Asked for again each time, and mostly not sent again.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        # Set by name: a text's type would get a second `charset`.
        headers["Content-Type"] = self.media_type
        return Response(self.content, headers=headers)


def page_files() -> dict[str, PageFile]:
    """By name."""
    return dict(_read())


def page_routes() -> list[Route]:
    return [
        Route("/" if name == INDEX else f"/page/{name}", _Served(file).response)
        for name, file in page_files().items()
    ]


@dataclass(frozen=True)
class _Served:
    file: PageFile

    async def response(self, request: Request) -> Response:
        return self.file.response(request)


def _read() -> Iterator[tuple[str, PageFile]]:
    folder = files("deployments.gateway.page") / "static"
    for path in sorted(folder.iterdir(), key=lambda one: one.name):
        media_type = MEDIA_TYPES.get(path.name.rpartition(".")[2])
        if media_type is not None:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            yield path.name, PageFile(content, media_type, etag)
