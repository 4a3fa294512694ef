"""Completions that end with a suffix, as the model's vocabulary says it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from deployments.backend import GenerationRequest, InvalidRequestError, SamplingParams
from deployments.protocol import CompletionRequest, to_generation_requests
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.infill import FORMATS
from tests.support.backend_metal import tokenizers_for_tests as tokenizers
from tests.support.deployments.answers import error_of
from tests.support.deployments.replica_server import build, completion, in_memory

pytestmark = pytest.mark.serve

EXPECTED = {
    "qwen": "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
    "starcoder": "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>",
    "deepseek": "<｜fim▁begin｜>def f(<｜fim▁hole｜>): pass<｜fim▁end｜>",
    "codellama": "▁<PRE> def f(▁<SUF>): pass▁<MID>",
    "codestral": "[SUFFIX]): pass[PREFIX]def f(",
}
"""As the models' own documentation has it."""


def dialect_of(*tokens: str) -> Dialect:
    return Dialect.of("", {token: 100 + i for i, token in enumerate(tokens)}, {*tokens})


def asked(dialect: Dialect, **fields: Any) -> list[GenerationRequest]:
    body = {"model": "m", "prompt": "def f(", "suffix": "): pass", **fields}
    return to_generation_requests(CompletionRequest.parse(body), "r", SamplingParams(), dialect)


@pytest.mark.parametrize("name", FORMATS)
def test_each_family_is_asked_in_its_own_way(name: str) -> None:
    form = FORMATS[name]
    dialect = dialect_of("<s>", *form.markers, *form.ends)
    [request] = asked(dialect)
    assert request.prompt == EXPECTED[name]
    ids = {"<s>": 100} | {token: 101 + i for i, token in enumerate((*form.markers, *form.ends))}
    assert {*request.sampling.stop_token_ids} == {ids[end] for end in form.ends}


@pytest.mark.parametrize("name", FORMATS)
def test_its_markers_are_tokens_of_their_own(name: str) -> None:
    """And nothing else in the prompt is."""
    form = FORMATS[name]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.byte_level().backend_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": list(form.markers)})
    [request] = asked(dialect_of(*form.markers))
    ids = tokenizer.encode(request.prompt, add_special_tokens=False)
    markers = tokenizer.convert_tokens_to_ids(list(form.markers))
    assert [one for one in ids if one in markers] == markers
    texts = [form.gap + "def f(", "): pass"][:: -1 if form.suffix_first else 1]
    spans: list[list[int]] = []
    for one in ids:
        if one in markers:
            spans.append([])
        else:
            spans[-1].append(one)
    assert [tokenizer.decode(span) for span in spans if span] == texts


def test_each_of_many_prompts_gets_the_suffix() -> None:
    requests = asked(dialect_of(*FORMATS["deepseek"].markers), prompt=["a", "b"], n=2)
    begin, hole, end = FORMATS["deepseek"].markers
    assert [one.prompt for one in requests] == [
        f"{begin}a{hole}): pass{end}",
        f"{begin}b{hole}): pass{end}",
    ]


def test_whoever_ignores_ends_ignores_these() -> None:
    form = FORMATS["qwen"]
    dialect = dialect_of(*form.markers, *form.ends)
    [request] = asked(dialect, ignore_eos=True, stop_token_ids=[5])
    assert request.sampling.stop_token_ids == (5,)
    [request] = asked(dialect, stop_token_ids=[5])
    assert {5} < {*request.sampling.stop_token_ids}


@pytest.mark.parametrize("tokens", [(), ("<|fim_prefix|>", "<|fim_suffix|>"), ("[PREFIX]",)])
def test_other_models_are_not_asked(tokens: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked(dialect_of(*tokens))
    assert caught.value.param == "suffix"
    [request] = asked(dialect_of(*tokens), suffix="")
    assert request.prompt == "def f("


async def test_the_server_names_the_field() -> None:
    app, backend = await build()
    async with in_memory(app) as client:
        response = await client.post("/v1/completions", json=completion("a b", suffix="c"))
    assert response.status_code == 400
    assert error_of(response)["param"] == "suffix"
    assert backend.requests == []


def test_a_suffix_counts_where_prompts_are_measured() -> None:
    body = {"model": "m", "prompt": "a"}
    short = CompletionRequest.parse(body)
    long = CompletionRequest.parse({**body, "suffix": "é" * 100})
    assert long.prompt_sizes()[0].most == short.prompt_sizes()[0].most + 200
    assert long.prompt_size_estimate() == short.prompt_size_estimate() + 25
    assert "é" * 100 in [*long.prompt_parts()]
