"""`ChatTemplate`: a conversation as the prompt that a model was trained on."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import rendering
from tensorplug_llm.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"

Message = Mapping[str, Any]
"""`role` and `content`, and whatever else a template may ask for."""


PATIENCE = 30.0
"""Seconds after which a template is stopped that sleeps instead of computing."""

KNOWN = frozenset({"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"})
"""SHA-256 of templates that were reviewed: that of smollm2-135m."""


class ChatTemplate:
    """The Jinja2 template of a model, run in a sandbox.

    Templates come with models from anywhere: each runs in a process of its own, limited to 2 s of
    processor time and 512 MiB. A template that is `trusted`, or among those KNOWN, runs in this
    process, without limits and 0.2 s faster.
    """

    def __init__(self, source: str, *, trusted: bool = False) -> None:
        self.source = source
        digest = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
        self.trusted = trusted or digest in KNOWN

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
        request = _as_json({"source": self.source, "values": values})
        answer = rendering.answer(**json.loads(request)) if self.trusted else _confined(request)
        if "text" in answer:
            return answer["text"]
        if "refused" in answer:
            raise OptionError(
                f"{KEY}: refuses these messages: {answer['refused']}; change their roles or order"
            )
        problem = answer.get("broken") or f"fails on these messages: {answer['failed']}"
        raise FormatError(
            f"{KEY}: {problem}; the model's template is broken, so give a plain prompt"
        )


def _as_json(request: Mapping[str, Any]) -> str:
    try:
        return json.dumps(request)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"chat: messages and variables must be plain data that JSON can hold, and {error}; "
            "give texts, numbers, lists and dictionaries"
        ) from error


def _confined(request: str) -> dict[str, str]:
    """The answer to a request, from another process. Raises FormatError at its limits."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", rendering.__file__],
            input=request,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONIOENCODING": "utf-8",
            },
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is not None and done.returncode == 0:
        answer: dict[str, str] = json.loads(done.stdout)
        return answer
    words = done.stderr.splitlines() if done is not None else []
    if words and words[-1] != "MemoryError":
        raise FormatError(f"{KEY}: the process that renders it failed: {words[-1]}")
    limits = f"{rendering.SECONDS} s or {rendering.MEMORY >> 20} MiB"
    raise FormatError(
        f"{KEY}: takes more than {limits} on these messages; the model's template is broken or "
        "malicious, so give a plain prompt"
    )


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


def _checked(messages: Iterable[Message]) -> Sequence[dict[str, Any]]:
    checked = [dict(message) for message in messages]
    for number, message in enumerate(checked, start=1):
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise OptionError(
                f"chat: message {number} has the keys {sorted(message)}; give it a role, such as "
                "'user', and a content"
            )
    return checked
