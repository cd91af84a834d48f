"""`Prompts`: the token ids of what clients send; their texts cannot write control tokens."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplug_llm.chat import ChatTemplate
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.tokenizer import Tokenizer

GUARDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Noncharacters of Unicode, which no text has a use for."""


class Prompts:
    """Encodes conversations and texts for one model; can be used by several threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.template = template
        self._tokenizer = tokenizer
        self._encoding = threading.Lock()

    def text(self, text: str, *, add_special: bool = True) -> list[int]:
        """The ids of a text to continue."""
        with self._encoding:
            return self._tokenizer.encode(text, add_special=add_special)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation, by the model's template. Raises FormatError, OptionError."""
        if self.template is None:
            raise ServeError(
                400,
                "messages: the model has no chat template; use /v1/completions",
                param="messages",
            )
        tokenizer = self._tokenizer
        guard = _unused(str(messages))
        prompt = self.template.render(
            [self._guarded(message, guard) for message in messages],
            bos=self._shown(tokenizer.bos),
            eos=self._shown(tokenizer.eos),
        )
        with self._encoding:
            ids = tokenizer.encode(prompt, parse_special=True, guard=guard)
        twice = tokenizer.add_bos and ids[:2] == [tokenizer.bos, tokenizer.bos]
        return ids[1:] if twice else ids

    def _guarded(self, value: Any, guard: str) -> Any:
        """A value whose texts do not have control tokens."""
        if isinstance(value, str):
            return self._tokenizer.guarded(value, guard)
        if isinstance(value, Mapping):
            return {key: self._guarded(part, guard) for key, part in value.items()}
        return [self._guarded(part, guard) for part in value] if isinstance(value, list) else value

    def _shown(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.decode([token], special=True)


def _unused(text: str) -> str:
    """A noncharacter that a text does not have."""
    for guard in GUARDS:
        if guard not in text and ascii(guard)[1:-1] not in text:
            return guard
    raise ServeError(400, "messages: have all noncharacters of Unicode; leave one out")
