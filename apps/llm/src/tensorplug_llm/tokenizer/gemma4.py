"""The `gemma4` kind of tokenizer: byte-pair merging by rank, of characters and not of bytes.

Spaces are written as in SentencePiece's tokens. Lines are merged whole; line ends in a row that are
a token stay one.
"""

import re
from collections.abc import Mapping
from functools import cached_property

from tensorplug_llm.tokenizer.bpe import ranks_of
from tensorplug_llm.tokenizer.fields import Fields
from tensorplug_llm.tokenizer.merging import merge
from tensorplug_llm.tokenizer.spm import SPACE
from tensorplug_llm.tokenizer.vocabulary import (
    KEY,
    Defaults,
    Vocabulary,
    byte_tokens,
    read_vocabulary,
)

LINES = re.compile("[^\n]+|\n+")


class CharacterPairs:
    """Merges characters by rank; those that no token writes become their bytes."""

    def __init__(self, vocabulary: Vocabulary, merges: list[str]) -> None:
        """Raises FormatError."""
        self._vocabulary = vocabulary
        self._merges = merges
        self._bytes = byte_tokens(vocabulary)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        known, ids = self._vocabulary.ids, list[int]()
        for line in LINES.findall(text.replace(" ", SPACE)):
            if line[0] == "\n" and line in known:
                ids.append(known[line])
                continue
            for part in merge(line, self._rank):
                if part in known:
                    ids.append(known[part])
                else:
                    found = (self._bytes.get(byte) for byte in part.encode())
                    ids += [id for id in found if id is not None]
        return ids

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return token.replace(SPACE, " ").encode(errors="surrogateescape")

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return ranks_of(self._merges, self._vocabulary)


def load(fields: Fields) -> tuple[Vocabulary, CharacterPairs]:
    """Read the metadata of a `gemma4` tokenizer. Raises FormatError.

    Texts begin with bos whatever the file says, as in llama.cpp.
    """
    stored = fields.with_flag(KEY + "add_bos_token", value=True)
    vocabulary = read_vocabulary(stored, Defaults())
    return vocabulary, CharacterPairs(vocabulary, fields.strings(KEY + "merges"))
