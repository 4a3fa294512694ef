"""Tokenizers as checkpoints have them: ids are those of tokenizer.json, whatever class is named."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from backend_metal.engine.text.prompt import PromptEncoder
from backend_metal.models.load.checkpoint_tokenizer import PROBES, load_checkpoint_tokenizer
from deployments.backend import ChatPrompt, GenerationRequest, InvalidRequestError, SamplingParams

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
CORPUS = [*PROBES, "in 2023 there were 650841823 people, 123 456 789 HelloWorld camelCase don't"]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPLITS: dict[str, tuple[Any, Any, Any]] = {
    "digits by threes": (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), BYTES]),
        decoders.ByteLevel(),
    ),
    "byte level": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    "single digits": (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
        decoders.ByteLevel(),
    ),
    "composed": (normalizers.NFC(), BYTES, decoders.ByteLevel()),
}
CLASSES = ("GPT2Tokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "Qwen2Tokenizer", "NoSuchClass")
TYPES = ("llama", "granite", "qwen2", "gemma2", "a_type_of_no_library")


def saved(
    folder: Path,
    split: str = "byte level",
    *,
    model_type: str = "llama",
    padded: int = 0,
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = SPLITS[split]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    if padded:
        raw = json.loads(tokenizer.to_str())
        vocab = raw["model"]["vocab"]
        vocab |= {f"pad{number}": number for number in range(len(vocab), padded)}
        tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | (config or {})))
    names = {"bos_token": "<s>", "eos_token": "</s>"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer


def loaded(folder: Path, template: str | None = None) -> Any:
    config = json.loads((folder / "config.json").read_text())
    return load_checkpoint_tokenizer(folder, config, trust_remote_code=False, template=template)


@pytest.mark.parametrize(
    ("split", "name", "model_type"),
    [
        (split, CLASSES[turn % 5], TYPES[(turn + shift) % 5])
        for shift in (0, 2)
        for turn, split in enumerate(itertools.islice(itertools.cycle(SPLITS), 20))
        if turn % 2 == shift // 2
    ],
)
def test_ids_and_texts_are_those_of_the_file(
    split: str, name: str, model_type: str, tmp_path: Path
) -> None:
    file = saved(tmp_path, split, model_type=model_type, tokenizer_class=name)
    tokenizer = loaded(tmp_path)
    for text in ("in 2023", "650841823 HelloWorld", " café e\u0301\n\n 你好🎉", "don't  stop"):
        ids = file.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == file.decode(ids)
    assert tokenizer.eos_token_ids == {1}
    assert tokenizer.bos_token == "<s>"


def test_the_log_has_what_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, "digits by threes", model_type="llama", tokenizer_class="GPT2Tokenizer")
    with caplog.at_level(logging.WARNING):
        loaded(tmp_path)
    assert "GPT2Tokenizer has other ids than tokenizer.json, which serves" in caplog.text


@pytest.mark.parametrize(
    ("model_type", "version", "is_fixed"),
    [("mistral", "4.50.0", True), ("mistral3", "5.0.0", False)],
)
def test_mistrals_wrong_split_is_corrected(
    model_type: str, version: str, is_fixed: bool, tmp_path: Path
) -> None:
    file = saved(
        tmp_path,
        "digits by threes",
        model_type=model_type,
        padded=131_072,
        config={"transformers_version": version},
        tokenizer_class="LlamaTokenizerFast",
    )
    right = AutoTokenizer.from_pretrained(tmp_path, fix_mistral_regex=True)
    text = "HelloWorld camelCase don't 650841823"
    ids = loaded(tmp_path).encode(text, add_special_tokens=False)
    plain = file.encode(text, add_special_tokens=False).ids
    assert ids == (right.encode(text, add_special_tokens=False) if is_fixed else plain)
    assert (ids != plain) == is_fixed


def test_code_of_a_checkpoint_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers asks at the terminal whether to run it, unless it is told."""
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked at the terminal"))
    code = {"auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    right = saved(tmp_path, model_type="a_type_of_no_library", config=code)
    ids = loaded(tmp_path).encode(CORPUS[-1], add_special_tokens=False)
    assert ids == right.encode(CORPUS[-1], add_special_tokens=False).ids


def test_what_can_not_be_loaded_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ValueError, match=r"tokenizer\.json can't be loaded: "):
        loaded(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"no tokenizer can be loaded: .*trust_remote_code"):
        loaded(tmp_path)


PLAIN = "{% for m in messages %}[plain {{ m.content }}]{% endfor %}"
TOOLS = (
    "<tools>{{ (tools or []) | length }}{% for m in messages %}[tools {{ m.content }}]{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BOTH = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TOOLS}]
NONE_SUCH = "this model has no chat template"


def rendered(folder: Path, *tools: dict[str, Any]) -> str:
    tokenizer = loaded(folder)
    prompts = PromptEncoder(tokenizer, vocab_size=600, max_model_len=100)
    prompt = ChatPrompt(messages=({"role": "user", "content": "Hi"},), tools=tools)
    try:
        ids = prompts.encode(GenerationRequest("r", prompt, SamplingParams(max_tokens=4)))
    except InvalidRequestError as error:
        return str(error)
    text: str = tokenizer.decode(ids)
    return text


@pytest.mark.parametrize(
    ("stored", "files", "plain", "with_tools"),
    [
        (BOTH, {}, "[plain Hi]", "<tools>1[tools Hi]"),
        (BOTH[::-1], {}, "[plain Hi]", "<tools>1[tools Hi]"),
        (BOTH[:1], {}, "[plain Hi]", "[plain Hi]"),
        (BOTH[1:], {}, "templates are tool_use, and none is the default", "<tools>1[tools Hi]"),
        (
            None,
            {"chat_template.jinja": PLAIN, "additional_chat_templates/tool_use.jinja": TOOLS},
            "[plain Hi]",
            "<tools>1[tools Hi]",
        ),
        (PLAIN, {"chat_template.jinja": TOOLS}, "<tools>0[tools Hi]", "<tools>1[tools Hi]"),
        (None, {"chat_template.jinja": "\ufeff" + PLAIN}, "[plain Hi]", "[plain Hi]"),
        (None, {"chat_template.json": json.dumps({"chat_template": PLAIN})}, "[plain Hi]", None),
        (None, {"chat_template.json": "[]"}, NONE_SUCH, None),
        ("", {}, NONE_SUCH, NONE_SUCH),
        (PLAIN, {"chat_template.jinja": ""}, NONE_SUCH, None),
        (None, {}, NONE_SUCH, None),
    ],
)
def test_templates_are_chosen_as_by_transformers(
    stored: object, files: dict[str, str], plain: str, with_tools: str | None, tmp_path: Path
) -> None:
    saved(tmp_path, chat_template=stored)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert plain in rendered(tmp_path)
    if with_tools is not None:
        assert with_tools in rendered(tmp_path, TOOL)


def test_a_template_of_the_settings_wins(tmp_path: Path) -> None:
    saved(tmp_path, chat_template=BOTH)
    assert loaded(tmp_path, "{{ 1 }}").chat_template == "{{ 1 }}"
