"""What subcommands ask of a running server, over HTTP."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from deployments.launch.direct import open_directly

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "POMONA_API_KEY"
TIMEOUT_S = 10.0


class ServerError(Exception):
    """The server can't be asked, or refuses; the message is for people."""


def server_url(text: str) -> str:
    """Of what a user gives: with a scheme, without ``/v1``. Raises ``ValueError``."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no URL of a server, such as {DEFAULT_URL}")
    return url.rstrip("/").removesuffix("/v1")


def open_url(
    url: str, body: Any = None, *, timeout_s: float = TIMEOUT_S, with_key: bool = True
) -> HTTPResponse:
    """``body`` is sent as JSON. ``with_key``: with the one that the environment has, for a server
    that it is meant for. Raises ``ServerError``."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if with_key and (key := os.environ.get(KEY_VARIABLE)):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        response: HTTPResponse = open_directly(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            hint = f" Set {KEY_VARIABLE}." if error.code == 401 else ""
            raise ServerError(f"{url}: {error.code} {_reason(error.read())}{hint}") from None
    except urllib.error.URLError as error:
        raise ServerError(f"nothing answers at {url}: {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise ServerError(f"nothing answers at {url}: {error}") from None
    return response


def get_text(url: str, *, timeout_s: float = TIMEOUT_S, with_key: bool = True) -> str:
    """Raises ``ServerError``."""
    with open_url(url, timeout_s=timeout_s, with_key=with_key) as response:
        try:
            return response.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise ServerError(f"{url}: {error}") from None


def get_json(url: str, *, with_key: bool = True) -> Any:
    """Raises ``ServerError``."""
    try:
        return json.loads(get_text(url, with_key=with_key))
    except ValueError:
        raise ServerError(f"{url} is no server of this kind: its answer is no JSON") from None


def _reason(body: bytes) -> str:
    """The message in an error of OpenAI's shape."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body.decode(errors="replace")[:200]
