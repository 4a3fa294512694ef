"""Checkpoints on disk: every form that loads, and the errors for those that don't."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import huggingface_hub.constants
import mlx.core as mx
import numpy as np
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import DryRunFileInfo
from mlx.utils import tree_flatten

from backend_metal import LLM
from backend_metal.engine.build import check_config
from backend_metal.models.load import hub, loader
from backend_metal.models.load.loader import load
from backend_metal.models.load.pooling_config import POOLING_FILES
from backend_metal.models.load.weights import check_stored_weights
from deployments.backend import EngineConfig
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import CPU, PLENTY, dense_logits, load_cpu, logits_of
from tests.support.backend_metal.packed_step import relative_rms

SETTINGS = ["config.json", "generation_config.json", *POOLING_FILES]
MAIN, OTHER = "1" * 40, "2" * 40


def edit_config(directory: Path, **changed: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    tiny_models.save("qwen3", tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3", "gpt_oss", "phi3-longrope"])
def test_a_saved_model_loads_as_it_was(family: str, tmp_path: Path) -> None:
    tiny_models.save(family, tmp_path)
    network, config = tiny_models.build(family)
    # mlx-lm has the long factors of longrope alone.
    loaded = load_cpu(tmp_path, max_model_len=4096)
    expected = dense_logits(network)
    if family == "gemma2":
        assert relative_rms(logits_of(loaded)[:16], expected[:16]) <= 1e-5
    else:
        assert relative_rms(logits_of(loaded), expected) <= 1e-5
    assert loaded.model_type == config["model_type"]
    assert loaded.weight_bytes == sum(w.nbytes for _, w in tree_flatten(network.parameters()))
    assert loaded.max_model_len == 4096
    assert loaded.eos_token_ids == {257}


def test_half_precision_becomes_float32_on_the_cpu(qwen3: Path) -> None:
    network, _ = tiny_models.build("qwen3")
    network.set_dtype(mx.bfloat16)
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(qwen3 / "model.safetensors"), weights, {"format": "mlx"})
    stored = sum(w.nbytes for w in weights.values())
    network.set_dtype(mx.float32)
    loaded = load_cpu(qwen3)
    assert loaded.model.dtype == mx.float32
    assert loaded.weight_bytes == 2 * stored
    assert relative_rms(logits_of(loaded), dense_logits(network)) <= 1e-5
    assert load_cpu(qwen3, dtype="bfloat16").model.dtype == mx.bfloat16
    assert load_cpu(qwen3, dtype="float16").weight_bytes == stored


def test_weights_that_do_not_fit_are_refused_with_the_figures(qwen3: Path) -> None:
    with pytest.raises(ValueError, match=r"the weights take 0\.6 MiB, more than the 0\.1 MiB"):
        load_cpu(qwen3, memory_limit_bytes=100_000)


@pytest.mark.parametrize(("dtype", "fits"), [("auto", False), ("bfloat16", True)])
def test_stored_weights_that_can_not_fit_are_refused_unread(
    qwen3: Path, dtype: str, fits: bool
) -> None:
    stored = sum(file.stat().st_size for file in qwen3.glob("model*.safetensors"))
    with nullcontext() if fits else pytest.raises(ValueError, match="raise memory_fraction"):
        check_stored_weights(qwen3, dtype=dtype, memory_limit_bytes=stored - 1)


def test_another_thread_can_run_what_was_loaded(tmp_path: Path) -> None:
    """Rotary frequencies are no parameters, and must not stay behind as this thread's graphs."""
    tiny_models.save("phi3-longrope", tmp_path)
    loaded = load_cpu(tmp_path)
    results: list[np.ndarray] = []
    thread = Thread(target=lambda: results.append(logits_of(loaded)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], logits_of(loaded))


def test_every_end_of_sequence_token_is_known(qwen3: Path) -> None:
    (qwen3 / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 258]}))
    assert load_cpu(qwen3).eos_token_ids == {257, 258}


def test_the_tokenizer_and_its_template(qwen3: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "pêche"}]
    tokenizer = load_cpu(qwen3).tokenizer
    assert tokenizer.encode("pêche") == list("pêche".encode())
    own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert own == "<|bos|>user: pêche<|end|>assistant: "
    # A template file of the checkpoint's gives way to the one that was asked for, too.
    (qwen3 / "chat_template.jinja").write_text("unused")
    template = tmp_path / "mine.jinja"
    template.write_text("[{{ messages[0]['content'] }}]")
    tokenizer = load_cpu(qwen3, chat_template=str(template)).tokenizer
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "[pêche]"


def test_loading_says_what_it_does(qwen3: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="backend_metal"):
        load_cpu(qwen3)
    assert f"loading {qwen3} (qwen3)" in caplog.text
    assert "MiB of weights in" in caplog.text


def remove(name: str) -> Any:
    return lambda directory: (directory / name).unlink()


def put_weight(directory: Path, value: float) -> None:
    path = directory / "model.safetensors"
    weights = mx.load(str(path))
    assert isinstance(weights, dict)
    weights["model.norm.weight"][0] = value
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)


def cut(num_bytes: int) -> Any:
    return lambda directory: os.truncate(directory / "model.safetensors", num_bytes)


def write_index(directory: Path) -> None:
    shards = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("config.json"), "holds no config.json, so it is no model"),
        (remove("model.safetensors"), r"holds no model\*.safetensors; `mlx_lm.convert` makes"),
        (remove("tokenizer.json"), "holds no tokenizer: none of tokenizer.json"),
        (cut(5000), r"model\.safetensors is not all there: it has 5,000 of \d+,\d+,?\d* bytes; a "),
        (cut(20), "is not all there: it has 20 of "),
        (cut(3), "begins with no header of safetensors"),
        (cut(0), "begins with no header of safetensors"),
        (
            lambda d: (d / "model.safetensors").write_text("<html>Too many requests</html>"),
            "begins with no header of safetensors: it is no such file, or a download of it broke",
        ),
        (write_index, "lacks model-00002-of-00002.safetensors"),
        (lambda d: edit_config(d, model_type="olmo"), "model_type 'olmo' is not supported"),
        (lambda d: edit_config(d, model_file="evil.py"), "trust_remote_code"),
        (
            lambda d: edit_config(d, max_position_embeddings=-4096),
            "max_position_embeddings must be an integer from 1 to 2147483647, not -4096",
        ),
        (lambda d: edit_config(d, max_position_embeddings="long"), "not 'long'"),
        (lambda d: edit_config(d, num_attention_heads=0), "num_attention_heads must be .*, not 0"),
        (lambda d: edit_config(d, num_key_value_heads=True), "num_key_value_heads must .*not True"),
        (
            lambda d: edit_config(d, num_hidden_layers=10**9),
            "num_hidden_layers must be an integer from 1 to 4096, not 1000000000",
        ),
        (lambda d: edit_config(d, text_config={"vocab_size": 0.5}), r"config\.vocab_size must be"),
        (
            lambda d: edit_config(d, hidden_size=None),
            "mlx-lm can build no model",
        ),
        (lambda d: put_weight(d, float("nan")), r"the weight \S+norm\.weight holds NaN"),
    ],
)
def test_broken_checkpoints_name_what_is_wrong(spoil: Any, message: str, qwen3: Path) -> None:
    spoil(qwen3)
    with pytest.raises(ValueError, match=message):
        load_cpu(qwen3)


def test_an_infinite_weight_is_a_number(qwen3: Path) -> None:
    """Some checkpoints mask with it."""
    put_weight(qwen3, -float("inf"))
    load_cpu(qwen3)


@pytest.mark.parametrize("model", ["/no/such/model", "./here", "~/nowhere-at-all", "a/b/c"])
def test_a_directory_that_is_not_there(model: str) -> None:
    with pytest.raises(ValueError, match="there is no such directory"):
        load(model, device=CPU, memory_limit_bytes=PLENTY)


def test_a_file_is_no_model(qwen3: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is a file"):
        load_cpu(qwen3 / "config.json")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none.jinja", "No such file"),
        ("/", "Is a directory"),
        ("/etc/hosts/none.jinja", "Not a directory"),
        ("{{ messages }}" * 500, "File name too long"),
        ("~nobody-of-that-name/none.jinja", "home directory"),
        ("a\0b", "null byte"),
    ],
)
def test_a_chat_template_that_is_not_there(qwen3: Path, path: str, problem: str) -> None:
    with pytest.raises(
        ValueError, match=f"engine.chat_template is no file that.*{problem}"
    ) as said:
        load_cpu(qwen3, chat_template=path)
    assert len(str(said.value)) < 300


def test_a_chat_template_that_is_no_text(qwen3: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"engine.chat_template is no file that.*utf-8"):
        load_cpu(qwen3, chat_template=str(tmp_path / "template"))


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="nor in the Hugging Face cache, and the hub can't be"):
        load("pomona-tests/none-such", device=CPU, memory_limit_bytes=PLENTY)


def test_an_impossible_hub_id() -> None:
    with pytest.raises(ValueError, match="neither a directory nor a hub id"):
        load("who knows?", device=CPU, memory_limit_bytes=PLENTY)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GatedRepoError, "is gated: accept its terms"),
        (RepositoryNotFoundError, "neither a local directory nor on the hub"),
        (RevisionNotFoundError, "engine.revision must be a branch, tag or full commit of some/mo"),
    ],
)
def test_what_the_hub_answers(error: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    response = httpx.Response(404, request=httpx.Request("GET", "https://hub"))

    def refuse(*_: Any, **__: Any) -> str:
        raise error("no", response=response)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match=message):
        load("some/model", device=CPU, memory_limit_bytes=PLENTY)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the hub's client keeps of a model: its `main`, and a branch of the same type."""
    folder = tmp_path / "hub" / "models--some--model"
    for commit, ref, family in ((MAIN, "main", "qwen3"), (OTHER, "stable", "llama")):
        tiny_models.save(family, folder / "snapshots" / commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


@pytest.mark.parametrize(
    ("revision", "model_type"),
    [(None, "qwen3"), ("main", "qwen3"), ("stable", "llama"), (MAIN, "qwen3"), (OTHER, "llama")],
)
def test_a_revision_of_a_hub_model(revision: str | None, model_type: str, hub_cache: Path) -> None:
    llm = LLM("some/model", revision=revision, num_kv_blocks=64, device="cpu")
    expected = load_cpu(hub_cache / "snapshots" / (MAIN if model_type == "qwen3" else OTHER))
    assert expected.model_type == model_type
    assert llm.engine.revision == expected.revision


def test_a_revision_that_is_not_in_the_cache(hub_cache: Path) -> None:
    with pytest.raises(ValueError, match=r"'some/model' at 'v2' is neither .* the hub can't be"):
        load("some/model", revision="v2", device=CPU, memory_limit_bytes=PLENTY)


@pytest.mark.parametrize("model", ["demo", None])
def test_a_local_model_has_no_revisions(model: str | None, qwen3: Path) -> None:
    with pytest.raises(ValueError, match=r"engine\.revision must be empty .*, not 'v2'"):
        load(model or str(qwen3), revision="v2", device=CPU, memory_limit_bytes=PLENTY)


def test_all_files_are_of_the_commit_that_was_checked(
    qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when somebody pushes meanwhile."""
    asked: list[str | None] = []

    def download(_: str, *, revision: str | None, **how: Any) -> Any:
        asked.append(revision)
        return [] if how.get("dry_run") else str(qwen3)

    monkeypatch.setattr(hub, "snapshot_download", download)
    load("some/model", revision="main", device=CPU, memory_limit_bytes=PLENTY)
    assert asked == ["main", qwen3.name, qwen3.name]


def test_a_hub_model_is_refused_before_its_weights_are_fetched(
    qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_config(qwen3, model_type="olmo")
    fetched: list[list[str]] = []

    def download(_: str, allow_patterns: list[str], **how: Any) -> Any:
        if how.get("dry_run"):
            return []
        fetched.append(allow_patterns)
        return str(qwen3)

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(ValueError, match="model_type 'olmo' is not supported"):
        load("some/model", device=CPU, memory_limit_bytes=PLENTY)
    assert fetched == [SETTINGS]
    edit_config(qwen3, model_type="qwen3")
    load("some/model", device=CPU, memory_limit_bytes=PLENTY)
    assert fetched[1] == SETTINGS
    assert "model*.safetensors" in fetched[2]


def test_a_context_that_the_model_does_not_have_is_refused_before_its_weights_are_fetched(
    qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[list[str]] = []

    def download(_: str, allow_patterns: list[str], **how: Any) -> Any:
        if how.get("dry_run"):
            return []
        fetched.append(allow_patterns)
        return str(qwen3)

    monkeypatch.setattr(hub, "snapshot_download", download)
    config = EngineConfig(model="some/model", max_model_len=4097)
    with pytest.raises(ValueError, match=r"^engine\.max_model_len must be at most 4096, .*4097$"):
        check_config(config)
    assert fetched == [SETTINGS]
    check_config(config.model_copy(update={"max_model_len": 4096}))


def test_a_context_that_only_the_network_tells_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save("qwen3", tmp_path)
    # mlx-lm has no layers of this type that see less than others.
    edit_config(tmp_path, sliding_window=1024, use_sliding_window=True, max_window_layers=1)
    monkeypatch.setattr(loader, "materialize", lambda *_, **__: pytest.fail("they are read"))
    with pytest.raises(ValueError, match=r"^engine\.max_model_len must be at most 1024, .*1025$"):
        load_cpu(tmp_path, max_model_len=1025)


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_disk_without_room_is_told_before_a_download(
    is_cached: bool, qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(qwen3).free

    def download(_: str, **how: Any) -> Any:
        if not how.get("dry_run"):
            return str(qwen3)
        assert "model*.safetensors" in how["allow_patterns"]
        return [
            DryRunFileInfo(MAIN, size, name, name, is_cached, not is_cached)
            for name, size in (("config.json", None), ("model.safetensors", 2 * free))
        ]

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(qwen3))
    config = EngineConfig(model="some/model")
    if is_cached:
        check_config(config)
        return
    with pytest.raises(ValueError, match=f"no room for some/model: .* {qwen3} has .*hf cache rm"):
        check_config(config)
