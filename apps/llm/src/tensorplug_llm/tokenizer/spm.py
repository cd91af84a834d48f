"""The `llama` kind of tokenizer: SentencePiece's byte-pair merging by score."""

from functools import cached_property

from sentencepiece import SentencePieceProcessor

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields, Floats
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
    """Cuts text by a SentencePiece model made of the vocabulary, on first use."""

    def __init__(self, vocabulary: Vocabulary, scores: Floats, *, space_prefix: bool) -> None:
        """Raises FormatError."""
        self._vocabulary = vocabulary
        self._scores = scores
        self._space_prefix = space_prefix
        self._bytes = byte_tokens(vocabulary)
        self._unknown = vocabulary.special["unknown"]  # DEFAULTS give every vocabulary one

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        if self._space_prefix and after_special:
            text = " " + text
        ids: list[int] = self._processor.encode(text, out_type=int)
        if self._byte_fallback:
            return ids
        stranger = self._vocabulary.size
        return [self._unknown if id == stranger else id for id in ids]

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return token.replace(SPACE, " ").encode(errors="surrogateescape")

    @property
    def _byte_fallback(self) -> bool:
        return len(self._bytes) == 256  # SentencePiece falls back to all bytes or to none

    @cached_property
    def _processor(self) -> SentencePieceProcessor:
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
