"""A server with API keys, for keys, other users and other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.e2e.neighbours import OtherHost, other_host, why_not
from tests.support.e2e.serve_process import LAUNCH, ServeProcess, serve_process, shipped_config

ALICE, BOB = "alices-own-key-of-some-length", "bobs-own-key-of-some-length"
KEYS = f"""
keys:
  - {{name: alice, key: {ALICE}}}
  - {{name: bob, key: {BOB}, requests_per_minute: 2}}
"""


@pytest.fixture(scope="package")
def guarded_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A server with API keys, on all of this machine's addresses."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    config = shipped_config("app.yaml")
    args = config["applications"][0]["args"]
    args["engine"] = {
        "backend": "fake",
        "model": "somebody/echo",
        "options": {"faults": {"boom": "crash"}},
    }
    args["gateway"] |= {"host": "0.0.0.0", "api_keys_file": str(keys), "isolate_tenants": True}
    return config


@pytest.fixture(scope="package")
def neighbour() -> Iterator[OtherHost | None]:
    """None where ``why_not`` says so."""
    with other_host() if why_not() is None else nullcontext() as host:
        yield host


@pytest.fixture(scope="package")
def guarded(
    neighbour: OtherHost | None,
    guarded_config: dict[str, Any],
    fake_plugin: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServeProcess]:
    """In the network of the other host, which this process enters, and in a folder whose files are
    named as modules are, by a user who has a proxy."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("logging", "ray", "types", "yaml"):
        (folder / f"{name}.py").write_text("raise ImportError(__file__)\n")
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    with serve_process(
        guarded_config, command=LAUNCH, environment=fake_plugin | proxies, folder=folder
    ) as running:
        yield running
