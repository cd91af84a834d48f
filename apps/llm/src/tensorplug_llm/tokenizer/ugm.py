"""The `t5` kind of tokenizer: SentencePiece's unigram model (Kudo 2018, arXiv:1804.10959).

Texts are normalized by rules in the file: a double array of what is replaced, and replacements.
"""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields, Floats
from tensorplug_llm.tokenizer.special import TokenType
from tensorplug_llm.tokenizer.spm import SPACE
from tensorplug_llm.tokenizer.spm_proto import unigram_proto
from tensorplug_llm.tokenizer.vocabulary import KEY, Defaults, Vocabulary, read_vocabulary

DEFAULTS = Defaults(eos=1, unknown=2, add_eos=True)
RULES = KEY + "precompiled_charsmap"
MATCHED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
"""Kinds of tokens that a text may be cut into."""


class Unigrams:
    """Cuts a text into its most likely tokens by a model of SentencePiece."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: Floats,
        rules: bytes,
        *,
        space_prefix: bool,
        merge_spaces: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._scores = scores
        self._rules = rules
        self._space_prefix = space_prefix
        self._merge_spaces = merge_spaces

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return token.replace(SPACE, " ").encode(errors="surrogateescape")

    @cached_property
    def _processor(self) -> Any:
        from sentencepiece import (  # noqa: PLC0415 - takes a while to import
            SentencePieceProcessor,
        )

        types = self._vocabulary.types
        kinds = np.where(np.isin(types, MATCHED), types, TokenType.CONTROL).astype(np.uint8)
        kinds[kinds == TokenType.UNUSED] = TokenType.NORMAL
        kinds[self._vocabulary.special["unknown"]] = TokenType.UNKNOWN
        proto = unigram_proto(
            self._vocabulary.tokens,
            self._scores,
            kinds,
            self._rules,
            space_prefix=self._space_prefix,
            merge_spaces=self._merge_spaces,
        )
        try:
            return SentencePieceProcessor(model_proto=proto)
        except RuntimeError as error:
            raise FormatError(f"{KEY}tokens: SentencePiece: {error}; {REMEDY}") from error


def load(fields: Fields) -> tuple[Vocabulary, Unigrams]:
    """Read the metadata of a `t5` tokenizer. Raises FormatError."""
    vocabulary = read_vocabulary(fields, DEFAULTS)
    if "unknown" not in vocabulary.special:
        raise FormatError(f"{KEY}unknown_token_id: missing from the metadata; {REMEDY}")
    return vocabulary, Unigrams(
        vocabulary,
        fields.floats(KEY + "scores", vocabulary.size),
        _rules(fields),
        space_prefix=fields.flag(KEY + "add_space_prefix", default=True),
        merge_spaces=fields.flag(KEY + "remove_extra_whitespaces", default=False),
    )


def _rules(fields: Fields) -> bytes:
    """The rules of normalization, checked: the library reads them without bounds."""
    rules = fields.octets(RULES)
    if not rules:
        return b""
    size = int.from_bytes(rules[:4], "little")
    array, replacements = rules[4 : 4 + size], rules[4 + size :]
    if len(rules) < 4 or size % 4 or not replacements or len(array) < size or replacements[-1]:
        raise _damaged("its parts do not have the sizes that it says")
    _check_array(np.frombuffer(array, "<u4"), len(replacements))
    return rules


def _check_array(units: npt.NDArray[np.uint32], replacements: int) -> None:
    """Follow all paths through the double array from its root. Raises FormatError."""
    if not units.size:
        raise _damaged("it has no root")
    codes = np.arange(1, 256, dtype=np.uint32)
    places = np.zeros(1, np.uint32)
    seen = np.zeros(units.size, bool)
    while places.size:
        found = units[places]
        begins = places ^ ((found >> 10) << ((found & 0x200) >> 6))
        if (begins | 0xFF).max() >= units.size:
            raise _damaged("it leads beyond its end")
        # A unit that ends a text has its replacement where the code 0 leads.
        values = units[begins[found & 0x100 > 0]] & 0x7FFFFFFF
        if values.size and values.max() >= replacements:
            raise _damaged("it names a replacement that it does not have")
        children = begins[:, None] ^ codes
        is_child = (units[children] & 0x800000FF) == codes
        places = np.unique(children[is_child])
        places = places[~seen[places]]
        seen[places] = True


def _damaged(problem: str) -> FormatError:
    return FormatError(f"{RULES}: {problem}; {REMEDY}")
