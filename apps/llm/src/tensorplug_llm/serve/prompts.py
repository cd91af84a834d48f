"""`Prompts`: the token ids of what clients send; their texts cannot write control tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplug_llm.chat import ChatTemplate, check_length, encode_chat
from tensorplug_llm.sampling.integers import check_integers
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.forms import LineForm, form_of
from tensorplug_llm.serve.reading import refuse
from tensorplug_llm.serve.tools import Tools
from tensorplug_llm.tokenizer import Tokenizer


class Prompts:
    """Encodes conversations and texts for one model; can be used by several threads."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, *, context: int
    ) -> None:
        """Texts that are far longer than `context` tokens are refused before they are encoded."""
        self.template = template
        self.form = None if template is None else form_of(template.source)
        """How the model writes calls; None where it knows no tools."""
        self._tokenizer = tokenizer
        self._context = context

    def text(self, text: str, *, add_special: bool = True) -> list[int]:
        """The ids of a text to continue. Raises PromptTooLong."""
        check_length(self._tokenizer, text, self._context)
        return self._tokenizer.encode(text, add_special=add_special)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Tools | None = None) -> list[int]:
        """The ids of a conversation, by the model's template. Raises FormatError, OptionError."""
        if self.template is None:
            raise ServeError(
                400,
                "messages: the model has no chat template; use /v1/completions",
                param="messages",
            )
        if self.form is None and (tools or any("tool_calls" in message for message in messages)):
            raise ServeError(
                400,
                "tools: the chat template of this model has no form of calls that this server "
                "knows; leave them out, or use another model",
                param="tools",
                code="unsupported_parameter",
            )
        if isinstance(self.form, LineForm):
            messages = [*self.form.told(messages)]
        variables = {"tools": [tool.told for tool in tools.tools]} if tools else None
        return encode_chat(
            self._tokenizer, self.template, messages, variables=variables, most=self._context
        )

    def grammar(self, tools: Tools) -> str | None:
        """What holds an answer to a call, where one is forced."""
        if self.form is None or not tools.forced:
            return None
        for tool in tools.forced:
            try:
                check_integers(tool.parameters)
            except ValueError as error:
                refuse("tools", f"function {tool.name} {error}")
        return self.form.grammar(tools.forced, self._literal)

    def shown(self) -> frozenset[int]:
        """Control tokens that calls are written with."""
        markers = self.form.markers if self.form else ()
        ids = [token for marker in markers if (token := self._control(marker)) is not None]
        return frozenset(ids)

    def _literal(self, text: str) -> str:
        token = self._control(text)
        return json.dumps(text) if token is None else f"<[{token}]>"

    def _control(self, text: str) -> int | None:
        """The control token with this text."""
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 and self._tokenizer.is_silent(ids[0]) else None
