"""`Tokenizer`: text to token ids and back, and `load_tokenizer`, which makes one of metadata."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm.tokenizer import bpe, gemma4, spm, ugm, wpm
from tensorplug_llm.tokenizer.fields import Fields, Metadata
from tensorplug_llm.tokenizer.special import Cutter, TokenType, unused
from tensorplug_llm.tokenizer.stream import StreamDecoder
from tensorplug_llm.tokenizer.vocabulary import KEY, Vocabulary, byte_value

SILENT = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})
"""Tokens that a decoded text does not show."""

VERBATIM = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})


GLANCE = 1 << 13
"""Characters of a long text that are encoded first."""


class Pieces(Protocol):
    """A kind of tokenizer: how it cuts text without special tokens, and what its tokens write."""

    def encode(self, text: str, *, after_special: bool) -> list[int]: ...
    def text_bytes(self, token: str) -> bytes: ...


class Tokenizer:
    """Text to the token ids of one model and back; equals llama.cpp's. Made by `load_tokenizer`."""

    def __init__(self, vocabulary: Vocabulary, pieces: Pieces) -> None:
        self.bos = vocabulary.special.get("bos")
        """The token that begins a text, if the model has one."""
        self.eos = vocabulary.special.get("eos")
        """The token that ends a text, if the model has one."""
        self.add_bos = vocabulary.add_bos
        """Whether `encode` begins with `bos`."""
        self.end_of_generation = vocabulary.end_of_generation
        """Tokens that end a generation."""
        self._vocabulary = vocabulary
        self._types: list[int] = vocabulary.types.tolist()
        self._pieces = pieces
        self._cutter = Cutter(vocabulary.tokens, vocabulary.types)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._vocabulary.size

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        guard: str = "",
    ) -> list[int]:
        """Return the token ids of a text.

        `add_special` adds bos and eos where the model wants them; `parse_special` reads the texts
        of control tokens as these tokens, which texts from outside must not be able to do: see
        `guarded`, whose `guard` is removed here. Lone surrogates count as U+FFFD.
        """
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        after_special = True
        for fragment in self._cutter.cut(_whole(text), parse_special=parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
                after_special = True
            elif plain := fragment.replace(guard, "") if guard else fragment:
                ids += self._pieces.encode(plain, after_special=after_special)
                after_special = False
        if add_special and self._vocabulary.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def pair(self, first: str, second: str) -> list[int]:
        """Return the token ids of two texts that a model compares, such as query and document."""
        vocabulary, ids = self._vocabulary, []
        if self.add_bos and self.bos is not None:
            ids.append(self.bos)
        ends = [self.eos] if vocabulary.add_eos and self.eos is not None else []
        between = [vocabulary.special["separator"]] if vocabulary.add_separator else []
        ids += [*self.encode(first, add_special=False), *ends, *between]
        return [*ids, *self.encode(second, add_special=False), *ends]

    def filled(self, template: str, values: Mapping[str, str]) -> list[int]:
        """Return the token ids of a template with `values` in the place of their names.

        Control tokens are those of the template. Raises OptionError.
        """
        guard = unused("".join(values.values()))
        # Cut first: a value that contains a name stays as it is.
        pieces = re.split(f"({'|'.join(map(re.escape, values))})", template)
        text = "".join(self.guarded(values[p], guard) if p in values else p for p in pieces)
        return self.encode(text, parse_special=True, guard=guard)

    def is_longer(self, text: str, most: int) -> bool:
        """Whether a text has more than twice `most` tokens, by its beginning where it is long.

        Encoding takes 3 us for a character, in which no other thread runs.
        """
        size = GLANCE
        while size < len(text):
            if len(self.encode(text[:size], add_special=False)) > 2 * most:
                return True
            size *= 4
        return False

    def guarded(self, text: str, guard: str) -> str:
        """Put a character that the text does not have into its texts of control tokens.

        `encode` with `parse_special` and the same `guard` then reads these as ordinary text.
        """
        return self._cutter.guarded(text, guard)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of token ids, control and unknown tokens only with `special`.

        A first space that encoding added stays: the ids may continue another text. Bytes that are
        not UTF-8 become U+FFFD.
        """
        shown = (id for id in ids if special or not self.is_silent(id))
        return b"".join(map(self.piece, shown)).decode(errors="replace")

    def stream(
        self, *, special: bool = False, stop: Sequence[str] = (), shown: Container[int] = ()
    ) -> StreamDecoder:
        """Return a decoder for ids that come one by one; the text ends before a stop string.

        It writes control tokens with `special`, and those that are `shown`.
        """
        return StreamDecoder(self, special=special, stop=stop, shown=shown)

    def piece(self, id: int) -> bytes:
        """Return what one token writes, special tokens too. Raises OptionError."""
        token, kind = self._token(id)
        if kind == TokenType.NORMAL:
            return self._pieces.text_bytes(token)
        if kind == TokenType.BYTE:
            return bytes([byte_value(token)])
        return token.encode(errors="surrogateescape") if kind in VERBATIM else b""

    def is_silent(self, id: int) -> bool:
        """Whether a decoded text leaves this token out. Raises OptionError."""
        return self._token(id)[1] in SILENT

    def _token(self, id: int) -> tuple[str, int]:
        if not 0 <= id < self.vocab_size:
            raise OptionError(
                f"tokenizer: {id} is not a token of a vocabulary of {self.vocab_size} tokens; use "
                "ids from encode() or from the model"
            )
        return self._vocabulary.tokens[id], self._types[id]

    def __repr__(self) -> str:
        return f"<Tokenizer {type(self._pieces).__name__}, {self.vocab_size} tokens>"


Loader = Callable[[Fields], tuple[Vocabulary, Pieces]]

KINDS: Mapping[str, Loader] = {
    "bert": wpm.load,
    "gemma4": gemma4.load,
    "gpt2": bpe.load,
    "llama": spm.load,
    "t5": ugm.load,
}
"""`tokenizer.ggml.model`."""


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """Make a tokenizer of GGUF metadata. Raises FormatError.

    Everything is checked now except the merges; the model that cuts text is built on first use.
    """
    fields = Fields(metadata)
    kind = fields.text(KEY + "model")
    if kind not in KINDS:
        raise FormatError(
            f"{KEY}model: {kind[:40]!r} is an unknown kind of tokenizer; known are "
            f"{', '.join(KINDS)}; use a model with one of these"
        )
    return Tokenizer(*KINDS[kind](fields))


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
