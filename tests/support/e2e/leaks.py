"""The places where a server leaves words that others may read, and secrets that are in one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import httpx

STORES = frozenset({".ray/auth_token", ".pomona/api_keys"})
"""Where secrets belong, below a server's home."""
RECORDED = Path(".recorder")
DASHBOARD_PATHS = (
    "/api/serve/applications/",
    "/api/jobs/",
    "/api/v0/tasks?detail=1",
    "/logical/actors",
    "/nodes?view=summary",
)
DASHBOARD_TIMEOUT_S = 900
SHORTEST = 8
"""A secret below this would be found in words that only contain it."""

Place = tuple[str, bytes]


def recorder(home: Path) -> str:
    """A folder for ``PYTHONPATH``, with which every secret that a process makes is also a file's
    line in ``home``."""
    folder = home / RECORDED
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"""
import secrets

make = secrets.token_urlsafe

def make_and_record(*arguments):
    made = make(*arguments)
    with open({str(folder / "made")!r}, "a") as file:
        file.write(made + "\\n")
    return made

secrets.token_urlsafe = make_and_record
"""
    )
    return str(folder)


def made_secrets(home: Path) -> list[str]:
    """Those made by its processes, a replica's first among them."""
    made = home / RECORDED / "made"
    return made.read_text().split() if made.exists() else []


def kept_secrets(home: Path) -> set[str]:
    """All that the server has made or was given in files."""
    stores = [home / store for store in STORES]
    given = " ".join(store.read_text() for store in stores if store.exists())
    return {*given.split(), *made_secrets(home)}


def files(home: Path) -> Iterator[Place]:
    """Whatever lies there in files, logs first of all."""
    for path in sorted(home.rglob("*")):
        below = path.relative_to(home)
        kept = str(below) in STORES or RECORDED in below.parents
        if path.is_file() and not path.is_symlink() and not kept:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                # Ray replaces some while they are listed.
                continue
            yield str(below), content


def command_lines(processes: Mapping[int, str]) -> Iterator[Place]:
    for pid, line in processes.items():
        yield f"command line of {pid}", line.encode()


def open_pages(url: str) -> Iterator[Place]:
    """What a gateway tells without a key, and all metrics that it knows of."""
    with httpx.Client(timeout=120) as http:
        groups = http.get(f"{url}/targets").json()
        targets = [
            f"http://{target}{group['labels']['__metrics_path__']}"
            for group in groups
            for target in group["targets"]
        ]
        replicas = [one.removesuffix("/metrics") for one in targets]
        pages = [f"{url}/{name}" for name in ("targets", "metrics", "health", "ready")]
        pages += [*targets, *(f"{one}/ready" for one in replicas)]
        for page in pages:
            response = http.get(page)
            yield page, response.content + str(response.headers).encode()


def dashboard_pages(home: Path) -> Iterator[Place]:
    """What Ray's dashboard tells of deployments, actors and processes."""
    token = (home / ".ray" / "auth_token").read_text().strip()
    with httpx.Client(timeout=120, headers={"Authorization": f"Bearer {token}"}) as http:
        for path in DASHBOARD_PATHS:
            response = http.get(dashboard_url(home) + path)
            response.raise_for_status()
            yield path, response.content


def dashboard_url(home: Path) -> str:
    """The URL of the dashboard, which starts after the server is ready."""
    deadline = time.monotonic() + DASHBOARD_TIMEOUT_S
    told = ""
    while time.monotonic() < deadline and "Traceback" not in told:
        for log in home.glob("*/ray/session_latest/logs/dashboard.log"):
            told = log.read_text()
            if found := re.search(r"http address: ([\d.]+:\d+)", told):
                return f"http://{found[1]}"
        time.sleep(0.1)
    raise RuntimeError(f"the dashboard has not started: {told[-2000:]}")


def leaks(secrets: Iterable[str], places: Iterable[Place]) -> list[str]:
    """Where there is one of ``secrets``, which are not repeated here."""
    wanted = {secret.encode(): secret for secret in secrets}
    assert all(len(secret) >= SHORTEST for secret in wanted), "too short to be looked for"
    return [
        f"{secret[:3]}...: {place}"
        for place, text in places
        for raw, secret in wanted.items()
        if raw in text
    ]
