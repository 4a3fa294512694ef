"""What is made of readings of a machine, and the report."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.backend import ModelPlan
from deployments.command import doctor
from deployments.command.doctor import engine_reading, local, readings
from deployments.command.doctor.certificates import check_certificates
from deployments.command.doctor.clock import check_clock
from deployments.command.doctor.config import read_config
from deployments.command.doctor.engine import check_engine
from deployments.command.doctor.engine_reading import EngineReading, read_engine
from deployments.command.doctor.finding import Finding, warning, wrong
from deployments.command.doctor.hub import Hub, check_hub
from deployments.command.doctor.memory import check_disk, check_memory
from deployments.command.doctor.ports import Port, check_port
from deployments.command.doctor.private import check_keys, check_modes
from deployments.command.doctor.report import line, summary
from deployments.command.doctor.versions import check_alike, check_pins, check_python
from ops.cluster.credentials import KINDS, keep_credentials
from tests.support.deployments.told_server import told_server
from tests.support.documents import REPOSITORY
from tests.support.e2e.serve_process import free_port

GB = 10**9
CONFIG = REPOSITORY / "configs" / "app.yaml"
PLAN = ModelPlan("metal", 64 * GB, 4 * GB, 40960, context=40960, sequence_bytes=2 * GB)
READING = EngineReading(devices=("metal", "cpu"), attention="metal", wanted="metal", plan=PLAN)


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.verdict for one in findings}


def engine(reading: EngineReading, *, system: str = "Darwin", free: int = 64 * GB) -> list[Finding]:
    return list(check_engine(reading, "org/model", system=system, available_bytes=free))


@pytest.mark.parametrize(
    ("version", "machine", "system", "verdict"),
    [
        ("3.11.9", "arm64", "Darwin", "ok"),
        ("3.13.0rc1", "arm64", "Darwin", "ok"),
        ("3.10.14", "arm64", "Darwin", "wrong"),
        ("3.11.9", "x86_64", "Darwin", "wrong"),
        ("3.11.9", "x86_64", "Linux", "ok"),
    ],
)
def test_python(version: str, machine: str, system: str, verdict: str) -> None:
    assert check_python(version, machine, system).verdict == verdict


def test_packages_are_those_that_are_pinned() -> None:
    requirements = [
        "mlx==0.32.4",
        "ray[serve]==2.60.0",
        "pydantic<3,>=2.10",
        'mlx[cpu]==0.32.4; extra == "cpu"',
        'openai-agents==0.24.0; extra == "test"',
    ]
    installed = {"mlx": "0.32.4", "ray": "2.60.0", "pydantic": "1"}
    found = check_pins(requirements, installed.get)
    assert (found.verdict, found.told[:25]) == ("ok", "mlx 0.32.4, ray 2.60.0, a")
    assert "and 2 in all" in found.told
    found = check_pins(requirements, {"mlx": "0.32.3"}.get)
    assert found.verdict == "wrong"
    assert "mlx 0.32.3 (not 0.32.4), ray is missing (not 2.60.0)" in found.told


def test_an_engine_that_is_well() -> None:
    assert set(verdicts(engine(READING)).values()) == {"ok"}


def test_an_extension_for_another_mlx_is_wrong_and_told_in_its_words() -> None:
    error = "backend_metal._native was built for MLX 0.32.3, and this is MLX 0.32.4"
    [found] = engine(EngineReading(error=error))
    assert (found.verdict, found.told) == ("wrong", error)
    assert "xcode-select --install" in found.remedy
    assert "xcode" not in engine(EngineReading(error=error), system="Linux")[0].remedy


def test_a_mac_without_metal_is_wrong_and_linux_without_it_is_not() -> None:
    reading = replace(READING, devices=("cpu",), attention="cpu", wanted="cpu")
    assert verdicts(engine(reading))["Device"] == "wrong"
    assert verdicts(engine(reading, system="Linux"))["Device"] == "ok"


def test_kernels_that_do_not_work_are_a_warning_with_the_reason() -> None:
    reading = replace(READING, attention="reference", reason="decode is off by 0.3")
    [found] = [one for one in engine(reading) if one.check == "Attention"]
    assert found.verdict == "warning"
    assert found.told == "reference instead of metal: decode is off by 0.3"


def test_a_model_that_is_not_there_is_a_warning_and_one_that_can_not_be_served_is_wrong() -> None:
    absent = replace(READING, plan=None, is_absent=True)
    [found] = [one for one in engine(absent) if one.check == "Model"]
    assert (found.verdict, found.remedy) == ("warning", "`pomona models pull org/model`")
    refused = replace(READING, plan=None, problem="model_type 'mystery' is not supported")
    [found] = [one for one in engine(refused) if one.check == "Model"]
    assert (found.verdict, found.told) == (
        "wrong",
        "org/model: model_type 'mystery' is not supported",
    )


def test_memory() -> None:
    assert check_memory("m", PLAN, 7 * GB).verdict == "ok"
    found = check_memory("m", PLAN, 5 * GB)
    assert (found.verdict, "5.0 GB are free now" in found.told) == ("warning", True)
    found = check_memory("m", replace(PLAN, context=8192), 64 * GB)
    assert (found.verdict, "no room for its whole context of 40960" in found.told) == (
        "warning",
        True,
    )


@pytest.mark.parametrize(
    ("free", "verdict"), [(50 * GB, "ok"), (9 * GB, "warning"), (200 * 10**6, "wrong")]
)
def test_disk(free: int, verdict: str) -> None:
    assert check_disk("models", "/models", free).verdict == verdict


@pytest.mark.parametrize(
    ("port", "ray_runs", "verdict"),
    [
        (Port(8000, "the gateway"), False, "ok"),
        (Port(8000, "the gateway", is_taken=True), True, "wrong"),
        (Port(8000, "the gateway", is_taken=True, has_gateway=True), True, "ok"),
        (Port(8265, "Ray", is_rays=True), False, "ok"),
        (Port(8265, "Ray", is_rays=True, is_taken=True), True, "ok"),
        (Port(8265, "Ray", is_rays=True, is_taken=True), False, "warning"),
    ],
)
def test_ports(port: Port, ray_runs: bool, verdict: str) -> None:
    found = check_port(port, ray_runs=ray_runs)
    assert found.verdict == verdict
    assert str(port.number) in found.told


def test_who_has_a_port_is_told_by_asking(tmp_path: Path) -> None:
    assert not readings.is_taken(free_port(), "127.0.0.1")
    gateway = [{"targets": ["127.0.0.1:1"], "labels": {"component": "gateway"}}]
    with told_server({"/targets": (200, json.dumps(gateway).encode())}) as server:
        assert readings.is_taken(server.port, "127.0.0.1")
        assert readings.has_gateway(server.port, "127.0.0.1")
    for body in (b"[]", b"<html>", b"{}", b'[{"a": 1}]'):
        with told_server({"/targets": (200, body)}) as server:
            assert not readings.has_gateway(server.port, "127.0.0.1")


def test_secrets_that_others_may_read_are_wrong(tmp_path: Path) -> None:
    folder, token, key = tmp_path / "ray", tmp_path / "ray" / "token", tmp_path / "key"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    for path, mode in ((token, 0o640), (key, 0o600)):
        path.touch()
        path.chmod(mode)
    found = check_modes(readings.modes([folder, token, key, tmp_path / "absent"]))
    assert [(one.verdict, one.remedy) for one in found] == [
        ("wrong", f"`chmod 700 {folder}`"),
        ("wrong", f"`chmod 600 {token}`"),
    ]
    [found_ok] = check_modes({key: stat.S_IFREG | 0o600})
    assert found_ok.verdict == "ok"
    assert check_modes({}) == []
    assert check_modes(readings.modes([token]), warning)[0].verdict == "warning"


def test_keys() -> None:
    path = Path("/keys")
    assert check_keys(None, is_local=True, problem="", num_keys=0).verdict == "ok"
    assert check_keys(None, is_local=False, problem="", num_keys=0).verdict == "warning"
    assert check_keys(path, is_local=False, problem="no such file", num_keys=0).verdict == "wrong"
    assert check_keys(path, is_local=False, problem="", num_keys=2).told == "2 in /keys"


def test_hub() -> None:
    hub = Hub(Path("/cache"), may_write=True, has_token=False, is_offline=False)
    assert verdicts(check_hub(hub)) == {"Hub cache": "ok", "Hub": "ok"}
    assert verdicts(check_hub(replace(hub, may_write=False)))["Hub cache"] == "wrong"
    assert verdicts(check_hub(replace(hub, is_offline=True)))["Hub"] == "warning"


def test_clocks() -> None:
    assert check_clock(-2.5).verdict == "ok"
    found = check_clock(-90.0)
    assert (found.verdict, found.told[:12]) == ("warning", "90 s behind:")
    assert check_clock(4.0).told.startswith("4 s ahead:")


def test_versions_that_differ_name_the_hosts() -> None:
    one = {"pomona": "0.1.0", "python": "3.11.9", "ray": "2.60.0", "mlx": "0.32.4"}
    found = check_alike({"a": one, "b": {**one, "python": "3.11.8"}, "c": one, "silent": {}})
    assert verdicts(found) == {
        "Pomona alike": "ok",
        "Python alike": "wrong",
        "Ray alike": "ok",
        "MLX alike": "ok",
    }
    assert found[1].told == "3.11.9 on a, c; 3.11.8 on b"
    assert found[2].told == "2.60.0 on 3 of 4 hosts"
    assert check_alike({}) == []


def test_a_finding_is_one_line_that_a_terminal_can_trust() -> None:
    one = wrong("Model", "a\nb \x1b[2Jc", "do it")
    assert line(one) == "wrong    Model: a b \ufffd[2Jc. Remedy: do it"
    assert line(replace(one, host="mini-1")).startswith("wrong    mini-1: Model: ")
    assert summary([one, replace(one, verdict="warning")]) == "1 wrong, 1 warning, 0 ok."


def test_a_check_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(asked: local.Asked) -> list[Finding]:
        raise RuntimeError("no such thing\nat all")

    monkeypatch.setattr(local, "PARTS", (("First", fails), ("Hub", local._hub)))
    found = list(local.check_here(local.Asked(read_config(CONFIG))))
    assert found[0].check == "First"
    assert found[0].verdict == "warning"
    assert found[0].told == "can't be checked: RuntimeError: no such thing"
    assert found[-1].check == "Hub"


def test_linux_says_in_one_line_what_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    [found] = local._macos(local.Asked(read_config(CONFIG)))
    assert found.verdict == "skipped"
    assert "FileVault" in found.told


def test_a_mac_is_asked_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def output(command: tuple[str, ...]) -> None:
        asked.append(command[0].rpartition("/")[2])

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(readings, "output", output)
    found = list(local._macos(local.Asked(read_config(CONFIG))))
    assert asked == ["sw_vers", "sysctl", "xcode-select", "socketfilterfw", "pmset", "fdesetup"]
    assert {one.verdict for one in found} == {"warning"}


def test_a_store_has_no_model_and_no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "read_engine", lambda config: pytest.fail("it was loaded"))
    asked = local.Asked(
        read_config(CONFIG), rays_ports=(), has_engine=False, has_gateway=False, unattended=True
    )
    checks = {one.check for one in local.check_here(asked)}
    assert checks.isdisjoint({"Engine", "Model", "Hub", "Hub cache", "Port", "API keys"})


def test_the_engine_is_read_in_a_process_of_its_own() -> None:
    reading = read_engine(read_config(CONFIG).engine.model_copy(update={"device": "cpu"}))
    assert reading.error == reading.problem == ""
    assert reading.devices[-1] == "cpu"
    assert reading.plan is not None
    assert reading.plan.context == reading.plan.max_model_len == 8192


def test_what_ends_that_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_reading, "PROBE", "no_such_module")
    reading = read_engine(read_config(CONFIG).engine)
    assert "No module named no_such_module" in reading.error


def test_a_model_that_is_to_be_downloaded_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert read_engine(read_config(CONFIG, "org/absent").engine).is_absent
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """At a port that nobody has."""
    path = tmp_path / "app.yaml"
    text = CONFIG.read_text()
    assert "port: 8000" in text
    path.write_text(text.replace("port: 8000", f"port: {free_port()}"))
    return path


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the machine has to say."""
    one = [Finding("Disk", "ok", "much"), Finding("Hub", "warning", "offline", "go on line")]
    monkeypatch.setattr(doctor, "check_here", lambda asked: iter(one))
    return one


def test_the_exit_status_says_whether_anything_is_wrong(
    config: Path, found: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.run(["--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert out == (
        "ok       Disk: much\n"
        "warning  Hub: offline. Remedy: go on line\n"
        "\n0 wrong, 1 warning, 1 ok.\n"
    )
    found.append(wrong("Port", "taken", "end it"))
    assert doctor.run(["--config", str(config)]) == 1


def test_json_has_the_same_for_programs(
    config: Path, found: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.run(["--config", str(config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [Finding(**one) for one in told["findings"]] == found
    assert told["versions"].keys() == {"pomona", "python", "ray", "mlx"}
    assert told["time"] > 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("a: [", "while parsing"),
        ("[]", "not a Serve config"),
        ("applications: []", "no application of it has the import_path"),
        (
            "applications: [{import_path: 'deployments.app:build_app', args: {engin: {}}}]",
            "engin: unknown key; allowed here: ",
        ),
    ],
)
def test_a_config_that_is_wrong_is_a_mistake(
    content: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    assert doctor.run(["--config", str(path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["app", "cluster", "qwen3"])
def test_the_engines_settings_are_those_that_serve_would_have(name: str) -> None:
    read = read_config(REPOSITORY / "configs" / f"{name}.yaml")
    assert ("Qwen3" in read.engine.model) == (name != "app")
    assert read.settings.gateway.port == 8000


@pytest.mark.parametrize("flag", ["--roles=head,cook", "--ray-ports=0", "--ray-ports=a"])
def test_flags_that_are_wrong(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        doctor.run([flag])
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("told", "verdict", "words"),
    [
        ("notAfter=Jan 11 00:00:00 1970 GMT\n", "warning", "ends in 10 days"),
        ("notAfter=Mar  2 00:00:00 1970 GMT\n", "ok", "holds for 60 days"),
        ("notAfter=Dec 27 00:00:00 1969 GMT\n", "wrong", "has ended 5 days ago"),
        (None, "warning", "does not tell"),
    ],
)
def test_certificates_that_end(told: str | None, verdict: str, words: str) -> None:
    [found] = check_certificates([Path("/etc/pomona/store-ca.pem")], lambda command: told, now=0.0)
    assert found.verdict == verdict
    assert words in found.told
    if verdict == "wrong" or (told and verdict == "warning"):
        assert "--rotate store" in found.remedy


def test_the_certificates_of_a_cluster_are_read(tmp_path: Path) -> None:
    keep_credentials(tmp_path, KINDS)
    found = list(local._certificates(local.Asked(read_config(CONFIG), services=tmp_path)))
    assert [one.verdict for one in found] == ["ok", "ok", "ok"]
    assert all("holds for 3649 days" in one.told for one in found)
