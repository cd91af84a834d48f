"""`ChatTemplate`: a conversation as the prompt that a model was trained on."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import rendering
from tensorplug_llm.confined import Confined, Stopped
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.tokenizer import Tokenizer
from tensorplug_llm.tokenizer.special import unused

KEY = "tokenizer.chat_template"

Message = Mapping[str, Any]
"""`role` and `content`, and whatever else a template may ask for."""

KNOWN = frozenset({"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"})
"""SHA-256 of templates that were reviewed: that of smollm2-135m."""


class ChatTemplate:
    """The Jinja2 template of a model, run in a sandbox.

    Templates come with models from anywhere: each runs in a process of its own, limited to 2 s of
    processor time for a conversation and to 512 MiB. The process stays for the next conversation.
    A template that is `trusted`, or among those KNOWN, runs in this process, without limits.
    """

    def __init__(self, source: str, *, trusted: bool = False) -> None:
        self.source = source
        digest = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
        self.trusted = trusted or digest in KNOWN
        self._process = Confined(rendering.__file__)

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
        for a broken template, OptionError for messages that the template or this method refuses.
        """
        values = dict(variables or {})
        values |= {
            "messages": _checked(messages),
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": add_generation_prompt,
        }
        answer = self._answer({"source": self.source, "values": _plain(values)})
        if "text" in answer:
            return str(answer["text"])
        if "refused" in answer:
            raise OptionError(
                f"{KEY}: refuses these messages: {answer['refused']}; change their roles or order"
            )
        problem = answer.get("broken") or f"fails on these messages: {answer['failed']}"
        raise FormatError(
            f"{KEY}: {problem}; the model's template is broken, so give a plain prompt"
        )

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, str]:
        if self.trusted:
            return rendering.answer(**request)
        try:
            return dict(self._process.answer(request))
        except Stopped as stopped:
            raise FormatError(
                f"{KEY}: {stopped} on these messages; the model's template is broken or "
                "malicious, so give a plain prompt"
            ) from stopped


def _plain(values: Mapping[str, Any]) -> Any:
    """Values as JSON gives them back."""
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"chat: messages and variables must be plain data that JSON can hold, and {error}; "
            "give texts, numbers, lists and dictionaries"
        ) from error


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Iterable[Message],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    most: int | None = None,
) -> list[int]:
    """Return the token ids of a conversation, with one bos token even if the template writes one.

    Control tokens are those that the template writes: their texts in messages and in `variables`
    stay text. Raises FormatError and OptionError as `ChatTemplate.render` does, and PromptTooLong
    before it encodes what is far longer than `most` tokens.
    """
    said = [dict(message) for message in messages]
    named = variables or {}
    guard = unused(str(said) + str(named))
    bos, eos = tokenizer.bos, tokenizer.eos
    prompt = template.render(
        [_guarded_parts(message, tokenizer, guard) for message in said],
        bos="" if bos is None else tokenizer.decode([bos], special=True),
        eos="" if eos is None else tokenizer.decode([eos], special=True),
        add_generation_prompt=add_generation_prompt,
        variables=_guarded_parts(named, tokenizer, guard),
    )
    if most is not None:
        check_length(tokenizer, prompt, most)
    ids = tokenizer.encode(prompt, parse_special=True, guard=guard)
    twice = tokenizer.add_bos and ids[:2] == [bos, bos]
    return ids[1:] if twice else ids


def check_length(tokenizer: Tokenizer, text: str, most: int) -> None:
    """Refuse a text that has far more than `most` tokens, without encoding all of it."""
    if tokenizer.is_longer(text, most):
        raise PromptTooLong(
            f"prompt: {len(text)} characters are far more than the context of {most} tokens holds; "
            "shorten it"
        )


def _guarded_parts(named: Mapping[str, Any], tokenizer: Tokenizer, guard: str) -> dict[str, Any]:
    """What a template finds by name, without control tokens; names stay if they are identifiers.

    A file may call `role` a control token, and the template must find the role all the same.
    """
    parts = {}
    for name, part in named.items():
        is_name = isinstance(name, str) and name.isidentifier()
        key = name if is_name else _guarded(name, tokenizer, guard)
        parts[key] = _guarded(part, tokenizer, guard)
    return parts


def _guarded(value: Any, tokenizer: Tokenizer, guard: str) -> Any:
    """A value whose texts do not have control tokens."""
    if isinstance(value, str):
        return tokenizer.guarded(value, guard)
    if isinstance(value, Mapping):
        return {
            _guarded(key, tokenizer, guard): _guarded(part, tokenizer, guard)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_guarded(part, tokenizer, guard) for part in value]
    return value


def _checked(messages: Iterable[Message]) -> Sequence[dict[str, Any]]:
    checked = [dict(message) for message in messages]
    for number, message in enumerate(checked, start=1):
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise OptionError(
                f"chat: message {number} has the keys {sorted(message)}; give it a role, such as "
                "'user', and a content"
            )
    return checked
