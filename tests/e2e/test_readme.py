"""Every command of the READMEs, and those of ``pomona``, run.

A cluster's are in ``test_cluster_commands`` and ``test_runbook``, a wheel's in ``test_wheel``.
``make serve`` and ``make serve CONFIG=`` are the launcher that ``demo_serve`` runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.clients.recipe import limits_of
from tests.support.documents import DOCUMENTS, block
from tests.support.e2e.serve_process import REPOSITORY, ServeProcess

DEFAULT_URL = "http://127.0.0.1:8000"
AGENT = """#!/usr/bin/env bash
exec curl -sf "$ANTHROPIC_BASE_URL/v1/messages" -H "Authorization: Bearer $ANTHROPIC_AUTH_TOKEN" \\
  -H 'Content-Type: application/json' -d '{"model": "'"$ANTHROPIC_MODEL"'", "max_tokens": 8,
  "messages": [{"role": "user", "content": "What is Pomona?"}]}'
"""
"""Asks once what Claude Code would."""


def run(command: list[str], **settings: object) -> str:
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, **settings
    )
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}: {ended}"
    return ended.stdout


def pomona(*arguments: str, typed: str = "") -> str:
    return run([sys.executable, "-m", "deployments.command", *arguments], input=typed)


def test_curl_streams_a_sensible_sentence(demo_serve: ServeProcess) -> None:
    command = block("curl").replace(DEFAULT_URL, demo_serve.url)
    lines = run(["bash", "-euc", command]).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(c["delta"].get("content") or "" for e in chunks for c in e["choices"])
    assert len(chunks) > 10, "the answer was not streamed"
    assert "Pomona" in text
    assert "Macs" in text
    assert text.endswith(".")


def test_the_openai_client(demo_serve: ServeProcess) -> None:
    script = block("openai").replace(DEFAULT_URL, demo_serve.url)
    answer = run([sys.executable, "-c", script])
    assert "engine.model" in answer


def test_a_chat_streams_and_the_status_shows_that_it_did(demo_serve: ServeProcess) -> None:
    said = pomona("chat", demo_serve.url, typed="What is Pomona?\n/quit\n")
    # Drawn by chance, as the model's answers are where nobody says otherwise.
    assert len(said.partition("lists the commands.\n")[2].split()) > 3
    told = pomona("status", demo_serve.url)
    [engine] = [line.split() for line in told.splitlines() if " demo " in line]
    assert engine[-1] == "cpu"
    *_, gateway, _, versions = told.splitlines()
    assert int(gateway.split()[2]) >= 1
    assert versions.startswith("All have Pomona ")


def test_the_doctor_finds_nothing_wrong_here_nor_in_a_cluster_that_serves(
    demo_serve: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody has downloaded anything, and who runs the tests may have kept a token of Ray's openly.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(demo_serve.home))
    config, hosts = tmp_path / "app.yaml", tmp_path / "hosts.yaml"
    port = demo_serve.url.rpartition(":")[2]
    shipped = (REPOSITORY / "configs" / "app.yaml").read_text()
    config.write_text(shipped.replace("port: 8000", f"port: {port}"))
    here = "{name: here, address: 127.0.0.1, system: linux, roles: [head, engine, gateway]}"
    hosts.write_text(f"config: app.yaml\nhosts: [{here}]\n")
    alone, model, cluster = (
        shlex.split(one, comments=True)[1:] for one in block("doctor").splitlines()
    )
    told = pomona(*alone, "--config", str(config))
    assert f"ok       Port: {port} (the gateway): a gateway of Pomona answers there" in told
    assert re.search(r"^ok +Memory: demo takes ", told, re.MULTILINE)
    assert f"Model: {model[-1]} " in pomona(*model, "--config", str(config))
    told = pomona(*cluster[:-1], str(hosts), "--no-ssh")
    assert "ok       here: Engine: serves demo" in told
    assert re.search(r"^ok +Ray alike: [\d.]+ on 1 of 1 hosts$", told, re.MULTILINE)


def test_an_agent_is_told_where_the_server_is(demo_serve: ServeProcess, tmp_path: Path) -> None:
    """What it is told is enough for a request of its kind. ``tests/clients`` starts the agent."""
    serve, started = block("agents").split("\n", 1)
    told = pomona(*shlex.split(serve)[1:], "--dry-run")
    engine = yaml.safe_load(told)["applications"][0]["args"]["engine"]
    assert f"ANTHROPIC_MODEL={engine['served_model_name']}\n" in started
    limits = limits_of(engine["max_model_len"])
    assert f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={limits['CONTEXT']} " in started
    assert f"CLAUDE_CODE_MAX_OUTPUT_TOKENS={limits['OUTPUT']} " in started
    started = started.replace(DEFAULT_URL, demo_serve.url)
    agent = tmp_path / "claude"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    named = started.replace(engine["served_model_name"], "demo")
    answer = run(["bash", "-euc", named], env={**os.environ, "PATH": path})
    assert json.loads(answer)["content"][0]["text"]


def test_a_bench_of_a_server(demo_serve: ServeProcess) -> None:
    [command] = block("bench").splitlines()
    arguments = shlex.split(command.replace(DEFAULT_URL, demo_serve.url))[1:]
    # Its times are not compared with the server's: they differ on a machine that is busy.
    told = pomona(*arguments, "--no-metrics")
    assert re.search(r"Successful requests: +20$", told, re.MULTILINE)


def test_a_chat_needs_no_server() -> None:
    said = pomona("chat", "demo", typed="What is Pomona?\n")
    assert said.startswith("Chatting with demo in this process.")
    assert len(said.splitlines()[1].split()) > 3


def test_the_line_to_copy_is_a_curl_that_answers(demo_serve: ServeProcess) -> None:
    [line] = [one for one in demo_serve.log.read_text().splitlines() if "  curl " in one]
    assert "chat.completion" in run(["bash", "-euc", f"{line} --silent --fail"])


def test_offline_use() -> None:
    """Both scripts in one process, which imports the engine once."""
    answer, shape = run([sys.executable, "-c", block("offline") + "\n" + block("vectors")]).split(
        "\n(", 1
    )
    assert len(answer.split()) > 10
    assert re.fullmatch(r"2, \d+\)\n?", shape)


def test_the_other_endpoints(demo_serve: ServeProcess) -> None:
    text = "".join(DOCUMENTS.values())
    paths = set(re.findall(r"`GET (/[\w/.]+)`", text))
    assert len(paths) >= 6
    for path in paths:
        run(["curl", "-sf", f"{demo_serve.url}{path}"])


def test_the_command_that_downloads_a_revision_exists() -> None:
    program, command, model, option, _ = shlex.split(block("download"))
    usage = run([str(Path(sys.executable).with_name(program)), command, "--help"])
    assert option in usage.split()
    assert model in (REPOSITORY / "configs" / "cluster.yaml").read_text()


def test_make_targets_that_are_named_exist() -> None:
    named = {
        target
        for text in DOCUMENTS.values()
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)
    }
    assert named >= {"serve", "test"}
    for target in named:
        run(["make", "--dry-run", "--silent", target])


def test_the_short_way_to_a_cluster_is_a_part_of_the_long_one() -> None:
    def commands(name: str) -> set[str]:
        return {line.partition(" #")[0].strip() for line in block(name).splitlines()}

    assert commands("cluster") <= commands("generate") | commands("install")
