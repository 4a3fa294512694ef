"""A server whose words and speed are known: ``scripted_peer.py PORT [--words WORD] [...]``."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Each token is ``word`` and takes ``step_s``; the last ``missing`` do not come."""

    word = "word"
    step_s = 0.0
    missing = 0
    places: threading.Semaphore

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions", self.path
        assert asked["stream"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        count = asked["max_tokens"] - self.missing
        with self.places:
            for number in range(count):
                time.sleep(self.step_s)
                reason = None if number < count - 1 else "stop" if self.missing else "length"
                self._send({"choices": [self._choice(number, reason)]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}
        self._send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _choice(self, number: int, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": f" {self.word}{number}", "finish_reason": reason}

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """One line a request would be the parent's to read."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--word", default="word")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--missing", type=int, default=0)
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--fail", help="last words, instead of serving")
    arguments = parser.parse_args()
    if arguments.fail:
        sys.exit(arguments.fail)
    Handler.word, Handler.step_s = arguments.word, arguments.step_s
    Handler.missing, Handler.places = arguments.missing, threading.Semaphore(arguments.places)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
