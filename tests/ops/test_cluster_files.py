from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ops.cluster.__main__ import generate, main
from ops.cluster.credentials import STORE_FILES
from ops.cluster.host_list import HostList, HostListError

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "ops" / "cluster" / "hosts.example.yaml"
SECRET_FILES = {"auth_token", "environment", *STORE_FILES, "api_keys.yaml"}
API_KEY = "a-key-of-a-client"
HUB_TOKEN = "a-token-for-the-hub"
# Of launchd.plist(5).
LAUNCHD_KEYS = {
    "Label",
    "ProgramArguments",
    "UserName",
    "WorkingDirectory",
    "RunAtLoad",
    "KeepAlive",
    "ThrottleInterval",
    "ExitTimeOut",
    "ProcessType",
    "SoftResourceLimits",
    "HardResourceLimits",
    "Umask",
    "StandardOutPath",
    "StandardErrorPath",
}


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


def generated(content: dict[str, Any], tmp_path: Path) -> Path:
    """The folder with the folders of the hosts in ``content``."""
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(content))
    generate(tmp_path / "hosts.yaml", tmp_path / "out")
    return tmp_path / "out"


def files_of(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if path.is_file()]


def test_the_shipped_example_is_valid(tmp_path: Path) -> None:
    assert main([str(EXAMPLE), str(tmp_path / "out")]) == 0
    names = {host["name"] for host in yaml.safe_load(EXAMPLE.read_text())["hosts"]}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"secrets"}


def test_each_role_brings_its_files(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    names = {host: {path.name for path in (out / host).iterdir()} for host in os.listdir(out)}
    everywhere = {"environment", "auth_token", "pomona", "pomona-ray", "install", "uninstall"}
    mac, store = {"com.pomona.ray.plist"}, {"pomona-store", "pomona-store.service", "redis.conf"}
    server = {"store-ca.pem", "store-server.pem", "store-server.key"}
    client = {"store-ca.pem", "store-client.pem", "store-client.key"}
    deployed = {"pomona-deploy", "cluster.yaml", "api_keys.yaml"}
    edge = {"pomona-ray.service", "api_keys.yaml"}
    assert names["studio-1"] == everywhere | mac
    assert names["head"] == everywhere | mac | client | deployed
    assert names["edge-1"] == everywhere | edge | store | server
    assert names["edge-2"] == everywhere | edge


def test_without_the_role_every_host_is_a_gateway(content: dict[str, Any], tmp_path: Path) -> None:
    content["hosts"] = [host for host in content["hosts"] if "gateway" not in host["roles"]]
    out = generated(content, tmp_path)
    assert (out / "studio-1" / "api_keys.yaml").exists()
    assert not (out / "head" / "store-client.key").exists()
    assert "REDIS" not in (out / "head" / "environment").read_text()
    assert '"gateway"' not in (out / "studio-1" / "pomona-ray").read_text()


def test_secrets_are_in_private_files_alone(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    token = (out / "secrets" / "auth_token").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    keys = [path.read_text() for path in (out / "secrets").glob("*.key")]
    assert len(keys) == 2
    for path in files_of(out):
        mode = path.stat().st_mode & 0o777
        if path.name in SECRET_FILES:
            assert mode == 0o600, path
        else:
            text = path.read_text()
            assert not any(secret in text for secret in (token, API_KEY, HUB_TOKEN, *keys)), path
            assert mode in (0o644, 0o755), path
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in out.iterdir())
    assert HUB_TOKEN in (out / "studio-1" / "environment").read_text()


def test_certificates_are_signed_by_the_authority_that_both_sides_have(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    authority = x509.load_pem_x509_certificate((out / "head" / "store-ca.pem").read_bytes())
    assert (out / "edge-1" / "store-ca.pem").read_bytes() == authority.public_bytes(Encoding.PEM)
    for path in (out / "head" / "store-client.pem", out / "edge-1" / "store-server.pem"):
        x509.load_pem_x509_certificate(path.read_bytes()).verify_directly_issued_by(authority)


def test_a_second_run_changes_nothing(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_of(out)}
    assert generate(tmp_path / "hosts.yaml", out) == ()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_of(out)} == before


def test_a_new_host_changes_no_other_and_shares_their_secrets(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    new = {"name": "new", "address": "10.0.0.20", "system": "macos", "roles": ["engine"]}
    content["hosts"].append(new)
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(content))
    assert generate(tmp_path / "hosts.yaml", out) == ("new",)
    tokens = {(out / host / "auth_token").read_text() for host in ("new", "head", "studio-1")}
    assert len(tokens) == 1


def test_what_a_host_no_longer_needs_is_removed(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    content["hosts"][0]["roles"] = ["gateway"]
    generated(content, tmp_path)
    assert not list((out / "edge-1").glob("*store*"))


def test_a_mode_that_somebody_loosened_is_set_again(
    content: dict[str, Any], tmp_path: Path
) -> None:
    out = generated(content, tmp_path)
    (out / "head" / "environment").chmod(0o644)
    assert generate(tmp_path / "hosts.yaml", out) == ("head",)
    assert (out / "head" / "environment").stat().st_mode & 0o777 == 0o600


def test_property_lists_say_what_launchd_needs(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    for host in ("head", "studio-1"):
        job = plistlib.loads((out / host / "com.pomona.ray.plist").read_bytes())
        assert job["Label"] == "com.pomona.ray"
        assert job["ProgramArguments"] == ["/etc/pomona/pomona-ray"]
        assert job["UserName"] == "pomona"
        assert job["WorkingDirectory"] == "/var/lib/pomona"
        assert job["KeepAlive"] is True
        assert job["RunAtLoad"] is True
        assert job["ProcessType"] == "Interactive"
        assert job["ThrottleInterval"] == 5
        assert job["SoftResourceLimits"] == {"NumberOfFiles": 65536}
        assert job["Umask"] == 0o077
        assert {job["StandardOutPath"], job["StandardErrorPath"]} == {"/var/lib/pomona/log/ray.log"}
        # The head has nothing to drain; an engine's streams get the 300 s of the config.
        assert job["ExitTimeOut"] >= 300
        assert set(job) <= LAUNCHD_KEYS


def test_systemd_accepts_the_units(content: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # It looks for the programs of the units.
    out = generated(content | {"services": str(tmp_path / "out" / "edge-1")}, tmp_path)
    units = [str(path) for path in (out / "edge-1").glob("*.service")]
    assert len(units) == 2
    verified = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    broken = Path(units[0])
    broken.write_text(broken.read_text().replace("Restart=always", "Restart=perhaps"))
    refused = subprocess.run(
        ["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, check=False
    )
    assert "perhaps" in refused.stderr


def test_systemd_units_drain_before_they_stop(content: dict[str, Any], tmp_path: Path) -> None:
    lines = (generated(content, tmp_path) / "edge-1" / "pomona-ray.service").read_text().split("\n")
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    assert settings["User"] == "pomona"
    assert settings["Restart"] == "always"
    assert settings["StartLimitIntervalSec"] == "0"
    assert settings["KillMode"] == "mixed"
    assert settings["LimitNOFILE"] == "65536"
    environment = (tmp_path / "out" / "edge-1" / "environment").read_text()
    (drain,) = re.findall(r"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=(\d+)", environment)
    assert 300 < int(drain) < int(settings["TimeoutStopSec"])


def test_the_longest_drain_of_the_deployed_config_is_waited_for(
    content: dict[str, Any], tmp_path: Path
) -> None:
    config = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    for application in config["applications"]:
        application["args"]["replica"] = {"drain_timeout_s": 77}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    out = generated(content | {"config": "mine.yaml"}, tmp_path)
    line = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="
    assert f"{line}77\n" in (out / "studio-1" / "environment").read_text()
    assert f"{line}102\n" in (out / "edge-2" / "environment").read_text()
    assert f"{line}0\n" in (out / "head" / "environment").read_text()


def test_scripts_are_sound_shell(content: dict[str, Any], tmp_path: Path) -> None:
    out = generated(content, tmp_path)
    scripts = [path for path in files_of(out) if path.read_bytes().startswith(b"#!/bin/sh")]
    assert {path.name for path in scripts} >= {"pomona", "pomona-ray", "pomona-store", "install"}
    scripts += out.rglob("environment")
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    shellcheck = Path(sys.executable).parent / "shellcheck"
    # What the environment file sets, and what the scripts set for it.
    sourced = "SC1091,SC2154,SC2034"
    found = subprocess.run(
        [shellcheck, "--shell=sh", f"--exclude={sourced}", *scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_ray_gets_its_arguments(content: dict[str, Any], tmp_path: Path) -> None:
    content["hosts"][2]["roles"] = ["head", "engine", "gateway"]
    out = generated(content, tmp_path)
    head = ray_arguments(out / "head", tmp_path)
    assert head[:3] == ["start", "--block", "--head"]
    assert {"--port=8266", "--node-ip-address=10.0.0.4", "--num-cpus=0"} < set(head)
    assert '--resources={"mlx": 1, "gateway": 1}' in head
    worker = ray_arguments(out / "studio-1", tmp_path)
    assert {"--block", "--address=10.0.0.4:8266", '--resources={"mlx": 1}'} < set(worker)
    assert not any(argument.startswith(("--head", "--num-cpus")) for argument in worker)


def ray_arguments(folder: Path, tmp_path: Path) -> list[str]:
    """What the host's script calls ``ray`` with."""
    script = (folder / "pomona-ray").read_text().replace('"$here/pomona-deploy" &', "")
    recorded = tmp_path / "bin" / "ray"
    recorded.parent.mkdir(exist_ok=True)
    recorded.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    recorded.chmod(0o755)
    (folder / "pomona-ray").write_text(script.replace("exec ray", f"exec {recorded}"))
    environment = (folder / "environment").read_text()
    (folder / "environment").write_text(environment.replace("/var/lib/pomona", str(tmp_path / "s")))
    ran = subprocess.run(
        [folder / "pomona-ray"], capture_output=True, text=True, check=True, env={"PATH": "/bin"}
    )
    return ran.stdout.splitlines()


MISTAKES = [
    ({"hosts": []}, r"hosts: .*at least 1"),
    ({"hosts.0.roles": ["worker"]}, r"hosts\.0\.roles\.0: .*'head', 'engine'.*not 'worker'"),
    ({"hosts.0.roles": []}, r"hosts\.0\.roles: .*at least 1"),
    ({"hosts.0.address": "edge-1.local"}, r"hosts\.0\.address: .*IPv4.*not 'edge-1.local'"),
    ({"hosts.0.name": "../edge"}, r"hosts\.0\.name: .*pattern.*not '\.\./edge'"),
    ({"hosts.0.name": "secrets"}, r"hosts\.0\.name: .*secrets"),
    ({"hosts.0.system": "windows"}, r"hosts\.0\.system: .*'macos' or 'linux'.*not 'windows'"),
    ({"hosts.0.cpus": 4}, r"hosts\.0\.cpus: unknown key; allowed here: address, name, num_cpus"),
    ({"hosts.1.name": "edge-1"}, r"hosts: name: edge-1 comes more than once"),
    ({"hosts.1.address": "10.0.0.2"}, r"hosts: address: 10\.0\.0\.2 comes more than once"),
    ({"hosts.1.roles": ["head"]}, r"exactly one host may have the role head, not 2"),
    ({"hosts.1.roles": ["store"]}, r"at most one host may have the role store, not 2"),
    ({"ray_port": 6379}, r"_port: 6379 comes more than once"),
    ({"ray_port": 80}, r"ray_port: .*greater than or equal to 1024, not 80"),
    ({"state": "/a/folder/too/deep/for/the/sockets"}, r"state: .*at most 31 characters"),
    ({"services": "/etc/my pomona"}, r"services: .*pattern"),
    ({"user": "root; reboot"}, r"user: .*pattern"),
    ({"redis": "10.0.0.9"}, r"redis: unknown key; allowed here: agent_port, api_keys"),
    ({"environment": {"A B": "1"}}, r"environment\.A B"),
    ({"environment": {"HF_TOKEN": 1}}, r"environment\.HF_TOKEN: .*string$"),
    ({"config": "missing.yaml"}, r"config: .*missing\.yaml.*No such file"),
    ({"config": "keys.yaml"}, r"config: .*deployments\.app:"),
    ({"api_keys": "keys"}, r"api_keys: gateway.api_keys_file must be ~/.pomona/api_keys, not ~"),
    ({"api_keys": "missing.yaml"}, r"api_keys: .*No such file"),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=[str(one) for one, _ in MISTAKES])
def test_a_mistake_is_told_with_its_field(
    mistake: dict[str, Any], told: str, content: dict[str, Any], tmp_path: Path
) -> None:
    for path, value in mistake.items():
        *parents, last = path.split(".")
        section: Any = content
        for name in parents:
            section = section[int(name) if name.isdigit() else name]
        section[last] = value
    with pytest.raises(HostListError, match=told):
        generated(content, tmp_path)


def test_mistakes_end_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: 3\n")
    assert main([str(tmp_path / "hosts.yaml"), str(tmp_path / "out")]) == 2
    assert "hosts: " in capsys.readouterr().err
    (tmp_path / "hosts.yaml").write_text("[")
    assert main([str(tmp_path / "hosts.yaml"), str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_the_example_tells_the_defaults() -> None:
    example = yaml.safe_load(EXAMPLE.read_text())
    for name, field in HostList.model_fields.items():
        if name in example and not field.is_required() and name != "environment":
            assert example[name] == field.default, name
    assert IPv4Address(example["hosts"][0]["address"]).is_private
