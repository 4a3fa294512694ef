"""Sampling defaults: the checkpoint's, OpenAI's, and the operator's over both."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.backend import MlxBackend
from backend_metal.device import CPU
from backend_metal.models.load.find import DEMO_DIRECTORY
from backend_metal.models.load.generation_config import default_sampling
from backend_metal.models.load.loader import load
from deployments.backend import EngineConfig, GenerationDefaults
from tests.support.backend_metal import tiny_models

NONE = GenerationDefaults()
QWEN3 = {
    "do_sample": True,
    "eos_token_id": [257],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "max_new_tokens": 2048,
    "transformers_version": "4.51.0",
}
DRAWN = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.save("qwen3", tmp_path)
    write(tmp_path, QWEN3)
    return tmp_path


def write(directory: Path, content: object) -> None:
    (directory / "generation_config.json").write_text(json.dumps(content))


def revision(checkpoint: Path, **settings: Any) -> str:
    return load(str(checkpoint), device=CPU, memory_limit_bytes=2**30, **settings).revision


def test_a_checkpoint_says_how_its_tokens_are_drawn(checkpoint: Path) -> None:
    assert default_sampling(checkpoint, "auto", NONE) == DRAWN


def test_openai_has_defaults_of_its_own(checkpoint: Path) -> None:
    assert default_sampling(checkpoint, "openai", NONE) == SamplingParams()


@pytest.mark.parametrize("source", ["auto", "openai"])
def test_the_operator_wins_field_by_field(checkpoint: Path, source: Any) -> None:
    overrides = GenerationDefaults(top_k=-1, min_p=0.1)
    drawn = default_sampling(checkpoint, source, overrides)
    assert (drawn.top_k, drawn.min_p) == (0, 0.1)
    assert drawn.temperature == (0.6 if source == "auto" else 1.0)


def test_a_checkpoint_without_the_file_has_openais(tmp_path: Path) -> None:
    assert default_sampling(tmp_path, "auto", NONE) == SamplingParams()


def test_the_embedded_model_has_openais() -> None:
    assert default_sampling(DEMO_DIRECTORY, "auto", NONE) == SamplingParams()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"temperature": 3}, "temperature: .*2, not 3"),
        ({"top_p": "most", "top_k": 5}, "top_p: .* not 'most'"),
        ({"top_k": -2}, "top_k: .* not -2"),
        ({"repetition_penalty": 0}, "repetition_penalty: .* not 0"),
        ({"min_p": float("nan")}, "min_p: .* not nan"),
    ],
)
def test_a_bad_file_is_told_with_its_field_before_anything_loads(
    checkpoint: Path, content: object, said: str
) -> None:
    write(checkpoint, content)
    with pytest.raises(ValueError, match=rf"generation_config\.json.*{said}"):
        MlxBackend().check(EngineConfig(model=str(checkpoint)))
    MlxBackend().check(EngineConfig(model=str(checkpoint), generation_config="openai"))


@pytest.mark.parametrize(
    ("content", "said"), [("{temperature", "is no JSON"), ("[]", "must hold an object, not list")]
)
def test_what_is_no_object_is_told(checkpoint: Path, content: str, said: str) -> None:
    (checkpoint / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=rf"generation_config\.json {said}"):
        MlxBackend().check(EngineConfig(model=str(checkpoint)))


def test_engines_with_other_defaults_do_not_continue_each_others_answers(
    checkpoint: Path,
) -> None:
    same = revision(checkpoint)
    assert revision(checkpoint, generation_defaults=GenerationDefaults(top_k=20)) == same
    assert revision(checkpoint, generation_defaults=GenerationDefaults(top_k=21)) != same
    assert revision(checkpoint, generation_config="openai") != same
    assert revision(checkpoint, parse_special_tokens_in_messages=True) != same
    assert revision(checkpoint, chat_format="hermes") != same


def test_the_log_says_which_hold(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        revision(checkpoint)
    (line,) = (one for one in caplog.messages if "unless a request says otherwise" in one)
    assert "temperature 0.6, top_p 0.95, top_k 20, min_p 0, repetition_penalty 1" in line


def test_offline_they_hold_where_no_parameters_are_given(checkpoint: Path) -> None:
    write(checkpoint, {"temperature": 0.0})
    llm = LLM(str(checkpoint), num_kv_blocks=16, max_model_len=32)
    greedy = SamplingParams(temperature=0.0)
    (default,) = llm.generate(["Hello"], show_progress=False)
    assert default == llm.generate(["Hello"], greedy, show_progress=False)[0]
    plain = SamplingParams(seed=1, ignore_eos=True)
    (drawn,) = llm.generate(["Hello"], plain, show_progress=False)
    assert drawn.token_ids != default.token_ids


async def test_a_backend_tells_them_to_whoever_serves_it(checkpoint: Path) -> None:
    backend = MlxBackend()
    try:
        info = await backend.start(EngineConfig(model=str(checkpoint), num_kv_blocks=16))
        assert info.default_sampling == DRAWN
    finally:
        await backend.stop()
