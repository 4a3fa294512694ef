"""Flags of the command line: one for each setting, read as a config file would be."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deployments.command import serve
from deployments.command.__main__ import SUBCOMMANDS, help_text
from deployments.command.setting_flags import SECRET, setting_flags
from deployments.launch.serve_config import ENGINES, check, engine_configs
from deployments.settings import AppSettings, parse_settings
from tests.support.documents import REPOSITORY

pytestmark = pytest.mark.serve

FLAGS = {flag.key: flag for flag in setting_flags()}

ARGS = st.fixed_dictionaries(
    {},
    optional={
        "engine.max_num_seqs": st.integers(1, 1000),
        "engine.block_size": st.sampled_from([8, 16, 32]),
        "engine.device": st.sampled_from(["auto", "cpu", "cuda"]),
        "engine.memory_fraction": st.floats(0.01, 0.95),
        "engine.prefix_caching": st.booleans(),
        "engine.revision": st.sampled_from(["main", "12345", "true", "1e5", "0123abc"]),
        "engine.num_kv_blocks": st.none() | st.integers(1, 10**6),
        "engine.aliases": st.lists(st.sampled_from(["a", "b-c", "d/e"]), max_size=3),
        "engine.options": st.dictionaries(st.sampled_from(["x", "y"]), st.integers()),
        "engine.generation_defaults.temperature": st.floats(0, 2),
        "gateway.api_keys_file": st.none(),
        "gateway.stall_timeout_s": st.floats(10.0, 100.0),
        "gateway.allowed_origins": st.just(["https://a.example"]),
        "routing.session_header": st.lists(st.sampled_from(["X-A", "X-B"]), min_size=1),
        "autoscaling.max_replicas": st.none() | st.integers(1, 9),
        "observability.log_format": st.sampled_from(["text", "json"]),
    },
)


def dry_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert serve.run(["--dry-run", *arguments]) == 0
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return config


def typed(value: Any) -> str:
    """As people type it."""
    if isinstance(value, list) and value:
        return ",".join(value)
    return (
        "null" if value is None else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
    )


def nested(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        section = found
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return found


def test_every_setting_but_secrets_has_a_flag() -> None:
    def keys(settings: Any, prefix: str) -> set[str]:
        found = set()
        for name, value in settings:
            is_section = hasattr(type(value), "model_fields")
            found |= keys(value, f"{prefix}{name}.") if is_section else {prefix + name}
        return found

    assert set(FLAGS) == keys(AppSettings(), "") - set(SECRET)


@given(values=ARGS)
def test_what_flags_say_is_what_a_config_file_would(values: dict[str, Any]) -> None:
    arguments = [
        f"{FLAGS[key].option}={value if isinstance(value, str) else typed(value)}"
        for key, value in values.items()
    ]
    config = serve.effective_config(serve.DEFAULT_CONFIG, serve._options(arguments))
    shipped = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    expected = shipped["applications"][0]["args"]
    for section, given_here in nested(values).items():
        expected[section] = expected.get(section, {}) | given_here
    assert check(config) == [parse_settings(expected)]


def test_a_dry_run_says_what_would_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    config = dry_run(
        [
            "some/model",
            "--port",
            "9000",
            "--engine.max_num_seqs",
            "4",
            "--engine.trust-remote-code",
        ],
        capsys,
    )
    [parsed] = check(config)
    assert parsed.engine.model_dump(exclude_defaults=True) == {
        "model": "some/model",
        "max_num_seqs": 4,
        "trust_remote_code": True,
    }
    assert (parsed.gateway.host, parsed.gateway.port) == ("127.0.0.1", 9000)
    assert dry_run([], capsys) == yaml.safe_load((REPOSITORY / "configs/app.yaml").read_text())


def test_a_switch_without_a_value_leaves_the_model_after_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [parsed] = check(dry_run(["--engine.trust-remote-code", "some/model"], capsys))
    assert (parsed.engine.trust_remote_code, parsed.engine.model) == (True, "some/model")
    [parsed] = check(dry_run(["--engine.prefix-caching", "false"], capsys))
    assert parsed.engine.prefix_caching is False


def test_settings_go_to_the_applications_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".pomona").mkdir()
    (tmp_path / ".pomona" / "api_keys").write_text("a-key\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = dry_run(
        [
            "a/model",
            f"--config={REPOSITORY / 'configs' / 'cluster.yaml'}",
            "--port=9",
            "--routing.load-bound=2",
            "--engine.max-num-seqs=3",
            "--replica.drain-timeout-s=1",
        ],
        capsys,
    )
    engines, gateways = (one["args"] for one in config["applications"])
    assert config["applications"][0]["import_path"] == ENGINES
    assert [one.max_num_seqs for one in engine_configs(config)] == [3]
    assert "routing" not in engines
    assert "engine" not in gateways
    assert gateways["routing"] == {"load_bound": 2}
    assert gateways["gateway"]["port"] == 9
    assert engines["replica"] == gateways["replica"] == {"drain_timeout_s": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "--engine.max-num-seqs=0",
            "--engine.max-num-seqs: Input should be greater than or equal to 1, not 0",
        ),
        ("--engine.device=tpu", "--engine.device: Input should be 'auto', 'metal', 'cuda' or"),
        ("--engine.max-num-seqs=many", "--engine.max-num-seqs: Input should be a valid integer"),
        ("--engine.generation-defaults.top-p=2", "--engine.generation-defaults.top-p: Input"),
        ("--engine.options={", "--engine.options: can't read '{'"),
        ("--autoscaling.min-replicas=2 --autoscaling.max-replicas=1", "autoscaling: min_replicas"),
        ("--engine.max-num-seq=3", "there is no flag --engine.max-num-seq; did you mean --engine."),
        ("--block-size=8", "did you mean --engine.block-size?"),
        ("--gateway.api-keys=a", "would show the keys to every user of this machine"),
        ("one two", "one model at most, 'two' is too much"),
        ("--port 0", "a port is 1 to 65535, not '0'"),
        ("--port http", "a port is 1 to 65535, not 'http'"),
        ("--config absent.yaml", "absent.yaml: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: int | str | None = serve.run(["--dry-run", *shlex.split(arguments)])
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("pomona: ")
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_the_built_in_config_is_the_shipped_one() -> None:
    assert serve.DEFAULT_CONFIG == REPOSITORY / "configs" / "app.yaml"


def test_help_has_every_setting_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        serve.run(["--help-settings"])
    assert ended.value.code == 0
    told = re.sub(r"\s+", " ", re.sub(r"-\n\s+", "-", capsys.readouterr().out))
    for flag in FLAGS.values():
        assert f"{flag.option} {flag.placeholder} " in told
    assert "Most sequences in one step. (default: 32)" in told


def test_short_help_has_no_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.run(["--help"])
    told = capsys.readouterr().out
    assert "--engine.block-size" not in told
    assert len(told.splitlines()) < 50


def test_the_command_lists_its_subcommands() -> None:
    assert all(re.search(rf"^  {name} ", help_text(), re.MULTILINE) for name in SUBCOMMANDS)


def test_settings_that_were_not_given_are_not_in_the_options() -> None:
    assert not set(vars(serve._options([]))) & set(FLAGS)
    assert isinstance(serve._options([]), argparse.Namespace)
