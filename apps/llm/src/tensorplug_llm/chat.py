"""`ChatTemplate`: a conversation as the prompt that a model was trained on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"

Message = Mapping[str, Any]
"""`role` and `content`, and whatever else a template may ask for."""


class ChatTemplate:
    """The Jinja2 template of a model, run in a sandbox."""

    def __init__(self, source: str) -> None:
        self.source = source

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "ChatTemplate":
        """Return the template of a GGUF file. Raises FormatError when there is none."""
        source = metadata.get(KEY)
        if not isinstance(source, str) or not source.strip():
            raise FormatError(
                f"{KEY}: the model has no chat template; it was not trained on conversations, so "
                "give it a plain prompt"
            )
        return cls(source)

    def render(
        self,
        messages: Iterable[Message],
        *,
        bos: str = "",
        eos: str = "",
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation.

        `bos` and `eos` are the texts of these tokens; `add_generation_prompt` ends the prompt where
        the reply begins; `variables` are other names that the template knows. Raises FormatError
        for a broken template, OptionError for messages that the template or we refuse.
        """
        values = dict(variables or {})
        values |= {
            "messages": _checked(messages),
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._template
        try:
            return template.render(values)
        except _Refused as refusal:
            raise OptionError(
                f"{KEY}: refuses these messages: {refusal}; change their roles or order"
            ) from None
        except Exception as error:  # a template can raise anything that an expression can
            raise FormatError(
                f"{KEY}: fails on these messages: {type(error).__name__}: {error}; the model's "
                "template is broken, so give a plain prompt"
            ) from error

    @cached_property
    def _template(self) -> Template:
        try:
            return _environment().from_string(self.source)
        except Exception as error:  # what nests too deep or is no text fails in Python's compiler
            line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
            raise FormatError(
                f"{KEY}: {line}{error}; the model's template is broken, so give a plain prompt"
            ) from error


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Iterable[Message],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Return the token ids of a conversation, with one bos token even if the template writes one.

    Texts of control tokens count as these tokens, in messages too: that is how templates work.
    Raises FormatError and OptionError as `ChatTemplate.render` does.
    """
    bos, eos = tokenizer.bos, tokenizer.eos
    prompt = template.render(
        messages,
        bos="" if bos is None else tokenizer.decode([bos], special=True),
        eos="" if eos is None else tokenizer.decode([eos], special=True),
        add_generation_prompt=add_generation_prompt,
    )
    ids = tokenizer.encode(prompt, parse_special=True)
    twice = tokenizer.add_bos and ids[:2] == [bos, bos]
    return ids[1:] if twice else ids


class _Refused(Exception):
    """A template's own "no"."""


def _checked(messages: Iterable[Message]) -> Sequence[dict[str, Any]]:
    checked = [dict(message) for message in messages]
    for number, message in enumerate(checked, start=1):
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise OptionError(
                f"chat: message {number} has the keys {sorted(message)}; give it a role, such as "
                "'user', and a content"
            )
    return checked


class _Generation(Extension):
    """`{% generation %}`: marks replies for training and means nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, **options: Any) -> str:
    # Not Jinja2's own filter: that one escapes for HTML.
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(reason: object) -> NoReturn:
    raise _Refused(reason)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
