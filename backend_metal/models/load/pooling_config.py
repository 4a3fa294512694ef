"""How a checkpoint makes a vector of a text, or a score: what sentence-transformers' files say.

A decoder without such files gives the state of its last token, of length 1, as in vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Pooling = Literal["last", "mean", "cls"]

MODULES = "modules.json"
POOLING_FILES = (
    MODULES,
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "*_*/config.json",
)
"""As patterns; the last one is of the folders of modules."""
_KINDS = frozenset({"Transformer", "Pooling", "Normalize", "LogitScore"})
_MODES: Mapping[str, Pooling] = {
    "lasttoken": "last",
    "pooling_mode_lasttoken": "last",
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "cls",
    "pooling_mode_cls_token": "cls",
}
"""By what sentence-transformers calls them, of late and before."""


@dataclass(frozen=True)
class ScoreTokens:
    """How relevant a document is shows in the logits of the token that would come next."""

    true_token_id: int
    false_token_id: int | None
    """What its logit is held against; None: nothing."""


@dataclass(frozen=True)
class PoolingConfig:
    pooling: Pooling = "last"
    """Which tokens' states count: the last one's, all, or the first one's."""
    normalizes: bool = True
    """Whether vectors have the length 1."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """By what a text is, such as ``query``: what stands before it."""
    default_prompt: str = ""
    """Before a text of which nobody says what it is."""
    max_tokens: int | None = None
    """Of a text; None: what the context holds."""
    score: ScoreTokens | None = None
    """Of a model that is asked with a query and a document."""
    is_for_vectors: bool = False
    """Whether the checkpoint says that they are what it is for."""


def read_pooling_config(checkpoint: Path) -> PoolingConfig:
    """Raises ``ValueError`` naming the file and what of it can't be served."""
    path = checkpoint / MODULES
    if not path.is_file():
        return PoolingConfig()
    modules = {_kind(one): checkpoint / one.get("path", "") for one in _read(path, list)}
    if unknown := sorted(modules.keys() - _KINDS):
        raise ValueError(
            f"{path}: modules must be {', '.join(sorted(_KINDS))}, not {', '.join(unknown)}"
        )
    max_tokens = _max_tokens(checkpoint / "sentence_bert_config.json")
    if "LogitScore" in modules:
        score = _score(modules["LogitScore"] / "config.json")
        return PoolingConfig(score=score, max_tokens=max_tokens)
    if "Pooling" not in modules:
        raise ValueError(f"{path} has no module that pools, so the model's head classifies")
    settings = _read_if_there(checkpoint / "config_sentence_transformers.json")
    prompts = {name: text for name, text in (settings.get("prompts") or {}).items() if text}
    return PoolingConfig(
        pooling=_pooling(modules["Pooling"] / "config.json", prompts),
        normalizes="Normalize" in modules,
        prompts=prompts,
        default_prompt=prompts.get(settings.get("default_prompt_name") or "", ""),
        max_tokens=max_tokens,
        is_for_vectors=True,
    )


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _pooling(path: Path, prompts: Mapping[str, str]) -> Pooling:
    settings = _read(path, dict)
    if mode := settings.get("pooling_mode"):
        modes = [mode] if isinstance(mode, str) else list(mode)
    else:
        modes = [name for name in settings if name.startswith("pooling_mode_") and settings[name]]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ValueError(
            f"{path}: the pooling must be one of lasttoken, mean and cls, not {', '.join(modes)}"
        )
    if prompts and not settings.get("include_prompt", True):
        raise ValueError(f"{path}: include_prompt must be true, since prompts are pooled, too")
    return _MODES[modes[0]]


def _score(path: Path) -> ScoreTokens:
    tokens = _read(path, dict)
    return ScoreTokens(tokens["true_token_id"], tokens.get("false_token_id"))


def _max_tokens(path: Path) -> int | None:
    settings = _read_if_there(path)
    if settings.get("do_lower_case"):
        raise ValueError(f"{path}: do_lower_case is not supported")
    return settings.get("max_seq_length")


def _read_if_there(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = _read(path, dict) if path.is_file() else {}
    return content


def _read(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold {kind.__name__}, not {type(content).__name__}")
    return content
