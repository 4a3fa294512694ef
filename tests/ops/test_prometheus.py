from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ops.prometheus.objectives import OBJECTIVES, ObjectiveError, read_indicators, rules
from ops.prometheus.objectives import RULES as RULES_FILE

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "ops" / "prometheus" / "prometheus.yml"
RULES = sorted(CONFIG.parent.glob("rules/*.yml"))
ALERTMANAGER = CONFIG.with_name("alertmanager.yml")
SEVERITIES = {"page": "pager", "ticket": "tickets", "heartbeat": "heartbeat"}
RULE_TESTS = sorted((Path(__file__).parent / "prometheus").glob("*.yml"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool is not installed: it is in Debian's package prometheus",
)


def promtool(*arguments: str) -> str:
    run = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=600)
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
        assert rule["labels"]["severity"] in SEVERITIES  # type: ignore[index]
        assert set(rule["annotations"]) == {"summary", "description"}  # type: ignore[call-overload]


def test_the_runbook_has_a_line_for_every_alert_with_its_severity() -> None:
    runbook = (ROOT / "ops" / "watching.md").read_text()
    table = runbook.partition("## What wakes you up")[2].partition("\n#")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = {
        name: severity.strip() for names, severity in rows for name in re.findall(r"\w+", names)
    }
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}  # type: ignore[index]


def test_each_severity_goes_to_a_receiver_of_its_own() -> None:
    config = yaml.safe_load(ALERTMANAGER.read_text())
    routes = config["route"]["routes"]
    found = {match: route["receiver"] for route in routes for match in route["matchers"]}
    rest = config["route"]["receiver"]
    assert {name: found.get(f'severity="{name}"', rest) for name in SEVERITIES} == SEVERITIES
    assert {receiver["name"] for receiver in config["receivers"]} == set(SEVERITIES.values())


@pytest.mark.skipif(
    shutil.which("amtool") is None,
    reason="amtool is not installed: it is in Debian's package prometheus-alertmanager",
)
def test_alertmanager_accepts_its_configuration() -> None:
    command = ["amtool", "check-config", str(ALERTMANAGER)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_rules_for_the_objectives_are_those_that_are_generated() -> None:
    assert RULES_FILE.read_text() == rules(read_indicators()), "run python -m ops.prometheus"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("within_s = 2.56", "within_s = 2.5", r"within_s must be one of .*2\.56.*, not 2\.5$"),
        ("objective = 0.99\n", "objective = 99\n", "objective must be between 0 and 1, not 99"),
        ("least = 10", "least = 0", "least must be at least 1, not 0"),
    ],
)
def test_an_objective_that_makes_no_rule_is_refused(
    old: str, new: str, named: str, tmp_path: Path
) -> None:
    text = OBJECTIVES.read_text()
    assert text.count(old) == 1
    wrong = tmp_path / "objectives.toml"
    wrong.write_text(text.replace(old, new))
    with pytest.raises(ObjectiveError, match=named):
        read_indicators(wrong)


def test_a_changed_objective_changes_every_rule_that_depends_on_it(tmp_path: Path) -> None:
    changed = tmp_path / "objectives.toml"
    text = OBJECTIVES.read_text().replace("2.56", "5.12").replace("0.999", "0.995")
    changed.write_text(text.replace("least = 5", "least = 20"))
    written = rules(read_indicators(changed))
    assert "2.56" not in written
    assert "more than 5.12 s" in written
    assert "0.001" not in written
    assert written.count("* 0.005") == 24
    assert written.count(">= 20\n") == 12


def test_what_is_told_of_the_objectives_is_what_they_are() -> None:
    errors, *_, first_token = read_indicators()
    within = first_token.complaint.removeprefix("First tokens come after more than ")
    budgets = [f"{100 * (1 - one.objective):.3g}%" for one in (errors, first_token)]
    runbook = (ROOT / "ops" / "watching.md").read_text()
    assert f"{budgets[0]} errors, {budgets[1]} first tokens after {within}" in runbook
    dashboard = (ROOT / "ops" / "grafana" / "dashboards" / "latency.json").read_text()
    assert all(f"the objective is {budget}" in dashboard for budget in budgets)
    assert f"more than {within}" in dashboard
