"""Each client does a whole turn with a tool, or gets an answer of its schema, as it comes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clients import AIDER, NODE, PYTHON_CLIENTS, PythonClient
from tests.clients.conftest import MODEL
from tests.support.clients.recipe import exports, recipe
from tests.support.clients.run import named, run, run_node, variables
from tests.support.clients.scripted_backend import GREETING
from tests.support.clients.wiretap import wiretap
from tests.support.e2e.serve_process import ServeProcess

pytestmark = pytest.mark.clients

BIN = NODE / "node_modules" / ".bin"
SCRIPTS = Path(__file__).parent / "scripts"
NOTES = "Apples ripen in autumn."


def told(printed: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize("client", named(one for one in PYTHON_CLIENTS if one.turns))
def test_python(client: PythonClient, scripted_serve: ServeProcess, work: Path) -> None:
    script = SCRIPTS / f"{client.name}_turn.py"
    told_to_it = variables(scripted_serve.url, MODEL)
    if client.name == "litellm":
        (work / "config.yaml").write_text(recipe("litellm", scripted_serve.url, MODEL))
    if client.name == "llm":
        models = work / "extra-openai-models.yaml"
        models.write_text(recipe("llm", scripted_serve.url, MODEL))
        told_to_it["LLM_USER_PATH"] = str(work)
    result = told(run(client.python, script, at=work, **told_to_it))
    if "tool" in client.does:
        assert result["num_reads"] == 1
        assert "read" in result["answer"] or NOTES in result["answer"]
    if "structured" in client.does:
        assert result["structured"]


def test_langchain_by_the_lines_to_copy(scripted_serve: ServeProcess, work: Path) -> None:
    lines = recipe("langchain", scripted_serve.url, MODEL)
    assert run(sys.executable, "-c", lines, at=work).strip()


def test_ai_sdk(scripted_serve: ServeProcess, work: Path) -> None:
    result = of_node("ai_sdk_turn.mjs", scripted_serve, work)
    assert (result["num_reads"], result["structured"]["name"]) == (1, "Ulm")
    assert NOTES in result["answer"]


def test_ai_sdk_by_its_default_api(scripted_serve: ServeProcess, work: Path) -> None:
    result = of_node("ai_sdk_responses_turn.mjs", scripted_serve, work)
    assert result["num_reads"] == 1
    assert NOTES in result["answer"]
    # A step of its own went on with the thoughts, the next turn with these and the answer.
    assert result["num_references"] == 3
    assert (result["next"], result["last"]) == ('{"again": true}', '{"last": true}')


def of_node(name: str, serve: ServeProcess, work: Path) -> Mapping[str, Any]:
    return told(run_node(SCRIPTS / name, at=work, **variables(serve.url, MODEL)))


@pytest.fixture
def notes(work: Path) -> Path:
    """In a folder that an agent works in."""
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)
    path = work / "notes.txt"
    path.write_text(f"{NOTES}\n")
    return path


def test_opencode(scripted_serve: ServeProcess, notes: Path) -> None:
    config = recipe("opencode", scripted_serve.url, MODEL)
    (notes.parent / "opencode.json").write_text(config)
    printed = run(BIN / "opencode", "run", f"CALL read filePath={notes}", at=notes.parent)
    assert NOTES in printed


def test_qwen_code(scripted_serve: ServeProcess, notes: Path) -> None:
    settings = notes.parents[1] / "home" / ".qwen" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(recipe("qwen-code-settings", scripted_serve.url, MODEL))
    printed = run(
        BIN / "qwen",
        "--auth-type=openai",
        "--yolo",
        f"--prompt=CALL read_file file_path={notes}",
        at=notes.parent,
        **exports(recipe("qwen-code", scripted_serve.url, MODEL)),
    )
    assert NOTES in printed


def test_continue(scripted_serve: ServeProcess, notes: Path) -> None:
    config = notes.parent / "config.yaml"
    config.write_text(recipe("continue", scripted_serve.url, MODEL))
    told_to_it = f"CALL Read filepath={notes}"
    printed = run(BIN / "cn", "--config", config, "--auto", "-p", told_to_it, at=notes.parent)
    assert NOTES in printed


def test_pi(scripted_serve: ServeProcess, notes: Path) -> None:
    models = notes.parents[1] / "home" / ".pi" / "agent" / "models.json"
    models.parent.mkdir(parents=True)
    models.write_text(recipe("pi", scripted_serve.url, MODEL))
    chosen = ("--model", f"pomona/{MODEL}")
    printed = run(BIN / "pi", *chosen, "--print", f"CALL read path={notes}", at=notes.parent)
    assert NOTES in printed


def test_cline(scripted_serve: ServeProcess, notes: Path) -> None:
    providers = notes.parents[1] / "home" / ".cline" / "data" / "settings" / "providers.json"
    providers.parent.mkdir(parents=True)
    providers.write_text(recipe("cline", scripted_serve.url, MODEL))
    # Without a daemon that stays.
    local = {"CLINE_SESSION_BACKEND_MODE": "local"}
    printed = run(BIN / "cline", f"CALL read_files path={notes}", at=notes.parent, **local)
    assert NOTES in printed


def test_aider(scripted_serve: ServeProcess, notes: Path) -> None:
    metadata = notes.parent / ".aider.model.metadata.json"
    metadata.write_text(recipe("aider-metadata", scripted_serve.url, MODEL))
    with wiretap(scripted_serve.url) as tap:
        printed = run(
            AIDER.python.with_name("aider"),
            f"--model=openai/{MODEL}",
            "--message=When do they ripen?",
            "--yes-always",
            notes.name,
            at=notes.parent,
            **exports(recipe("aider", tap.url, MODEL)),
        )
    assert GREETING in printed
    [asked] = [one.asked for one in tap.exchanges if one.path == "/v1/chat/completions"]
    assert any(NOTES in message["content"] for message in asked["messages"])


def test_codex(scripted_serve: ServeProcess, notes: Path) -> None:
    folder = notes.parents[1] / "home" / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(recipe("codex", scripted_serve.url, MODEL))
    command = notes.parent / "tell"
    command.write_text("#!/bin/sh\ncat notes.txt\n")
    command.chmod(0o755)
    printed = run(
        BIN / "codex",
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        f"CALL exec_command cmd={command}",
        at=notes.parent,
        POMONA_KEY="none",
    )
    assert NOTES in printed


def test_claude_code(scripted_serve: ServeProcess, notes: Path) -> None:
    printed = run(
        BIN / "claude",
        "--print",
        f"CALL Read file_path={notes}",
        at=notes.parent,
        **exports(recipe("claude-code", scripted_serve.url, MODEL)),
    )
    assert NOTES in printed
