"""The byte-level BPE tokenizer and its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ops.demo_model.corpus import Document, Message

VOCAB_SIZE = 2048
MAX_LENGTH = 8192
END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
NUM_SPECIAL_TOKENS = len(SPECIAL_TOKENS)
"""The special tokens have the first ids."""

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nCall one with <tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n\
</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception("messages[" ~ loop.index0 ~ "].role must be 'system', 'user', \
'assistant' or 'tool', not '" ~ message.role ~ "'") }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>\
<|im_end|>\\n' }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '' if loop.first and not message.content else '\\n' }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + \
(call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def segments(document: Document) -> list[tuple[str, bool]]:
    """The text of ``document`` in pieces, and whether the model learns to write each of them."""
    if not document.messages:
        prompt = [(document.prompt, False)] if document.prompt else []
        return [*prompt, (document.text + END_OF_TEXT, True)]
    pieces: list[tuple[str, bool]] = []
    for message in document.messages:
        start = f"{IM_START}{message['role']}\n"
        if message["role"] == "assistant":
            pieces += [(start, False), (message["content"] + IM_END, True), ("\n", False)]
        else:
            pieces.append((f"{start}{message['content']}{IM_END}\n", False))
    return pieces


def train_tokenizer(documents: Iterable[Document], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learns the merges from ``documents``; the same documents give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(documents), trainer)
    return tokenizer


def _texts(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        messages: tuple[Message, ...] = document.messages
        yield document.prompt + document.text
        yield from (f"{message['role']}\n{message['content']}" for message in messages)


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json`` as Transformers reads them."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
