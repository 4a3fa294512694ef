"""Vectors and scores are those of mlx-lm's own hidden states and logits, however work is cut up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.engine.requests.pooled import id_of_input
from backend_metal.models.families.table import family_of
from backend_metal.models.load.find import find_config
from backend_metal.models.load.pooling_config import PoolingConfig, ScoreTokens, read_pooling_config
from deployments.backend import (
    ContextLengthError,
    GenerationRequest,
    InvalidRequestError,
    Pooled,
    PoolingInput,
    PoolingRequest,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.pooling_files import write_pooling_files, write_score_files

LENGTHS = (1, 2, 7, 8, 9, 16, 47, 160, 300)
POOLINGS = ("last", "mean", "cls")
WITH_HEADS_OF_ALL_KINDS = ["qwen3", "gemma3", "gemma2-dense", "exaone", "gpt_oss", "qwen3_moe"]
"""Another path to the backbone, a window, sinks, experts."""


@dataclass(frozen=True)
class Cut:
    name: str
    block_size: int
    budget: int
    num_kv_blocks: int
    max_num_seqs: int = 6
    prefix_caching: bool = True


CUTS = (
    Cut("whole", block_size=16, budget=1024, num_kv_blocks=120),
    Cut("chunks", block_size=8, budget=13, num_kv_blocks=240),
    Cut("queue", block_size=32, budget=64, num_kv_blocks=12, max_num_seqs=2, prefix_caching=False),
)


def load(path: Path, cut: Cut = CUTS[0], **settings: Any) -> LLM:
    return LLM(
        str(path),
        max_num_seqs=cut.max_num_seqs,
        max_num_batched_tokens=cut.budget,
        num_kv_blocks=cut.num_kv_blocks,
        block_size=cut.block_size,
        prefix_caching=cut.prefix_caching,
        device="cpu",
        **settings,
    )


def inputs() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, length).tolist() for length in LENGTHS]


def states(model: nn.Module, config: dict[str, Any], token_ids: list[int]) -> np.ndarray:
    """mlx-lm's, ``[num_tokens, size]``."""
    backbone = reduce(getattr, family_of(config).backbone.split("."), model)
    return np.array(backbone(mx.array([token_ids]))[0].astype(mx.float32))


def expected(rows: np.ndarray, pooling: str, *, normalizes: bool = True) -> np.ndarray:
    pools: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "last": lambda rows: rows[-1],
        "mean": lambda rows: rows.astype(np.float64).mean(axis=0),
        "cls": lambda rows: rows[0],
    }
    vector = pools[pooling](rows)
    return vector / np.linalg.norm(vector) if normalizes else vector


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_pooled_as_the_checkpoint_says(tmp_path: Path, pooling: str, cut: Cut) -> None:
    tiny_models.save("qwen3", tmp_path)
    normalizes = pooling != "cls"
    write_pooling_files(tmp_path, pooling, normalizes=normalizes)
    llm = load(tmp_path, cut)
    model, config = tiny_models.build("qwen3")
    wanted = [
        expected(states(model, config, one), pooling, normalizes=normalizes) for one in inputs()
    ]
    for _ in range(2):  # The second time with whatever the cache has.
        vectors = llm.embed(inputs())
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, wanted, rtol=2e-4, atol=2e-5)
        llm.engine.check_integrity()
    hits = llm.stats().prefix_cache_hit_tokens
    assert (hits > 0) == (pooling == "last" and cut.prefix_caching)


@pytest.mark.parametrize("family", WITH_HEADS_OF_ALL_KINDS)
def test_any_family_that_generates_makes_vectors_of_its_last_tokens(
    tmp_path: Path, family: str
) -> None:
    tiny_models.save(family, tmp_path)
    model, config = tiny_models.build(family)
    wanted = [expected(states(model, config, one), "last") for one in inputs()[:7]]
    vectors = load(tmp_path, CUTS[1]).embed(inputs()[:7])
    np.testing.assert_allclose(vectors, wanted, rtol=1e-3, atol=1e-4)


def test_texts_have_the_tokens_that_the_tokenizer_gives_them(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    ends_with(tmp_path, "<|eos|>")
    llm, (model, config) = load(tmp_path), tiny_models.build("qwen3")
    rows = states(model, config, [*b"a text", 257])
    np.testing.assert_allclose(
        llm.embed(["a text"])[0], expected(rows, "last"), rtol=2e-4, atol=2e-5
    )


def ends_with(checkpoint: Path, token: str) -> None:
    """As Qwen3-Embedding's, its tokenizer puts a token behind each text."""
    path = checkpoint / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": token, "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
        ],
        "special_tokens": {token: {"id": token, "ids": [257], "tokens": [token]}},
    }
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("prompt", "most", "kept"),
    [
        ("abcdef", 1, [257]),
        ("abcdef", 3, [*b"ab", 257]),
        ("abcdef", 6, [*b"abcde", 257]),
        ("abcdef", 7, [*b"abcdef", 257]),
        ("abcdef", -1, [*b"abcdef", 257]),
        ("g" * 4096, -1, [*b"g" * 63, 257]),
        ((1, 2, 3, 4), 3, [1, 2, 3]),
        ((1, 2, 3, 4), 9, [1, 2, 3, 4]),
        ((5,) * 100, -1, [5] * 64),
    ],
)
def test_a_text_that_is_cut_keeps_the_token_at_its_end(
    tmp_path: Path, prompt: Any, most: int, kept: list[int]
) -> None:
    tiny_models.save("qwen3", tmp_path)
    ends_with(tmp_path, "<|eos|>")
    encode = load(tmp_path, max_model_len=64).engine.prompts.encode_beginning
    assert encode(PoolingInput(prompt, "input", truncate_prompt_tokens=most)) == kept


def test_an_input_may_fill_the_context_but_not_more(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    llm = load(tmp_path, max_model_len=32)
    model, config = tiny_models.build("qwen3")
    full = inputs()[6][:32]
    np.testing.assert_allclose(
        llm.embed([full])[0], expected(states(model, config, full), "last"), rtol=2e-4, atol=2e-5
    )
    with pytest.raises(ContextLengthError, match=r"32 tokens.*33 tokens") as refused:
        llm.embed([full, [*full, 1]])
    assert refused.value.param == "inputs[1]"
    llm.engine.check_integrity()
    everything = load(tmp_path, Cut("small", 8, 64, num_kv_blocks=4))
    assert len(everything.embed([full])) == 1


def test_vectors_and_answers_share_steps_and_do_not_change_each_other(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    write_pooling_files(tmp_path, "mean")
    llm = load(tmp_path, Cut("mixed", block_size=8, budget=24, num_kv_blocks=80))
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = inputs()[3:7]
    alone = [one.token_ids for one in llm.generate(prompts, greedy, show_progress=False)]
    vectors = llm.embed(inputs())
    llm.reset_prefix_cache()

    engine = llm.engine
    request = PoolingRequest("vectors", tuple(PoolingInput(tuple(one), "x") for one in inputs()))
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    made: dict[int, np.ndarray] = {}
    mixed = 0
    for index, prompt in enumerate(prompts):
        engine.add_request(GenerationRequest(str(index), tuple(prompt), greedy), prompt)
    for index, one in enumerate(inputs()):
        engine.add_input(request, index, one)
    while engine.has_work:
        before = set(made)
        drawn = False
        for output in engine.step():
            if isinstance(output.item, Pooled):
                made[output.item.index] = output.item.values
                assert output.request_id == id_of_input("vectors", output.item.index)
            elif token_ids := getattr(output.item, "token_ids", ()):
                tokens[output.request_id] += token_ids
                drawn = True
        mixed += drawn and set(made) != before
        engine.check_integrity()
    assert mixed, "no step had both"
    assert [tokens[str(index)] for index in range(len(prompts))] == alone
    np.testing.assert_allclose([made[i] for i in range(len(made))], vectors, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("false_token_id", [None, 111])
def test_scores_are_logits_behind_the_prompt(tmp_path: Path, false_token_id: int | None) -> None:
    tiny_models.save("qwen3", tmp_path)
    write_score_files(tmp_path, 121, false_token_id)
    llm = load(tmp_path, CUTS[1])
    model, _ = tiny_models.build("qwen3")
    engine = llm.engine
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    alone = llm.generate([inputs()[2]], greedy, show_progress=False)[0].token_ids
    request = PoolingRequest(
        "scores", tuple(PoolingInput(tuple(one), "x") for one in inputs()), task="score"
    )
    made, tokens = {}, []
    for index, one in enumerate(inputs()):
        engine.add_input(request, index, one)
    engine.add_request(GenerationRequest("a", tuple(inputs()[2]), greedy), inputs()[2])
    while engine.has_work:
        for output in engine.step():
            if isinstance(output.item, Pooled):
                made[output.item.index] = output.item.values
            else:
                tokens += getattr(output.item, "token_ids", ())
    assert tokens == alone
    for index, one in enumerate(inputs()):
        logits = np.array(model(mx.array([one]))[0, -1])
        wanted = logits[121] - (0 if false_token_id is None else logits[false_token_id])
        np.testing.assert_allclose(made[index], [wanted], rtol=2e-3, atol=2e-3)


def test_a_model_without_such_tokens_does_not_score(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    request = PoolingRequest("scores", (PoolingInput((1, 2), "documents[0]"),), task="score")
    with pytest.raises(InvalidRequestError, match="does not score"):
        load(tmp_path).engine.add_input(request, 0, [1, 2])


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_files_of_sentence_transformers_are_read(
    tmp_path: Path, pooling: Any, is_new: bool
) -> None:
    prompts = {"query": "Query: ", "document": ""}
    write_pooling_files(
        tmp_path,
        pooling,
        normalizes=is_new,
        prompts=prompts,
        default_prompt_name="query",
        is_new=is_new,
    )
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 77}')
    assert read_pooling_config(tmp_path) == PoolingConfig(
        pooling,
        is_new,
        {"query": "Query: "},
        "Query: ",
        max_tokens=77,
        is_for_vectors=True,
    )


def test_without_such_files_it_is_the_last_token(tmp_path: Path) -> None:
    assert read_pooling_config(tmp_path) == PoolingConfig("last", normalizes=True)


def test_the_tokens_of_a_score_are_read(tmp_path: Path) -> None:
    write_score_files(tmp_path, 9693, 2152)
    assert read_pooling_config(tmp_path) == PoolingConfig(score=ScoreTokens(9693, 2152))


@pytest.mark.parametrize(
    ("pooling", "settings", "named"),
    [
        ("max_tokens", {}, "lasttoken, mean and cls, not pooling_mode_max_tokens"),
        ("weightedmean", {"is_new": True}, "not weightedmean"),
        ("mean", {"pooling_mode_cls_token": True}, "pooling_mode_mean_tokens, pooling_mode_cls"),
        ("last", {"extra_modules": ("Dense",)}, "modules must be .* not Dense"),
        ("last", {"include_prompt": False, "prompts": {"query": "Q: "}}, "include_prompt"),
    ],
)
def test_what_is_pooled_in_another_way_is_refused_at_load(
    tmp_path: Path, pooling: str, settings: dict[str, Any], named: str
) -> None:
    tiny_models.save("qwen3", tmp_path)
    write_pooling_files(tmp_path, pooling, **settings)
    with pytest.raises(ValueError, match=named):
        find_config(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"model_type": "bert"}, "model_type 'bert'.*only causal"),
        ({"model_type": "qwen3", "is_causal": False}, "is_causal: false"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional"),
        (
            {"model_type": "gemma3", "text_config": {"use_bidirectional_attention": True}},
            "use_bidirectional",
        ),
    ],
)
def test_attention_in_both_directions_is_refused_at_load(
    tmp_path: Path, content: dict[str, Any], named: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=named):
        find_config(str(tmp_path))


def save_bare(family: str, directory: Path) -> None:
    """As embedding models come: names begin below ``model``, and there is no head."""
    tiny_models.save(family, directory)
    path = directory / "model.safetensors"
    weights = {
        name.removeprefix("model."): weight
        for name, weight in mx.load(str(path)).items()
        if not name.startswith("lm_head")
    }
    mx.save_safetensors(str(path), weights, {"format": "pt"})


def test_a_checkpoint_of_the_backbone_alone_makes_the_same_vectors(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=2)
    for family, generates in (("qwen3", True), ("llama", False)):
        whole, bare = tmp_path / family, tmp_path / f"{family}-bare"
        tiny_models.save(family, whole)
        save_bare(family, bare)
        llm = load(bare)
        np.testing.assert_array_equal(llm.embed(inputs()[:5]), load(whole).embed(inputs()[:5]))
        if generates:
            assert llm.generate(["a"], greedy, show_progress=False)[0].token_ids
            continue
        with pytest.raises(InvalidRequestError, match="makes vectors alone"):
            llm.generate(["a"], greedy, show_progress=False)
