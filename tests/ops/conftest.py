"""A host list for the tests of ``ops.cluster``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from host_lists import API_KEY, EXAMPLE, HUB_TOKEN, REPOSITORY


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
