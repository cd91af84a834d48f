"""OpenAI's JSON of answers, whole and in parts, from what was generated."""

import codecs
import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorplug_llm.sampling import Sampled
from tensorplug_llm.serve.calls import Call
from tensorplug_llm.serve.texts import Piece
from tensorplug_llm.tokenizer import Tokenizer

Json = dict[str, Any]
ID_LETTERS = string.ascii_letters + string.digits
DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {_encode(value)}\n\n".encode()


def usage(prompt: int, completion: int) -> Json:
    """Numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


class Result:
    """One text of an answer that is sent as a whole."""

    def __init__(self) -> None:
        self.text = ""
        self.sampled: list[Sampled] = []
        self.calls: list[Call] = []
        self.finish: str | None = None

    def add(self, piece: Piece) -> None:
        """Append what follows."""
        self.text += piece.text
        self.finish = piece.finish
        self.sampled += piece.sampled
        self.calls += piece.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all parts of an answer have in common."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    def _object(self, kind: str, choices: Sequence[Json], used: Json | None) -> Json:
        found = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }
        return found if used is None else {**found, "usage": used}


class ChatAnswer(Head):
    """`/v1/chat/completions`."""

    def whole(self, results: Sequence[Result], used: Json) -> Json:
        """The answer."""
        choices = [
            {
                "index": index,
                "message": _message(result),
                "logprobs": self._logprobs(result.sampled),
                "finish_reason": result.finish,
            }
            for index, result in enumerate(results)
        ]
        return self._object("chat.completion", choices, used)

    def first(self, index: int) -> Json:
        """The part with which a result begins."""
        return self._part(index, {"role": "assistant", "content": ""}, [], None)

    def part(self, piece: Piece) -> Json:
        """What follows in a result."""
        delta: Json = {}
        if piece.text or not (piece.finish or piece.calls):
            delta["content"] = piece.text
        if piece.calls:
            delta["tool_calls"] = [
                {"index": index, **_call(call)}
                for index, call in enumerate(piece.calls, piece.called)
            ]
        return self._part(piece.index, delta, piece.sampled, piece.finish)

    def last(self, used: Json) -> Json:
        """The part with the numbers of tokens."""
        return self._object("chat.completion.chunk", [], used)

    def _part(
        self, index: int, delta: Json, sampled: Sequence[Sampled], finish: str | None
    ) -> Json:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(sampled) if sampled else None,
            "finish_reason": finish,
        }
        return self._object("chat.completion.chunk", [choice], None)

    def _logprobs(self, sampled: Sequence[Sampled]) -> Json | None:
        if not self.logprobs:
            return None
        content = [
            {
                **self._token(one.token, one.logprob),
                "top_logprobs": [self._token(id, value) for id, value in one.top_logprobs],
            }
            for one in sampled
        ]
        return {"content": content, "refusal": None}

    def _token(self, id: int, logprob: float | None) -> Json:
        piece = self.tokenizer.piece(id)
        return {
            "token": piece.decode(errors="replace"),
            "logprob": logprob,
            "bytes": list(piece),
        }


def _message(result: Result) -> Json:
    message: Json = {"role": "assistant", "content": result.text, "refusal": None}
    if result.calls:
        message["content"] = result.text or None
        message["tool_calls"] = list(map(_call, result.calls))
    return message


def _call(call: Call) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": _call_id(), "type": "function", "function": function}


def _call_id() -> str:
    """Nine letters and digits, which is what templates of Mistral's models ask for."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(9))


class _Length:
    """Counts the characters of a result whose bytes come in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = 0

    def add(self, piece: bytes) -> int:
        """The number before this piece, with one for a character of which the end is missing."""
        before = self._whole + bool(self._decoder.getstate()[0])
        self._whole += len(self._decoder.decode(piece))
        return before


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAnswer(Head):
    """`/v1/completions`."""

    _lengths: dict[int, "_Length"] = field(default_factory=dict)

    def whole(self, results: Sequence[Result], used: Json) -> Json:
        """The answer."""
        choices = [
            self._choice(index, result.text, result.sampled, result.finish)
            for index, result in enumerate(results)
        ]
        return self._object("text_completion", choices, used)

    def first(self, index: int) -> Json | None:
        """Completions begin with their text."""
        return None

    def part(self, piece: Piece) -> Json:
        """What follows in a result."""
        choice = self._choice(piece.index, piece.text, piece.sampled, piece.finish)
        return self._object("text_completion", [choice], None)

    def last(self, used: Json) -> Json:
        """The part with the numbers of tokens."""
        return self._object("text_completion", [], used)

    def _choice(
        self, index: int, text: str, sampled: Sequence[Sampled], finish: str | None
    ) -> Json:
        logprobs = None
        if self.logprobs and sampled:
            logprobs = {
                "tokens": [self._text(one.token) for one in sampled],
                "text_offset": [self._offset(index, one.token) for one in sampled],
                "token_logprobs": [one.logprob for one in sampled],
                "top_logprobs": [
                    {self._text(id): value for id, value in one.top_logprobs} for one in sampled
                ],
            }
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _offset(self, index: int, id: int) -> int:
        """Characters before the next token of a result; one that is cut counts in its first."""
        piece = b"" if self.tokenizer.is_silent(id) else self.tokenizer.piece(id)
        return self._lengths.setdefault(index, _Length()).add(piece)

    def _text(self, id: int) -> str:
        """A token; by its bytes where it is a part of a character, as in OpenAI's API."""
        piece = self.tokenizer.piece(id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
