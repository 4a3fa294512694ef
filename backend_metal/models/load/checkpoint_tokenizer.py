"""A checkpoint's tokenizer, whose ids are those of its tokenizer.json, and its chat template."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

FILE = "tokenizer.json"
PROCESSOR_TEMPLATE = "chat_template.json"
BYTE_ORDER_MARK = "\ufeff"


def read_template(chat_template: str | None) -> str | None:
    """The text of ``engine.chat_template``. Raises ``ValueError`` when it can't be read."""
    if chat_template is None:
        return None
    try:
        return Path(chat_template).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, RuntimeError, ValueError) as error:
        # An `OSError` has the path once more, which may be a whole template by mistake.
        problem = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"engine.chat_template is no file that can be read: {chat_template[:80]!r}: {problem}"
        ) from error


def load_checkpoint_tokenizer(
    path: Path, config: Mapping[str, Any], *, trust_remote_code: bool, template: str | None
) -> TokenizerWrapper:
    """``template`` replaces the checkpoint's. Raises ``ValueError`` when no tokenizer loads."""
    # Without it, transformers asks at the terminal.
    extra: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if template is not None:
        # The empty type switches off templates that mlx-lm writes in Python for some models.
        extra |= {"chat_template": template, "chat_template_type": ""}
    eos_token_ids = config.get("eos_token_id")
    tokenizer = _load(path, extra, eos_token_ids)
    backend = getattr(tokenizer._tokenizer, "_tokenizer", None)
    if getattr(backend, "fix_mistral_regex", None) is False:
        logger.info("%s: %s has Mistral's known wrong split of words, corrected", path, FILE)
        tokenizer = _load(path, {**extra, "fix_mistral_regex": True}, eos_token_ids)
    elif (path / FILE).is_file():
        tokenizer._tokenizer = _as_in_file(path, extra, tokenizer._tokenizer)
    if template is None:
        inner = tokenizer._tokenizer
        inner.chat_template = _checkpoint_template(path, inner.chat_template)
    return tokenizer


def _load(path: Path, extra: dict[str, Any], eos_token_ids: Any) -> TokenizerWrapper:
    try:
        return load_tokenizer(path, extra, eos_token_ids=eos_token_ids)
    except Exception as error:  # noqa: BLE001 - transformers and tokenizers raise any kind.
        first = error
    # transformers checks config.json first, and knows no types but its own; tokenizers need none.
    alone = {**extra, "config": PreTrainedConfig()}
    try:
        return load_tokenizer(path, alone, eos_token_ids=eos_token_ids)
    except Exception as error:
        if not (path / FILE).is_file():
            is_trusted = extra["trust_remote_code"]
            hint = "" if is_trusted else "; engine.trust_remote_code runs its own"
            raise ValueError(f"{path}: no tokenizer can be loaded: {_line(first)}{hint}") from error
    logger.warning("%s: %s alone makes the tokenizer: %s", path, FILE, _line(first))
    try:
        inner = PreTrainedTokenizerFast.from_pretrained(path, **alone)
    except Exception as error:
        raise ValueError(f"{path / FILE} can't be loaded: {_line(error)}") from error
    ids = [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids
    return TokenizerWrapper(inner, eos_token_ids=ids)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _as_in_file(
    path: Path, extra: Mapping[str, Any], loaded: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """``loaded`` if it reads the probes as the file does, else a tokenizer that does."""
    file = Tokenizer.from_file(str(path / FILE))
    if (probe := _first_difference(loaded, file)) is None:
        return loaded
    logger.warning(
        "%s: %s has other ids than %s, which serves; they differ in %r",
        path,
        type(loaded).__name__,
        FILE,
        probe,
    )
    plain: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
        path, **{**extra, "config": PreTrainedConfig()}
    )
    if _first_difference(plain, file) is not None:
        plain._tokenizer = file
    return plain


def _first_difference(tokenizer: PreTrainedTokenizerBase, file: Tokenizer) -> str | None:
    for probe in PROBES:
        ids = file.encode(probe, add_special_tokens=False).ids
        try:
            read = tokenizer.encode(probe, add_special_tokens=False)
        except Exception:  # noqa: BLE001 - such as for the lack of an unknown token.
            return probe
        if read != ids:
            return probe
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if text != file.decode(ids, skip_special_tokens=False):
            return probe
    return None


def _probes() -> Iterator[str]:
    words = (
        *(
            "the",
            "Hello",
            "HelloWorld",
            "camelCase",
            "SHOUT",
            "snake_case",
            "don't",
            "I'LL",
            "'tis",
        ),
        *("0", "7", "42", "123", "2023", "12345", "650841823", "3.14", "1e-5", "0x1F", "1,000,000"),
        *("é", "naïve", "e\u0301", "Straße", "Ωμέγα", "привет", "שלום", "مرحبا", "नमस्ते", "สวัสดี"),
        *(
            "你好世界",
            "こんにちは",
            "안녕하세요",
            "🎉",
            "👩‍👩‍👧",
            "\u00a0",
            "\u200b",
            "\u3000",
            "ﬁ",
            "Ａ１",
        ),
        *(
            "...",
            "!?",
            "->",
            "==",
            "&&",
            "{}",
            "[0]",
            "</a>",
            "<b>",
            "#!",
            "\\n",
            "$x",
            "a@b.c",
            "%d",
        ),
        *("\n", "\n\n", "\t", "\r\n", " ", "  ", "     ", " \n ", "▁", "Ġ", "Ċ", "\x00", "\x7f"),
    )
    for word in words:
        yield from (word, f" {word}", f"{word} ", f"a{word}b", f"{word}{word}", f"x {word}.\n")


PROBES = tuple(_probes())
"""Texts in which tokenizers of different rules differ: cases, digits, scripts, white space."""


def _checkpoint_template(path: Path, found: object) -> object:
    """As the tokenizer has it, without what is empty, or the one that lies beside it for a
    processor."""
    if isinstance(found, Mapping):
        return {name: text for name, one in found.items() if (text := _clean(one))} or None
    if isinstance(found, str) and (text := _clean(found)):
        return text
    beside = path / PROCESSOR_TEMPLATE
    if found is not None or not beside.is_file():
        return None
    try:
        content = json.loads(beside.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{beside} is no JSON: {error}") from error
    template = content.get("chat_template") if isinstance(content, dict) else None
    return (_clean(template) or None) if isinstance(template, str) else None


def _clean(template: str) -> str:
    template = template.removeprefix(BYTE_ORDER_MARK)
    return template if template.strip() else ""
