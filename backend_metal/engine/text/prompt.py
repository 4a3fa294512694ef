"""From a request's prompt to token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from jinja2 import TemplateError

from backend_metal.engine.text.chat_template import ChatTemplate
from backend_metal.engine.text.context_length import Prompted, check_num_tokens
from backend_metal.engine.text.control_tokens import ControlTokens, random_digits
from backend_metal.engine.text.history import common_length, other_conversation
from backend_metal.engine.text.system_messages import folded
from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import BackendError, ChatPrompt, InvalidRequestError

_RESERVED_TEMPLATE_ARGUMENTS = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

# Whatever Python or Jinja raises while a template works on a client's messages is about them.
_TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
MAX_RENDERED_PIECES = 2_000_000
"""Largest number of pieces, empty ones included, that a template may write. It takes seconds to
reach; long conversations need thousands."""
MOST_CHARS_PER_TOKEN = 64
"""Of the context: a prompt that is truncated is tokenized as a whole, and may be so long."""
TOKENS_AT_A_CUT = 2
"""That may be others when what follows is."""
SLICE_CHARS_PER_TOKEN = 8
"""Of the context: twice what text usually has, so that most prompts that fit are one slice."""


class PromptEncoder:
    """Of one model. Raises ``ValueError`` for a chat template that is none.

    ``parse_special_tokens``: text in messages that spells a control token is that token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        parse_special_tokens: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self.longest_token = max(map(len, tokenizer.get_vocab()))
        """Its characters: a text has a token for so many, at least."""
        self._final_end = random_digits()
        """Nobody can guess it, and no filter of a template changes it."""
        self._template = template = ChatTemplate(tokenizer)
        hides = template.exists and not parse_special_tokens
        self._control_tokens = ControlTokens(
            tokenizer,
            template.control_tokens if hides else frozenset(),
            template.read_in_answers if hides else frozenset(),
        )

    @cached_property
    def _behind_texts(self) -> list[int]:
        """The special tokens that the tokenizer puts there."""
        own = self._tokenizer.encode("a", add_special_tokens=False)
        whole = self._tokenizer.encode("a", add_special_tokens=True)
        starts = (at for at in range(len(whole)) if whole[at : at + len(own)] == own)
        return whole[next(starts, len(whole)) + len(own) :]

    @property
    def template(self) -> ChatTemplate:
        return self._template

    def check_size(self, request: Prompted) -> None:
        """Raises ``ContextLengthError`` for a prompt that is too long to fit however well it is
        tokenized. Costs nothing."""
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            contents = (message.get("content") for message in prompt.messages)
            self._check_length(request, sum(len(c) for c in contents if isinstance(c, str)))
        elif isinstance(prompt, str):
            self._check_length(request, len(prompt))
        elif request.truncate_prompt_tokens is None:
            check_num_tokens(request, len(prompt), self._max_model_len)

    def encode(self, request: Prompted) -> list[int]:
        """Token ids in ``[0, vocab_size)`` of the prompt, at least one; of one that is truncated
        the last.

        A string gets the special tokens that the tokenizer adds by itself; the rendering of a chat
        template gets none, since the template writes its own. Raises ``InvalidRequestError``.
        """
        token_ids, kept = self._encode_whole(request), self._num_kept(request)
        return token_ids if kept is None else token_ids[-kept:]

    def encode_beginning(self, request: Prompted) -> list[int]:
        """As ``encode``, but of a text that is truncated the first tokens, and behind them the
        special ones that the tokenizer puts behind a text."""
        token_ids, kept = self._encode_whole(request), self._num_kept(request)
        if kept is None or len(token_ids) <= kept:
            return token_ids
        behind = self._behind_texts if isinstance(request.prompt, str) else []
        return token_ids[: max(0, kept - len(behind))] + behind[:kept]

    def encode_with_history(self, request: Prompted) -> tuple[list[int], int]:
        """As ``encode``, and how many of a chat's tokens stand before the last message of its user
        and stay as they are when the conversation goes on; 0 where that can't be told."""
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt) or request.truncate_prompt_tokens is not None:
            return self.encode(request), 0
        text = self._chat_text(request, prompt)
        token_ids = self._checked(self._tokenize_chat(request, text), request.param)
        return token_ids, self._num_history_tokens(request, prompt, text, len(token_ids))

    def _encode_whole(self, request: Prompted) -> list[int]:
        prompt = request.prompt
        token_ids = list(prompt) if isinstance(prompt, tuple) else self.tokenize(request)
        return self._checked(token_ids, request.param)

    def _checked(self, token_ids: list[int], param: str) -> list[int]:
        if not token_ids:
            raise InvalidRequestError(f"{param} must give at least one token", param=param)
        self.check_ids(token_ids, param)
        return token_ids

    def _num_kept(self, request: Prompted) -> int | None:
        """Tokens of the prompt that are read; None: all."""
        kept = request.truncate_prompt_tokens
        if kept != -1:
            return kept
        most = request.max_new_tokens
        return max(1, self._max_model_len - (1 if most is None else most))

    def tokenize(self, request: Prompted, *, add_special_tokens: bool = True) -> list[int]:
        """Of a string or a chat; without ``add_special_tokens`` a string gets none. Raises
        ``InvalidRequestError``."""
        prompt = request.prompt
        assert not isinstance(prompt, tuple)
        if isinstance(prompt, ChatPrompt):
            return self._tokenize_chat(request, self._chat_text(request, prompt))
        encode = self._encoding(prompt, add_special_tokens=add_special_tokens)
        return self._tokenize(request, encode, prompt)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises ``InvalidRequestError`` for one that is none of the model's."""
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"{param} has token id {token_id}; the model's are 0 to {self._vocab_size - 1}",
                    param=param,
                )

    def _encoding(
        self, text: str, *, add_special_tokens: bool = True
    ) -> Callable[[str], list[int]]:
        # Whoever writes a whole prompt writes its control tokens, too.
        bos = self._tokenizer.bos_token
        begins_itself = bool(bos) and text.startswith(str(bos))
        adds = add_special_tokens and not begins_itself
        return partial(self._tokenizer.encode, add_special_tokens=adds)

    def _chat_text(self, request: Prompted, prompt: ChatPrompt) -> str:
        """Rendered, with marks where messages spell control tokens. System messages that the
        template refuses, or leaves out, stand where it takes them."""
        self._check_chat(prompt)
        messages = [_flatten(index, message) for index, message in enumerate(prompt.messages)]
        refused: Exception | None = None
        text: str | None = None
        for told in (messages, *folded(messages)):
            try:
                text = self._render(
                    request,
                    told,
                    _arguments(prompt),
                    is_continued=prompt.continues_final_message,
                )
            except _TEMPLATE_ERRORS as error:
                refused = refused or error
                continue
            if told is not messages or self._has_later_system_messages(text, messages):
                return text
        if text is not None:
            return text
        assert refused is not None
        reason = self._control_tokens.reveal(str(refused) or type(refused).__name__)
        raise InvalidRequestError(
            f"the chat template refused the messages: {reason}", param=request.param
        ) from refused

    def _has_later_system_messages(self, text: str, messages: list[dict[str, Any]]) -> bool:
        """Whether ``text`` has all that the system says behind the beginning."""
        later = (message for message in messages[1:] if message.get("role") == "system")
        return all(self._control_tokens.hide(one["content"]).strip() in text for one in later)

    def _tokenize_chat(self, request: Prompted, text: str) -> list[int]:
        tokenizer, text = self._control_tokens.separate(text)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        return self._tokenize(request, encode, text)

    def _num_history_tokens(
        self, request: Prompted, prompt: ChatPrompt, text: str, num_tokens: int
    ) -> int:
        """By what another rendering has in common, of the same history with another last message
        and another turn behind it: some templates write the last turn in a way of its own."""
        going_on = other_conversation(prompt, self._final_end)
        if going_on is None:
            return 0
        try:
            other = self._chat_text(request, going_on)
        except BackendError:
            # Nobody has asked for this rendering.
            return 0
        common = common_length(text, other)
        if 2 * common < len(text):
            num_common = len(self._tokenize_chat(request, text[:common]))
        else:
            num_common = num_tokens - len(self._tokenize_chat(request, text[common:]))
        return max(0, num_common - TOKENS_AT_A_CUT)

    def _render(
        self,
        request: Prompted,
        messages: list[dict[str, Any]],
        arguments: Mapping[str, Any],
        *,
        is_continued: bool,
    ) -> str:
        """``is_continued``: up to the end of the final message's content."""
        hide = self._control_tokens.hide
        hidden = [hide(m, is_answer=m.get("role") == "assistant") for m in messages]
        if is_continued:
            hidden[-1]["content"] += self._final_end
        arguments = {"add_generation_prompt": True, **hide(arguments)}
        pieces, num_characters = [], 0
        for piece in self._template.render(hidden, arguments):
            pieces.append(piece)
            num_characters += self._control_tokens.length(piece)
            self._check_length(request, num_characters)
            if len(pieces) > MAX_RENDERED_PIECES:
                raise InvalidRequestError(
                    f"the chat template writes the messages in more than {MAX_RENDERED_PIECES} "
                    "pieces",
                    param=request.param,
                )
        text = "".join(pieces)
        if not is_continued:
            return text
        text, is_found, _ = text.rpartition(self._final_end)
        if not is_found:
            raise InvalidRequestError(
                "this model's chat template does not write the final message as it is",
                param="continue_final_message",
            )
        return text

    def _tokenize(
        self,
        request: Prompted,
        encode: Callable[[str], list[int]],
        text: str,
    ) -> list[int]:
        param = request.param
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{param} has an unpaired surrogate, which is no character: {error}", param=param
            ) from error
        try:
            self._check_slices(request, encode, text)
            return list(encode(text))
        except BackendError:
            raise
        except BaseException as error:
            # A panic in Rust is no ``Exception``, and has no name to import.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise InvalidRequestError(
                f"the tokenizer can't read {param}: {error}", param=param
            ) from error

    def _check_slices(
        self, request: Prompted, encode: Callable[[str], list[int]], text: str
    ) -> None:
        """Raises ``ContextLengthError`` as soon as so many tokens are found that all of ``text``
        can't fit, however long it is. A cut makes at most as many as the longest has characters."""
        size = SLICE_CHARS_PER_TOKEN * self._max_model_len
        if len(text) <= size or request.truncate_prompt_tokens is not None:
            return
        num_tokens = 0
        for start in range(0, len(text), size):
            num_tokens += max(0, len(encode(text[start : start + size])) - self.longest_token)
            check_num_tokens(request, num_tokens, self._max_model_len, or_more=True)

    def _check_length(self, request: Prompted, num_characters: int) -> None:
        if request.truncate_prompt_tokens is not None:
            if num_characters > (most := MOST_CHARS_PER_TOKEN * self._max_model_len):
                param = request.param
                raise InvalidRequestError(
                    f"{param} must have at most {most} characters to be truncated", param=param
                )
            return
        least = num_characters // self.longest_token
        check_num_tokens(request, least, self._max_model_len, or_more=True)

    def _check_chat(self, prompt: ChatPrompt) -> None:
        if not self._template.exists:
            raise InvalidRequestError(
                "this model has no chat template: use /v1/completions, or set engine.chat_template",
                param="messages",
            )
        if reserved := sorted(_RESERVED_TEMPLATE_ARGUMENTS & prompt.template_arguments.keys()):
            raise InvalidRequestError(
                f"{', '.join(reserved)} can't be set by a request", param="chat_template_kwargs"
            )
        if not prompt.messages:
            raise InvalidRequestError("messages must not be empty", param="messages")


def _arguments(prompt: ChatPrompt) -> dict[str, Any]:
    if not prompt.tools:
        return dict(prompt.template_arguments)
    return {**prompt.template_arguments, "tools": list(prompt.tools)}


def _flatten(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined: every template takes a string."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        # Most templates would write a null as "None".
        return {name: value for name, value in message.items() if value is not None}
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(
                f"messages[{index}].content must be a string or text parts; {kind!r} is not text",
                param="messages",
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}
