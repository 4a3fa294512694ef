"""Sampling defaults: what a checkpoint's ``generation_config.json`` says, and who overrules it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from deployments.backend import GenerationDefaults, SamplingParams

GENERATION_CONFIG = "generation_config.json"

Source = Literal["auto", "openai"]


def default_sampling(
    checkpoint: Path, source: Source, overrides: GenerationDefaults
) -> SamplingParams:
    """How tokens are drawn for a request that does not say, by the rules of vLLM: ``do_sample``
    does not count. Its limit of new tokens is none here, where a context is the only one.

    Raises ``ValueError`` naming the file and the field.
    """
    stored = GenerationDefaults() if source == "openai" else _stored(checkpoint)
    return overrides.over(stored.over(SamplingParams()))


def read_generation_config(checkpoint: Path) -> dict[str, Any]:
    """Empty without the file. Raises ``ValueError`` naming it."""
    path = checkpoint / GENERATION_CONFIG
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, not {type(content).__name__}")
    return content


def _stored(checkpoint: Path) -> GenerationDefaults:
    content = read_generation_config(checkpoint)
    known = {name: content[name] for name in GenerationDefaults.model_fields if name in content}
    try:
        return GenerationDefaults.model_validate(known)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{mistake['loc'][0]}: {mistake['msg']}, not {mistake['input']!r}"
            for mistake in error.errors()
        )
        raise ValueError(
            f"{checkpoint / GENERATION_CONFIG}: {mistakes}; `engine.generation_config: openai` "
            "does without it"
        ) from error
