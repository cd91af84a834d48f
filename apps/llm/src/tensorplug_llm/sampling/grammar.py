"""`Grammars`: texts that follow a JSON schema or a grammar, by llguidance."""

import importlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tensorplug.errors import OptionError
from tensorplug_llm.confined import Confined, Stopped
from tensorplug_llm.sampling.gbnf import is_gbnf, lark_of_gbnf
from tensorplug_llm.sampling.integers import check_integers
from tensorplug_llm.sampling.params import SamplingParams

SPACE = r"( |\n{1,2}[ \t]{0,20})?"
"""What may stand between the parts of JSON, as in llama.cpp: small models write blanks forever."""

FIRST_SECONDS, TOKEN_SECONDS = 1.0, 0.02
"""Seconds of a processor that the masks of one request may take, and more of them for each token:
all texts of an engine wait for a mask."""


class Vocabulary(Protocol):
    """What grammars need of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def end_of_generation(self) -> frozenset[int]: ...
    def piece(self, id: int) -> bytes: ...
    def is_silent(self, id: int) -> bool: ...
    def encode(self, text: str, *, add_special: bool = ...) -> list[int]: ...


class Grammars:
    """Makes constraints for the texts of one tokenizer; can be used by several threads.

    The first constraint prepares the vocabulary, which takes 0.15 s for 49,152 tokens and 1.8 s
    for 262,144. Each is compiled twice, first under limits of time and memory.
    """

    def __init__(self, tokenizer: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._prepared: Any = None
        self._process = Confined(str(Path(__file__).with_name("compiling.py")))

    def constraint(self, params: SamplingParams) -> "GrammarConstraint | None":
        """What a text must follow, or None where the parameters ask for nothing.

        Raises OptionError for a schema or a grammar that llguidance refuses, that takes too much
        to compile or that no text follows, and where llguidance is not installed.
        """
        if params.json_schema is None and params.grammar is None:
            return None
        name = "grammar" if params.json_schema is None else "json_schema"
        source = params.constraint
        library = _library(name)
        with self._lock:
            if self._prepared is None:
                self._prepared = _prepared(library, self._tokenizer)
        try:
            text = _grammar(library, name, source)
        except ValueError as error:
            raise OptionError(f"sampling: {name}: {_line(str(error))}; correct it") from error
        try:
            self._process.answer({"grammar": text})
        except Stopped as stopped:
            raise OptionError(f"sampling: {name}: {stopped} to compile; simplify it") from stopped
        matcher = library.LLMatcher(self._prepared, text, log_level=0)
        if matcher.is_error():
            raise OptionError(f"sampling: {name}: {_line(matcher.get_error())}; correct it")
        found = GrammarConstraint(matcher, name, self._tokenizer.vocab_size, _Budget())
        # The first mask takes longest, up to 1.6 s for a pattern of a million digits. Here it is
        # computed in the thread that asks, not in that of an engine with other texts.
        found.allowed()
        return found


@dataclass(slots=True)
class _Budget:
    """Seconds that are left to the masks of the texts of one request."""

    seconds: float = FIRST_SECONDS


class GrammarConstraint:
    """The tokens that may follow in one text.

    A mask takes 5 to 80 us (SmolLM2, Gemma 3; once in a text up to 3 ms), so that computing it in
    parallel with a forward pass would gain nothing. Some schemas take 100 ms, for a pattern of
    60,000 digits; they are refused when the time of their request is over.
    """

    def __init__(self, matcher: Any, name: str, size: int, budget: _Budget) -> None:
        """Made by `Grammars.constraint`."""
        self._matcher = matcher
        self._name = name
        self._size = size
        self._budget = budget

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether each token may follow. Raises OptionError."""
        start = time.thread_time()
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._budget.seconds += TOKEN_SECONDS - (time.thread_time() - start)
        self._check()
        if self._budget.seconds < 0:
            raise OptionError(
                f"sampling: {self._name}: takes more than {TOKEN_SECONDS * 1000:g} ms for each "
                "token; simplify it"
            )
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Go on behind a token. Raises OptionError."""
        self._matcher.consume_token(token)
        self._check()

    def copy(self) -> "GrammarConstraint":
        """The same constraint for another text; what was compiled and the time are shared."""
        matcher = self._matcher.deep_copy()
        return GrammarConstraint(matcher, self._name, self._size, self._budget)

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = self._matcher.get_error().partition("<state>")[0]
            raise OptionError(
                f"sampling: {self._name}: cannot be followed: {_line(problem)}; simplify it"
            )


def _line(text: str) -> str:
    """A text without line ends."""
    return " ".join(text.split())


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise OptionError(
            f"sampling: {name} needs llguidance ({error}); run: pip install "
            "'tensorplug-llm[grammar]'"
        ) from error


def _prepared(library: ModuleType, tokenizer: Vocabulary) -> Any:
    """The vocabulary as llguidance reads it."""
    ends = sorted(tokenizer.end_of_generation)
    if not ends:
        raise OptionError(
            "sampling: json_schema and grammar need a model with a token that ends a text, and "
            "this one has none; use another model"
        )
    source = library.TokenizerWrapper(_Source(tokenizer, ends[0]))
    # Without slices: they double the time of this, and save a few milliseconds of a text.
    return library.LLTokenizer(source, eos_token=ends, slices=[])


class _Source:
    """A tokenizer under the names that llguidance asks for."""

    def __init__(self, tokenizer: Vocabulary, end: int) -> None:
        ids = range(tokenizer.vocab_size)
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos
        self.tokens: Sequence[bytes] = [tokenizer.piece(id) for id in ids]
        self.special_token_ids = [id for id in ids if tokenizer.is_silent(id)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace"), add_special=False)


def _grammar(library: ModuleType, name: str, source: str) -> str:
    """A grammar in llguidance's own form. Raises ValueError."""
    if name == "grammar":
        return lark_of_gbnf(source) if is_gbnf(source) else source
    check_integers(json.loads(source))
    overrides = {"whitespace_pattern": SPACE}
    schema: str = library.LLMatcher.grammar_from_json_schema(source, None, overrides)
    return schema
