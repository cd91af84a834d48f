"""The `bert` kind of tokenizer: WordPiece, the longest tokens of each word from left to right.

Texts are cut into words as llama.cpp cuts them: white space parts words, punctuation and Chinese
characters are words, control characters vanish. Where accents are taken off, a character is the
first of its decomposition, so of a Hangul syllable the first letter stays, as there.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import replace

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields
from tensorplug_llm.tokenizer.vocabulary import KEY, Defaults, Vocabulary, read_vocabulary

START = "▁"
"""What tokens begin with that begin a word."""

DEFAULTS = Defaults(unknown=100)
CLS, SEPARATOR = 101, 102
"""Tokens that begin and end a text in BERT's vocabulary, unless a file names others."""

SPACES = frozenset(map(ord, "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000")) | {
    *range(0x2000, 0x200B)
}
CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
REMEMBERED = 1 << 16
"""Words whose ids are kept."""


class Characters(dict[int, str]):
    """What each character of a text becomes; filled as characters occur, for `str.translate`."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        found = self[code] = self._written(chr(code))
        return found

    def _written(self, char: str) -> str:
        if ord(char) in SPACES:
            return " "
        if self._strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        category = unicodedata.category(char)
        if category[0] == "C" or ord(char) in (0, 0xFFFD):
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        is_word = category[0] == "P" or (char < "\x7f" and category[0] == "S") or _is_chinese(char)
        lower = char.lower()[0] if self._lowercase else char
        return f" {lower} " if is_word else lower


class WordPieces:
    """Cuts words into the longest tokens there are."""

    def __init__(self, vocabulary: Vocabulary, characters: Characters) -> None:
        self._ids: Mapping[str, int] = vocabulary.ids
        self._characters = characters
        self._longest = max(map(len, vocabulary.tokens))
        self._unknown = vocabulary.special["unknown"]
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        ids: list[int] = []
        for word in text.translate(self._characters).split(" "):
            if not word:
                continue
            found = self._known.get(word)
            if found is None:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                found = self._known[word] = self._cut(word)
            ids += found
        return ids

    def _cut(self, word: str) -> list[int]:
        """The ids of a word; the unknown token where a part of it is unknown."""
        rest, ids = START + word, []
        while rest:
            for end in range(min(len(rest), self._longest), 0, -1):
                id = self._ids.get(rest[:end])
                if id is not None:
                    ids.append(id)
                    rest = rest[end:]
                    break
            else:
                return [self._unknown]
        return ids

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return token.replace(START, " ").encode(errors="surrogateescape")


def load(fields: Fields) -> tuple[Vocabulary, WordPieces]:
    """Read the metadata of a `bert` tokenizer. Raises FormatError."""
    vocabulary = read_vocabulary(fields, DEFAULTS)
    special = {**vocabulary.special}
    special["bos"] = special.get("bos", special.get("cls", CLS))
    special["eos"] = special.get("separator", SEPARATOR)
    if "unknown" not in special or max(special.values()) >= vocabulary.size:
        raise FormatError(
            f"{KEY}tokens: {vocabulary.size} tokens do not hold those that begin and end a text "
            f"and stand for unknown words; {REMEDY}"
        )
    vocabulary = replace(
        vocabulary, special=special, add_bos=True, add_eos=True, add_separator=False
    )
    lowercase = fields.flag(KEY + "normalizer.lowercase", default=True)
    strip_accents = fields.flag(KEY + "normalizer.strip_accents", default=lowercase)
    characters = Characters(lowercase=lowercase, strip_accents=strip_accents)
    return vocabulary, WordPieces(vocabulary, characters)


def _is_chinese(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in CHINESE)
