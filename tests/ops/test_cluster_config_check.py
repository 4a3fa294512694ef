"""What ``pomona-deploy`` refuses before Serve tries to start it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.cluster.config_check import main
from tests.support.ops.host_lists import API_KEY, REPOSITORY, generated

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    keys = tmp_path / "api_keys"
    keys.write_text(f"{API_KEY}\n")
    keys.chmod(0o600)
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs" / "cluster.yaml").read_text())
    found["applications"][1]["args"]["gateway"]["api_keys_file"] = str(keys)
    return found


def checked(config: dict[str, Any], folder: Path) -> int:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(config))
    return main([str(path), "--engines"])


def test_a_config_that_can_start_is_deployed(config: dict[str, Any], tmp_path: Path) -> None:
    assert checked(config, tmp_path) == 0


def of_engines(config: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = config["applications"][0]["args"]["engine"]
    return engine


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda config: of_engines(config).update(max_num_sequences=3), "engine.max_num_sequences"),
        (lambda config: of_engines(config).update(model="/no/model"), "engine.model: /no/model"),
        (
            lambda config: config["applications"].append(
                {"name": "other", "route_prefix": "/other", "import_path": "no_module:app"}
            ),
            "import_path: no_module:app: No module named 'no_module'",
        ),
        (lambda config: config["applications"][0].update(name="pomona"), "pomona"),
        (
            lambda config: config["applications"][1]["args"]["gateway"].update(
                api_keys_file="/no/keys"
            ),
            "/no/keys",
        ),
    ],
    ids=["setting", "model", "import", "schema", "keys"],
)
def test_one_that_can_not_is_refused_by_name(
    change: Change,
    named: str,
    config: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(config)
    assert checked(config, tmp_path) == 2
    told = capsys.readouterr().err
    assert "cluster.yaml is not deployed: " in told
    assert named in told


@pytest.mark.parametrize("has_engine", [False, True])
def test_the_script_checks_before_it_waits_for_hosts(
    has_engine: bool, content: dict[str, Any], tmp_path: Path
) -> None:
    if has_engine:
        content["hosts"][2]["roles"] = ["head", "engine"]
    folder = generated(content, tmp_path) / "head"
    script = folder / "pomona-deploy"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python").write_text('#!/bin/sh\necho "$@"\nexit 2\n')
    (tools / "python").chmod(0o755)
    environment = (folder / "environment").read_text()
    (folder / "environment").write_text(f"{environment}\nPATH={tools}:/usr/bin:/bin\n")
    ran = subprocess.run([script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    options = " --engines" if has_engine else ""
    assert ran.stdout == f"-m ops.cluster.config_check{options} {folder}/cluster.yaml\n"
