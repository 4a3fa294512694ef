"""What the tests of ``ops.cluster`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ops.cluster.__main__ import generate
from ops.cluster.credentials import KINDS

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "ops" / "cluster" / "hosts.example.yaml"
API_KEY = "a-key-of-a-client"
HUB_TOKEN = "a-token-for-the-hub"


def generated(content: dict[str, Any], tmp_path: Path) -> Path:
    """The folder with the folders of the hosts in ``content``."""
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(content))
    out = tmp_path / "out"
    generate(tmp_path / "hosts.yaml", out, make=() if out.exists() else KINDS)
    return out


def files_of(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if path.is_file()]
