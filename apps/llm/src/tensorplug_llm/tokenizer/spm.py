"""The `llama` kind of tokenizer: SentencePiece's byte-pair merging by score."""

from functools import cached_property
from typing import Any

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields, Floats
from tensorplug_llm.tokenizer.merging import SHORT, merge
from tensorplug_llm.tokenizer.spm_proto import model_proto
from tensorplug_llm.tokenizer.vocabulary import (
    KEY,
    Defaults,
    Vocabulary,
    byte_tokens,
    read_vocabulary,
)

SPACE = "▁"
"""What a space is written as in tokens."""

DEFAULTS = Defaults(bos=1, eos=2, unknown=0, add_bos=True)


class SentencePieces:
    """Merges the first SHORT characters by itself, then by a model of SentencePiece."""

    def __init__(self, vocabulary: Vocabulary, scores: Floats, *, space_prefix: bool) -> None:
        """Raises FormatError."""
        self._vocabulary = vocabulary
        self._scores = scores
        self._space_prefix = space_prefix
        self._bytes = byte_tokens(vocabulary)
        self._no_merge = frozenset(self._bytes.values())
        self._unknown = vocabulary.special["unknown"]  # DEFAULTS give every vocabulary one
        self._left = SHORT

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        if self._space_prefix and after_special:
            text = " " + text
        self._left -= len(text)
        if self._left >= 0:
            return self._merged(text)
        ids: list[int] = self._processor.encode(text, out_type=int)
        if self._byte_fallback:
            return ids
        stranger = self._vocabulary.size
        return [self._unknown if id == stranger else id for id in ids]

    def _merged(self, text: str) -> list[int]:
        """What SentencePiece's model gives, without building it."""
        ids: list[int] = []
        for part in merge(text.replace(" ", SPACE), self._rank):
            id = self._vocabulary.ids.get(part, -1)
            if id >= 0 and id not in self._no_merge:
                ids.append(id)
            elif self._byte_fallback:
                ids += [self._bytes[byte] for byte in part.encode()]
            elif not ids or ids[-1] != self._unknown:  # a run of them is one
                ids.append(self._unknown)
        return ids

    def _rank(self, left: str, right: str) -> float | None:
        id = self._vocabulary.ids.get(left + right)
        return None if id is None or id in self._no_merge else -float(self._scores[id])

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return token.replace(SPACE, " ").encode(errors="surrogateescape")

    @property
    def _byte_fallback(self) -> bool:
        return len(self._bytes) == 256  # SentencePiece falls back to all bytes or to none

    @cached_property
    def _processor(self) -> Any:
        from sentencepiece import (  # noqa: PLC0415 - takes a while, and short texts need none
            SentencePieceProcessor,
        )

        byte_ids = list(self._bytes.values()) if self._byte_fallback else []
        proto = model_proto(self._vocabulary.tokens, self._scores, byte_ids)
        try:
            return SentencePieceProcessor(model_proto=proto)
        except RuntimeError as error:
            raise FormatError(f"{KEY}tokens: SentencePiece: {error}; {REMEDY}") from error


def load(fields: Fields) -> tuple[Vocabulary, SentencePieces]:
    """Read the metadata of a `llama` tokenizer. Raises FormatError."""
    vocabulary = read_vocabulary(fields, DEFAULTS)
    scores = fields.floats(KEY + "scores", len(vocabulary.tokens))
    space_prefix = fields.flag(KEY + "add_space_prefix", default=True)
    return vocabulary, SentencePieces(vocabulary, scores, space_prefix=space_prefix)
