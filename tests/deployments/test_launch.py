from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deployments import launch

APPLICATION = """
applications:
  - name: pomona
    import_path: deployments.app:build_app
    args: {engine: {modle: demo}, gateway: {routing: dice}}
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (APPLICATION, ["engine.modle: unknown key", "gateway.routing: Input should be"]),
        ("applications: {", ["while parsing"]),
        ("engine: {model: demo}", ["needs a list `applications`"]),
        (None, ["No such file"]),
    ],
)
def test_a_bad_config_is_told_before_anything_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, expected: list[str]
) -> None:
    path = tmp_path / "app.yaml"
    if content is not None:
        path.write_text(content)
    with caplog.at_level(logging.ERROR):
        assert launch.main([str(path)]) == 2
    assert all(part in caplog.text for part in [str(path), *expected])


def test_a_port_in_use_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert launch.answers(url)
    assert not launch.answers(url)


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 9}, "http://127.0.0.1:9"),
        ({"host": "10.0.0.3", "ssl_certfile": "a.pem"}, "https://10.0.0.3:8000"),
    ],
)
def test_where_a_client_on_this_machine_goes(options: dict[str, object], url: str) -> None:
    assert launch.base_url({"http_options": options}) == url


def test_the_environment_for_a_shell_leaves_the_users_choices() -> None:
    script = f'eval "$({sys.executable} -m deployments.environment)"; env'
    run = subprocess.run(
        ["bash", "-euc", script],
        env={"PATH": "/usr/bin:/bin", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert "RAY_AUTH_MODE=disabled" in lines
    assert "RAY_USAGE_STATS_ENABLED=0" in lines
