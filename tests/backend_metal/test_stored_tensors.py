"""The tensors of a checkpoint: which file each comes from, and that none is left out."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.models.load.checkpoint_quantization import storage_of
from backend_metal.models.load.stored_tensors import INDEX, StoredTensors
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import load_cpu, logits_of, save_quantized
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.fuzzing import fuzz

FILE = "model.safetensors"
Arrays = dict[str, mx.array]


def saved(folder: Path, family: str = "llama", **changed: Any) -> Arrays:
    tiny_models.save(family, folder)
    edit(folder, **changed)
    return read(folder)


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def read(folder: Path) -> Arrays:
    arrays = mx.load(str(folder / FILE))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    return arrays


def write(folder: Path, arrays: Arrays, name: str = FILE) -> None:
    mx.save_safetensors(str(folder / name), arrays)


def write_index(folder: Path, files: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


@fuzz(200)
@given(data=st.data())
def test_every_tensor_comes_from_the_file_that_the_index_names(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    names = [f"layers.{number}.weight" for number in range(6)]
    files = ["model.safetensors", "model-00001-of-00002.safetensors", "model-old.safetensors"]
    owners = {name: data.draw(st.sampled_from(files[:2])) for name in names}
    strays = data.draw(st.sets(st.tuples(st.sampled_from(names), st.sampled_from(files))))
    content: dict[str, Arrays] = {file: {} for file in files}
    for name, file in strays:
        content[file][name] = mx.array([-1.0])
    for number, name in enumerate(names):
        content[owners[name]][name] = mx.array([float(number)])
    for file, arrays in content.items():
        if arrays:
            write(folder, arrays, file)
    write_index(folder, owners)
    found = StoredTensors(folder).arrays()
    assert {name: found[name].item() for name in names} == dict(zip(names, range(6), strict=True))


def test_a_file_that_the_index_does_not_list_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = saved(tmp_path)
    expected = logits_of(load_cpu(tmp_path))
    write_index(tmp_path, dict.fromkeys(arrays, FILE))
    other = {name: array + 1 for name, array in arrays.items()}
    for stray in ("model-4bit.safetensors", "model-zzz.safetensors"):
        write(tmp_path, other, stray)
    with caplog.at_level(logging.WARNING):
        assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0
    assert "no weight comes from model-4bit.safetensors, model-zzz.safetensors" in caplog.text


def test_a_stale_index_is_served_if_every_tensor_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = saved(tmp_path)
    expected = logits_of(load_cpu(tmp_path))
    write_index(tmp_path, dict.fromkeys(arrays, "model-00001-of-00002.safetensors"))
    with caplog.at_level(logging.WARNING):
        assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0
    assert f"{INDEX} is stale" in caplog.text


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"metadata": {}}', "must have a weight_map"),
        ('{"metadata": {', "is no JSON"),
        ("[]", "must have a weight_map"),
        ("", "is no JSON"),
        ('{"weight_map": null}', "must have a weight_map"),
        ('{"weight_map": {"a": 1}}', "must have a weight_map"),
        ('{"weight_map": {"a": "model.safetensors"}}', "has no tensor a, which"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', r"lacks model-2\.safetensors, which"),
    ],
)
def test_an_index_that_can_not_be_followed_is_named(
    index: str, message: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ValueError, match=message) as refused:
        load_cpu(tmp_path)
    assert INDEX in str(refused.value)


def test_without_an_index_a_name_may_come_twice_with_the_same_tensor(tmp_path: Path) -> None:
    arrays = saved(tmp_path)
    name = "model.norm.weight"
    write(tmp_path, {name: arrays[name]}, "model-2.safetensors")
    load_cpu(tmp_path)
    write(tmp_path, {name: arrays[name] + 1}, "model-2.safetensors")
    with pytest.raises(
        ValueError, match=rf"model-2\.safetensors and {FILE} have different tensors .* {name}"
    ):
        load_cpu(tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2", "phi3"])
@pytest.mark.parametrize("says", [True, "false", None])
def test_a_head_that_differs_from_the_embeddings_is_used(
    family: str, says: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = saved(tmp_path, family, tie_word_embeddings=False)
    embeddings = arrays["model.embed_tokens.weight"]
    write(tmp_path, arrays | {"lm_head.weight": embeddings[::-1]})
    expected = logits_of(load_cpu(tmp_path))
    edit(tmp_path, tie_word_embeddings=says)
    with caplog.at_level(logging.WARNING):
        assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0
    assert ("an LM head that differs from the embeddings" in caplog.text) == bool(says)


def test_a_head_that_repeats_tied_embeddings_is_no_fault(tmp_path: Path) -> None:
    arrays = saved(tmp_path, "olmo2", tie_word_embeddings=True)
    arrays.pop("lm_head.weight", None)
    write(tmp_path, arrays)
    expected = logits_of(load_cpu(tmp_path))
    write(tmp_path, arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]})
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0


def fp8(array: mx.array, shape: tuple[int, ...], blocks: Any) -> tuple[mx.array, mx.array]:
    """The bytes, and scales of ``shape`` that are not alike."""
    scale = mx.array(np.random.default_rng(3).uniform(0.001, 0.01, shape).astype(np.float32))
    return mx.to_fp8(array / blocks(scale, array.shape)), scale


def by_blocks(scale: mx.array, shape: tuple[int, ...]) -> mx.array:
    rows, columns = shape
    return mx.repeat(mx.repeat(scale, 128, 0), 128, 1)[:rows, :columns]


@pytest.mark.parametrize(
    ("suffix", "shape", "config"),
    [
        (
            "_scale_inv",
            lambda rows, columns: (-(-rows // 128), -(-columns // 128)),
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
        ),
        (
            "_scale",
            lambda rows, columns: (rows, 1),
            {"quant_method": "compressed-tensors", "format": "float-quantized"},
        ),
        ("_scale", lambda rows, columns: (), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_fp8_weights_are_multiplied_by_their_scales(
    family: str, suffix: str, shape: Callable[..., Any], config: dict[str, Any], tmp_path: Path
) -> None:
    stored = exact = saved(tmp_path, family)
    stored, exact = dict(stored), dict(exact)
    for name, array in read(tmp_path).items():
        if array.ndim != 2 or not name.endswith("_proj.weight"):
            continue
        expand = by_blocks if suffix == "_scale_inv" else lambda scale, _: scale
        packed, scale = fp8(array, shape(*array.shape), expand)
        stored[name], stored[name + suffix] = packed, scale
        exact[name] = mx.from_fp8(packed, mx.float32) * expand(scale, array.shape)
    write(tmp_path, exact)
    expected = logits_of(load_cpu(tmp_path))
    write_fp8(tmp_path, stored)
    edit(tmp_path, quantization_config=config)
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) <= 1e-6


def write_fp8(folder: Path, arrays: Arrays) -> None:
    """MLX has bytes where the format has a type of its own."""
    write(folder, arrays)
    path = folder / FILE
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, one in header.items():
        if name != "__metadata__" and one["dtype"] == "U8":
            one["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


NAME = "model.layers.0.self_attn.q_proj.weight"


def without_scale(folder: Path) -> None:
    arrays = read(folder)
    write_fp8(folder, arrays | {NAME: mx.to_fp8(arrays[NAME])})


def with_integers(folder: Path) -> None:
    arrays = read(folder)
    write(folder, arrays | {NAME: arrays[NAME].astype(mx.int8)})


def with_another_shape(folder: Path) -> None:
    arrays = read(folder)
    write(folder, arrays | {NAME: arrays[NAME][:-1]})


def added(*names: str) -> Callable[[Path], None]:
    return lambda folder: write(folder, read(folder) | {name: mx.zeros((2, 3)) for name in names})


def lacking(name: str) -> Callable[[Path], None]:
    return lambda folder: write(
        folder, {key: array for key, array in read(folder).items() if key != name}
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_scale, rf"{FILE}: {NAME} is F8_E4M3, and has no scale"),
        (with_integers, f"{NAME} holds mlx.core.int8 where floats belong"),
        (with_another_shape, f"{NAME} has the shape"),
        (added("model.extra", "b", "c", "d", "e"), "has no place for: b, c, d and 2 others"),
        (
            lacking("lm_head.weight"),
            r"lacks tensors that its config.json asks for: lm_head\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    spoil: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_cpu(tmp_path)


def test_what_no_language_model_reads_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path, num_nextn_predict_layers=1)
    expected = logits_of(load_cpu(tmp_path))
    added(
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.2.mlp.gate_proj.weight",
        "mtp.layers.0.norm.weight",
        "vision_tower.patch_embed.weight",
        "model.visual.blocks.0.norm.weight",
        "model.layers.1.self_attn.k_scale",
    )(tmp_path)
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0


def test_a_tensor_that_mlx_lm_drops_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that it reshapes."""
    llama = importlib.import_module("mlx_lm.models.llama")
    sanitize = llama.Model.sanitize

    def dropping(model: Any, weights: Arrays) -> Arrays:
        weights = {name: one for name, one in weights.items() if not name.endswith("sinks")}
        norm = "model.norm.weight"
        return sanitize(model, weights | {norm: weights[norm].reshape(-1)})

    monkeypatch.setattr(llama.Model, "sanitize", dropping)
    saved(tmp_path)
    load_cpu(tmp_path)
    added("model.layers.0.self_attn.sinks", "model.layers.1.self_attn.sinks")(tmp_path)
    with pytest.raises(
        ValueError, match=r"llama leaves out, .*: model\.layers\.0\.self_attn\.sinks"
    ):
        load_cpu(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "compressed-tensors", "format": "int-quantized"},
            "quantization_config.format must be one of .*, not 'int-quantized'; serve",
        ),
        ({"quant_method": "compressed-tensors"}, "quantization_config.format .*, not None"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo .*, not 'W4A8'"),
        ({"quant_method": "modelopt"}, "quantization_config.quant_algo .*, not None"),
        ([4], "quantization_config must be an object"),
    ],
)
def test_formats_that_can_not_be_served_are_named_before_a_download(
    config: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        storage_of(tmp_path, {"model_type": "llama", "quantization_config": config})


def test_bytes_of_another_tool_are_refused_by_its_name(tmp_path: Path) -> None:
    saved(tmp_path, quantization_config={"quant_method": "hqq"})
    load_cpu(tmp_path)
    with_integers(tmp_path)
    with pytest.raises(ValueError, match="quant_method 'hqq' is not supported"):
        load_cpu(tmp_path)


def test_mlx_s_own_settings_may_have_transformers_name(tmp_path: Path) -> None:
    save_quantized("llama", tmp_path, bits=4, group_size=32)
    expected = logits_of(load_cpu(tmp_path))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization"]
    path.write_text(json.dumps(config))
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) == 0
