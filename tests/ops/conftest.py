"""A host list for the tests of ``ops.cluster``, and a certificate for those of load balancers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ops.host_lists import API_KEY, EXAMPLE, HUB_TOKEN, REPOSITORY


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, wherever temporary files go: HAProxy's admin socket is in it."""
    with tempfile.TemporaryDirectory(prefix="pomona-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """The example's host list, with API keys and a secret variable."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": [{"name": "one", "key": API_KEY}]}))
    keys.chmod(0o600)
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    config = (REPOSITORY / "configs" / "cluster.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(
        config.replace("~/.pomona/api_keys", "~/.pomona/api_keys.yaml")
    )
    return found | {
        "config": "cluster.yaml",
        "api_keys": "keys.yaml",
        "environment": {"HF_TOKEN": HUB_TOKEN},
    }


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate and key for 127.0.0.1, signed by themselves."""
    folder = tmp_path_factory.mktemp("tls")
    path, key = folder / "tls.pem", folder / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    make = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run(
        [*make, "-nodes", "-days", "2", "-keyout", key, "-out", path, *names],
        check=True,
        capture_output=True,
        timeout=60,
    )
    path.write_text(path.read_text() + key.read_text())
    return path
