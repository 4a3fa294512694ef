"""Published configs load, with their context, and give what mlx-lm gives for the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from backend_metal import LLM, SamplingParams
from backend_metal.models.families import hunyuan
from backend_metal.models.load import checkpoint_tokenizer
from backend_metal.models.load.account.config import normalized
from backend_metal.models.load.account.sizes import check_sizes
from tests.backend_metal.test_account_rotary import as_mlx_lm, built
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import dense_logits, load_cpu, logits_of
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.backend_metal.published_configs import PUBLISHED

PROMPT = [token * 13 % tiny_models.VOCAB_SIZE for token in range(24)]
GENERATED = 8


def save(family: str, config: dict[str, Any], directory: Path) -> None:
    tiny_models.save(family, directory)
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_generate_the_tokens_of_mlx_lm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tokenizer is the same for all.
    monkeypatch.setattr(checkpoint_tokenizer, "PROBES", ())
    published = PUBLISHED[name]
    network, context = built(published.config)
    assert context == published.context
    model_type = published.config["model_type"]
    tiny_models.randomize(network, model_type, name)
    tiny_models.write(network, published.config, tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), max_num_seqs=1, num_kv_blocks=16, device="cpu")
    sampling = SamplingParams(temperature=0, max_tokens=GENERATED, ignore_eos=True, logprobs=0)
    output = llm.generate([PROMPT], sampling, show_progress=False)[0]
    if not published.differs:
        network = as_mlx_lm(published.config)
        tiny_models.randomize(network, model_type, name)
    elif model_type == "hunyuan":
        hunyuan.adapt(network, published.config)
    # Each token follows from those before it.
    tokens = mx.array([[*PROMPT, *output.token_ids[:-1]]])
    logits = network(tokens, cache=make_prompt_cache(network))[0, len(PROMPT) - 1 :]
    assert output.token_ids == mx.argmax(logits, axis=-1).tolist()
    expected = mx.max(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)
    np.testing.assert_allclose([one.logprob for one in output.logprobs], expected, atol=2e-4)


def test_a_model_without_experts_has_none() -> None:
    config = tiny_models.config_of("granitemoehybrid") | {"num_local_experts": 0}
    check_sizes(Path(), config)
    network, _ = built(config)
    assert not any("experts" in name or "switch" in name for name, _ in network.named_modules())


def test_sizes_may_be_of_each_layer() -> None:
    check_sizes(Path(), {"intermediate_size": [16384] * 35})


def test_a_text_config_leaves_out_what_its_class_has() -> None:
    """LLaVA 1.5 7B is published so."""
    text = {"model_type": "llama", "rms_norm_eps": 1e-05, "vocab_size": 32064}
    config = {"model_type": "llava", "text_config": text}
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008}
    assert normalized(config)["text_config"].items() >= (text | sizes).items()


def test_what_is_left_out_is_what_transformers_has() -> None:
    assert normalized(PUBLISHED["MiniCPM 3 4B"].config)["tie_word_embeddings"]
    limit = normalized(PUBLISHED["Granite 4 8B dense"].config)["time_step_limit"]
    assert limit == [0.0, float("inf")]


def test_hunyuans_experts_are_weighed_as_the_config_asks() -> None:
    network, config = tiny_models.build("hunyuan")
    experts = network.layers[0].mlp
    rows = mx.array(np.random.default_rng(1).standard_normal((5, config["hidden_size"])))

    def routed() -> mx.array:
        return experts(rows) - experts.shared_mlp(rows)

    plain = routed()
    hunyuan.adapt(network, {"norm_topk_prob": True})
    weights = mx.topk(mx.softmax(experts.gate.wg(rows), axis=-1), config["moe_topk"], axis=-1)
    expected = plain / mx.sum(weights, axis=-1, keepdims=True)
    np.testing.assert_allclose(routed(), expected, atol=1e-5)


def test_no_length_at_all_names_the_setting(tmp_path: Path) -> None:
    config = tiny_models.config_of("afm7")
    del config["max_position_embeddings"]
    save("afm7", config, tmp_path)
    with pytest.raises(ValueError, match=r"does not say how long .*set engine\.max_model_len"):
        load_cpu(tmp_path)
    assert load_cpu(tmp_path, max_model_len=4096).max_model_len == 4096


def windowed(family: str, tmp_path: Path, **changed: Any) -> Any:
    save(family, tiny_models.config_of(family) | changed, tmp_path)
    return load_cpu(tmp_path)


@pytest.mark.parametrize("family", ["mistral", "mixtral", "phi3", "phimoe", "starcoder2"])
def test_a_window_that_mlx_lm_leaves_out(family: str, tmp_path: Path) -> None:
    """The last token sees as much of a longer prompt as of its last tokens alone."""
    loaded = windowed(family, tmp_path, sliding_window=3, num_hidden_layers=2)
    assert [layer.window for layer in loaded.model.layers] == [3, 3]
    assert loaded.max_model_len == 4096
    tail = dense_logits(tiny_models.build(family)[0])
    assert not np.allclose(logits_of(loaded)[-1], tail[-1])


@pytest.mark.parametrize(
    ("family", "changed", "context"),
    [
        # Layers from the second on have a window, and mlx-lm has one mask for all.
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, 16),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 16}, 4096),
        ("llama", {"sliding_window": 16}, 4096),
        # Qwen 72B has the key, and computes nothing by it.
        ("qwen", {"seq_length": 16, "use_dynamic_ntk": True, "use_logn_attn": True}, 16),
        ("qwen", {"seq_length": 16, "use_dynamic_ntk": False, "use_logn_attn": False}, 4096),
        ("llama4_text", {"attention_chunk_size": 128, "floor_scale": 64}, 64),
    ],
)
def test_windows_that_bound_the_context(
    family: str, changed: dict[str, Any], context: int, tmp_path: Path
) -> None:
    assert windowed(family, tmp_path, **changed).max_model_len == context


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("qwen3", {"num_key_value_heads": LookupError}, "it lacks num_key_value_heads"),
        ("granite", {"logits_scaling": LookupError}, "it lacks logits_scaling"),
        ("dbrx", {"attn_config": {"kv_n_heads": 1}}, "it lacks 'clip_qkv'"),
        ("deepseek_v3", {"topk_method": "greedy"}, "Unsupported topk method"),
        (
            "gemma3_text",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types gives a window to other layers than mlx-lm has one for",
        ),
    ],
)
def test_what_a_config_lacks_is_named(
    family: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = tiny_models.config_of(family) | changed
    config = {name: value for name, value in config.items() if value is not LookupError}
    save(family, config, tmp_path)
    with pytest.raises(ValueError, match=message) as refused:
        load_cpu(tmp_path)
    assert "config.json" in str(refused.value)


def test_a_null_of_key_value_heads_means_as_many_as_heads(tmp_path: Path) -> None:
    config = tiny_models.config_of("llama") | {"num_key_value_heads": None}
    save("llama", config, tmp_path)
    with pytest.raises(ValueError, match="k_proj"):
        # The file has fewer.
        load_cpu(tmp_path)


@pytest.mark.parametrize("family", ["afm7", "bailing_moe", "mimo_v2_flash", "recurrent_gemma"])
def test_scaled_models_that_transformers_does_not_know(family: str, tmp_path: Path) -> None:
    """Its classes take them for something else, and tokenizers need none of that."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    config = tiny_models.config_of(family) | {"rope_scaling": scaling}
    save(family, config, tmp_path)
    network, _ = built(config)
    network.load_weights(str(tmp_path / "model.safetensors"))
    expected = dense_logits(network)
    assert relative_rms(logits_of(load_cpu(tmp_path)), expected) <= 1e-5
    assert not np.allclose(expected, dense_logits(tiny_models.build(family)[0]))
