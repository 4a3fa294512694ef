"""Which clients are tried, in which versions, and how each is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).resolve().parents[2] / ".clients"
"""Where ``python -m tests.clients.install`` puts them, each by itself."""


@dataclass(frozen=True)
class PythonClient:
    name: str
    """Of its script, too."""
    requirements: tuple[str, ...]
    does: frozenset[Literal["tool", "structured"]] = frozenset({"tool"})

    @property
    def python(self) -> Path:
        return FOLDER / self.name / "bin" / "python"


BOTH = frozenset[Literal["tool", "structured"]]({"tool", "structured"})

PYTHON_CLIENTS = (
    PythonClient("openai_agents", ("openai-agents==0.24.0",)),
    PythonClient("pydantic_ai", ("pydantic-ai-slim[openai]==2.68.0",), BOTH),
    PythonClient("instructor", ("instructor==1.17.0",), frozenset({"structured"})),
    PythonClient("langchain", ("langchain==1.4.7", "langchain-openai==1.7.3"), BOTH),
    PythonClient(
        "llama_index", ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1")
    ),
    PythonClient("smolagents", ("smolagents[openai]==1.26.0",)),
    PythonClient("dspy", ("dspy==3.4.1",), frozenset({"structured"})),
)
HARNESSES = (
    PythonClient("guidellm", ("guidellm==0.8.1",)),
    PythonClient("aiperf", ("aiperf==0.13.0",)),
    PythonClient("lm_eval", ("lm-eval[api]==0.4.13", "transformers==5.23.0")),
)
NODE_PACKAGES = (
    "ai@6.0.326",
    "@ai-sdk/openai-compatible@2.0.91",
    "zod@4.6.7",
    "opencode-ai@1.18.33",
    "@qwen-code/qwen-code@0.15.10",
    "@openai/codex@0.169.0",
    "@anthropic-ai/claude-code@2.1.197",
)
"""From npm, into one folder."""
INSTALL_SCRIPTS = {
    "@anthropic-ai/claude-code": "install.cjs",
    "opencode-ai": "postinstall.mjs",
}
"""Which fetch nothing, and which npm runs only for those it is told of."""
NODE = FOLDER / "node"
