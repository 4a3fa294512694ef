"""The config files that people copy: each is one that is served, and the index has all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import app
from deployments.launch.serve_config import ENGINES, GATEWAYS, check
from tests.support.documents import REPOSITORY

pytestmark = pytest.mark.serve

FOLDER = REPOSITORY / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
KEYS = {
    "api_keys": "a-key-of-a-test\n",
    "keys.yaml": "keys:\n  - {name: a, key: a-key-of-a-test}\n",
}
BUILDERS = {GATEWAYS: app.build_app, ENGINES: app.build_engines}
COMMENTED = re.compile(r"^( +)# (\w+:.*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the keys that the files name."""
    (tmp_path / ".pomona").mkdir()
    for name, text in KEYS.items():
        path = tmp_path / ".pomona" / name
        path.write_text(text)
        path.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))


def args_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(one["import_path"], one["args"]) for one in yaml.safe_load(text)["applications"]]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_each_is_one_that_is_served(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert len(check(config)) == len(config["applications"])
    assert config["proxy_location"] == "Disabled"
    for import_path, args in args_of(path.read_text()):
        BUILDERS[import_path](args)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_lines_that_are_commented_out_are_right_too(path: Path) -> None:
    text = path.read_text()
    for found in COMMENTED.finditer(text):
        line = found[0].replace("# ", "", 1)
        # In place of a line that says something else of the same.
        key = re.escape(found[2].partition(":")[0])
        rest = re.sub(rf"^{found[1]}{key}:.*\n(?:{found[1]} .*\n)*", "", text, flags=re.MULTILINE)
        at = rest.index(found[0])
        changed = rest[:at] + line + rest[at + len(found[0]) :]
        assert changed.count(line) == 1
        assert check(yaml.safe_load(changed)), line


def test_the_index_has_all_of_them() -> None:
    told = re.findall(r"^\| \[`([\w.]+)`\]", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(told) == [path.name for path in CONFIGS]
