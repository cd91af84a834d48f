"""What a form of calls must have, and what several forms read with."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from tensorplug_llm.serve.calls import Call, NoCall, Schemas, call_of
from tensorplug_llm.serve.tools import Tool

Literal = Callable[[str], str]
"""Writes a text in a grammar, as a token where it is a control token."""
Calls = tuple[list[Call], int] | None
"""The calls of a body and where they end; None while more must come."""


decode = json.JSONDecoder(strict=False).raw_decode
"""Reads the JSON at a place of a text; models write line ends in strings."""


class Form(Protocol):
    """How the models of one family write calls."""

    @property
    def begin(self) -> str:
        """The text that begins calls."""
        ...

    @property
    def bare(self) -> str:
        """A text that begins calls too where an answer begins with it; it may be empty.

        In it, `{name}` is any function's. Semicolons may stand between these calls, as in answers
        of Llama.
        """
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        ...

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of `tools` behind `begin`. Raises NoCall."""
        ...

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        ...


def named_call(body: str, head: str, unfinished: str) -> Calls:
    """The call whose name is the group of `head`, with its arguments in JSON behind that.

    None while the name, as far as `unfinished` matches it, or the JSON goes on. Raises NoCall.
    """
    named = re.match(head, body, re.ASCII)
    if named is None:
        if re.fullmatch(unfinished, body, re.ASCII):
            return None
        raise NoCall
    try:
        arguments, end = decode(body, named.end())
    except (ValueError, RecursionError):
        return None
    return [call_of({"name": named[1], "arguments": arguments})], end
