"""A server that answers each path with what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


@dataclass
class ToldServer:
    """``asked``: path, body and ``Authorization`` of each request so far."""

    port: int
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def told_server(answers: Mapping[str, Answer]) -> Iterator[ToldServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            told.asked.append((self.path, body, self.headers.get("Authorization")))
            status, answer = answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told = ToldServer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()
