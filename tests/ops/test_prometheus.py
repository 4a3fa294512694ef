from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "ops" / "prometheus" / "prometheus.yml"
RULES = sorted(CONFIG.parent.glob("rules/*.yml"))
RULE_TESTS = sorted((Path(__file__).parent / "prometheus").glob("*.yml"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool is not installed: it is in Debian's package prometheus",
)


def promtool(*arguments: str) -> str:
    run = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@needs_promtool
def test_the_configuration_and_every_rule_are_valid() -> None:
    output = promtool("check", "config", "--lint=all", "--lint-fatal", str(CONFIG))
    assert f"{len(RULES)} rule files found" in output


@needs_promtool
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(path))


def alerts() -> list[dict[str, object]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_a_test_in_which_it_fires_and_is_explained() -> None:
    fired = {
        check["alertname"]
        for path in RULE_TESTS
        for case in yaml.safe_load(path.read_text())["tests"]
        for check in case.get("alert_rule_test", [])
        if check.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in alerts()}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")  # type: ignore[index]
        assert set(rule["annotations"]) == {"summary", "description"}  # type: ignore[call-overload]


def test_the_objective_of_first_tokens_is_a_bucket_that_gateways_have() -> None:
    from deployments.metrics import LATENCY_BOUNDS

    [bound] = {bound for path in RULES for bound in re.findall(r'le="([0-9.]+)"', path.read_text())}
    assert float(bound) in LATENCY_BOUNDS
