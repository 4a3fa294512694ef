"""The configuration files: what is shipped, what can be asked for, what is refused."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.settings import GatewaySettings
from ops.load_balancer.__main__ import main
from ops.load_balancer.examples import examples
from ops.load_balancer.foreground import command
from ops.load_balancer.haproxy import LONGEST_DIRECTORY, haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import ClientLimits, Plan, PlanError
from tests.support.ops.balancer_harness import (
    balancing,
    each_balancer,
    free_address,
    gateways,
    needs,
)
from tests.support.ops.balancer_harness import plan_for as plan_in

PLAN = Plan(
    gateways=["10.0.0.1:8000"],
    listen=["0.0.0.0:80"],
    status="127.0.0.1:8405",
    directory=Path("/run/balancer"),
)


def test_what_is_shipped_is_what_is_generated() -> None:
    for path, text in examples().items():
        assert path.read_text() == text, "run: python -m ops.load_balancer.examples"


@needs("openssl")
@each_balancer
def test_the_balancer_accepts_every_option(kind: str, tmp_path: Path, certificate: Path) -> None:
    plan = plan_in(
        tmp_path,
        ["127.0.0.1:8000", "[::1]:8000", "localhost:8000"],
        backups=["127.0.0.2:8000"],
        listen=[free_address(), free_address()],
        redirect_from=free_address(),
        certificate=certificate,
        limits=ClientLimits(requests_at_once=1, requests_per_second=1),
        settings=GatewaySettings(max_body_bytes=1024, request_timeout_s=0.5),
    )
    check = command(kind, plan, "-c" if kind == "haproxy" else "-t")
    run = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "warn" not in run.stderr.lower()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"gateways": []}, "gateways must name at least one"),
        ({"gateways": ["10.0.0.1"]}, "gateway must be HOST:PORT"),
        ({"gateways": ["10.0.0.1:0"]}, "gateway must be HOST:PORT"),
        ({"gateways": ["a:1;b:2"]}, "gateway must be HOST:PORT"),
        ({"gateways": ["a:1", "a:1"]}, "a:1 is named more than once"),
        ({"backups": ["10.0.0.1:8000"]}, "10.0.0.1:8000 is named more than once"),
        ({"backups": ["::1:8000"]}, "backup must be HOST:PORT"),
        ({"listen": []}, "listen must name at least one"),
        ({"listen": ["*:80"]}, "listen must be HOST:PORT"),
        ({"status": "127.0.0.1:70000"}, "status must be HOST:PORT"),
        ({"directory": Path("here")}, "directory must be an absolute path"),
        ({"certificate": Path("/etc/a b")}, "certificate must be an absolute path"),
        ({"redirect_from": "0.0.0.0:80"}, "redirect_from needs a certificate"),
        ({"user": "a\nb"}, "user must be a user's name"),
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        replace(PLAN, **wrong)


@pytest.mark.parametrize("limit", ["requests_at_once", "requests_per_second"])
def test_limits_are_at_least_one(limit: str) -> None:
    with pytest.raises(PlanError, match=f"{limit} must be at least 1, not 0"):
        ClientLimits(**{limit: 0})


def test_gateways_may_take_as_long_and_get_as_much_as_their_config_says() -> None:
    settings = GatewaySettings(request_timeout_s=100, max_body_bytes=4321)
    plan = replace(PLAN, settings=settings)
    assert "timeout server 130s" in haproxy(plan)
    assert "proxy_read_timeout 130s;" in nginx(plan)
    assert "client_max_body_size 4321;" in nginx(plan)


def test_health_checks_notice_a_draining_gateway_while_it_still_takes_requests() -> None:
    found = re.search(r"check inter (\d+)s .*fall (\d+)", haproxy(PLAN))
    assert found is not None
    interval, falls = map(int, found.groups())
    assert 2 * interval * falls <= GatewaySettings().drain_notice_s


@each_balancer
async def test_the_balancer_tells_of_itself_on_this_machine(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [one]:
        plan = plan_in(tmp_path, [one])
        async with balancing(kind, plan) as balancer, httpx.AsyncClient() as client:
            await balancer.ask()
            path = "metrics" if kind == "haproxy" else "status"
            answer = await client.get(f"http://{plan.status}/{path}")
            assert answer.status_code == 200
            assert ("haproxy_server_status" in answer.text) == (kind == "haproxy")
            assert ("Active connections" in answer.text) == (kind == "nginx")


def test_the_command_prints_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "serve.yaml"
    settings = "gateway: {max_body_bytes: 4321}"
    config.write_text(f"applications: [{{args: {{{settings}}}}}]")
    addresses = ["--gateway", "10.0.0.1:8000", "--gateway", "10.0.0.2:8000"]
    assert main(["nginx", *addresses, "--config", str(config)]) == 0
    text = capsys.readouterr().out
    assert text.count("max_fails=2") == 2
    assert "client_max_body_size 4321;" in text
    assert "listen 0.0.0.0:80;" in text
    assert main(["haproxy", *addresses, "--certificate", "/etc/pomona/tls.pem"]) == 0
    assert "bind 0.0.0.0:443 ssl crt /etc/pomona/tls.pem" in capsys.readouterr().out


def test_the_shipped_cluster_config_says_which_settings_gateways_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = ["--config", "configs/cluster.yaml"]
    assert main(["haproxy", "--gateway", "10.0.0.1:8000", *config]) == 0
    assert "10.0.0.1:8000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gateway", "nowhere"], "gateway must be HOST:PORT"),
        (["--gateway", "a:1", "--requests-at-once", "0"], "requests_at_once must be at least 1"),
        (["--gateway", "a:1", "--config", "/nowhere"], "No such file"),
        (["--gateway", "a:1", "--config", "pyproject.toml"], "not a Serve config"),
    ],
    ids=str,
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["haproxy", *arguments])
    assert named in capsys.readouterr().err


@needs("haproxy")
async def test_the_longest_directory_is_one_that_haproxy_can_use(tmp_path: Path) -> None:
    directory = tmp_path / ("a" * (LONGEST_DIRECTORY - len(str(tmp_path)) - 1))
    directory.mkdir()
    async with gateways(1) as [one], balancing("haproxy", plan_in(directory, [one])) as balancer:
        assert (await balancer.client.get("/v1/models")).status_code == 200
    with pytest.raises(PlanError, match="directory must have at most"):
        haproxy(plan_in(directory / "b", [one]))
