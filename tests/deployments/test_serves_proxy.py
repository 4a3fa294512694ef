"""Serve's own proxy, for which no application of ours has any use."""

from __future__ import annotations

import io
from typing import Any

import pytest

from deployments.launch import launcher
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.serve_config import ENGINES, GATEWAYS
from deployments.launch.serves_proxy import check_serves_proxy
from deployments.settings import SettingsError

pytestmark = pytest.mark.serve

LOOPBACK = {"host": "127.0.0.1", "port": 9000}


def config_of(gateway: dict[str, Any] = LOOPBACK, **top: Any) -> dict[str, Any]:
    ours = {"import_path": GATEWAYS, "args": {"gateway": gateway}}
    return {"applications": [{"import_path": ENGINES}, ours], **top}


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ({"proxy_location": "Disabled"}, ""),
        ({"proxy_location": "EveryNode"}, "0.0.0.0:8000 carries no requests here"),
        ({"proxy_location": "HeadOnly"}, "set `proxy_location: Disabled`"),
        ({}, "set `proxy_location: Disabled`"),
        ({"http_options": None}, "0.0.0.0:8000 carries no requests here"),
        ({"http_options": {"host": "::1", "port": 7}}, "::1:7 carries no requests here"),
        # Another address.
        ({"http_options": {"host": "10.0.0.3", "port": 9000}}, "10.0.0.3:9000 carries no"),
    ],
)
def test_a_proxy_with_nothing_to_do_is_told_of(
    top: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_serves_proxy(config_of(**top))
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


def test_one_that_other_applications_have_is_none_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of()
    config["applications"].append({"import_path": "somebody:else"})
    check_serves_proxy(config)
    assert not caplog.text


@pytest.mark.parametrize(
    ("gateway", "options"),
    [
        (LOOPBACK, {"host": "127.0.0.1", "port": 9000}),
        (LOOPBACK, {"port": 9000}),
        ({"host": "0.0.0.0", "port": 9000}, {"host": "10.0.0.3", "port": 9000}),
        # Both have this one where nothing is said.
        ({"host": "127.0.0.1"}, {}),
    ],
)
def test_one_that_would_take_a_gateways_port_is_refused(
    gateway: dict[str, Any], options: dict[str, Any]
) -> None:
    config = config_of(gateway, http_options=options)
    with pytest.raises(SettingsError, match=r"gateway\.port.*set `proxy_location: Disabled`"):
        check_serves_proxy(config)
    # Whatever others it is there for.
    config["applications"].append({"import_path": "somebody:else"})
    with pytest.raises(SettingsError, match=r"gateway\.port"):
        check_serves_proxy(config)


def test_the_launcher_asks(caplog: pytest.LogCaptureFixture) -> None:
    assert launcher.launch(config_of({"host": "127.0.0.1"}), None, LiveTerminal(io.StringIO())) == 2
    assert "Serve's proxy would take port 8000" in caplog.text
