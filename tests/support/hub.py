"""A Hugging Face hub on loopback, with one model and lines that break."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """``name`` is the id of the model, ``folder`` has its files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.cuts: dict[str, int] = {}
        """Of files that break off in the middle, how many times more they do."""
        self.got: list[tuple[str, str]] = []
        """Files that were asked for, each with the ``Range`` of the request."""
        self.url = ""

    def about(self) -> dict[str, Any]:
        siblings = [{"rfilename": one} for one in self.files]
        return {"id": self.name, "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
            for name, content in self.files.items()
        ]


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def hub_of(name: str, folder: Path) -> Iterator[Hub]:
    hub = Hub(name, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        api = f"/api/models/{hub.name}"
        name = path.removeprefix(f"/{hub.name}/resolve/{COMMIT}/")
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._json(hub.about())
        elif path == f"{api}/tree/{COMMIT}":
            self._json(hub.tree())
        elif name in hub.files:
            self._file(name, hub.files[name])
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str, content: bytes) -> None:
        headers = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": COMMIT}
        if self.command == "HEAD":
            self._send(200, content, headers)
            return
        asked = self.headers.get("Range", "")
        self.hub.got.append((name, asked))
        at = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if asked:
            headers["Content-Range"] = f"bytes {at}-{len(content) - 1}/{len(content)}"
        rest = content[at:]
        if self.hub.cuts.get(name, 0) > 0:
            self.hub.cuts[name] -= 1
            self._send(206 if asked else 200, rest, headers, num_bytes=len(rest) // 2)
            self.close_connection = True
        else:
            self._send(206 if asked else 200, rest, headers)

    def _json(self, told: Any) -> None:
        self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], num_bytes: int | None = None
    ) -> None:
        """``num_bytes``: no more than so many of them are sent."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:num_bytes])
