"""What the engine uses of a Hugging Face tokenizer, wrapped by mlx-lm or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tokenizers import AddedToken


class Tokenizer(Protocol):
    @property
    def bos_token(self) -> str | None: ...

    @property
    def special_tokens_map(self) -> Mapping[str, str]: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...

    @property
    def chat_template(self) -> object: ...

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(
        self,
        token_ids: list[int],
        skip_special_tokens: bool = ...,
        *,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def convert_ids_to_tokens(self, ids: int) -> str | None: ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, **kwargs: Any
    ) -> str: ...
