"""The protobuf wire format of `sentencepiece_model.proto`, written by hand and all tokens at once.

A message object for each of 262,144 tokens would take seconds.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Floats

Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]

# Fields of the model, of its trainer_spec and of its normalizer_spec.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
MODEL_TYPE, BYTE_FALLBACK = 3, 35
NAME, CHARSMAP, ADD_DUMMY_PREFIX, REMOVE_EXTRA_WHITESPACES, ESCAPE_WHITESPACES = 1, 2, 3, 4, 5

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, BYTE = 1, 2, 6

NO_TOKEN = "\udcff"
"""The unknown piece that SentencePiece demands: the byte 0xFF, which no text holds."""

MAX_TOKEN = 0xFFFFF
"""Bytes of a token: what a length of three bytes can say, with room for the rest of a piece."""


def model_proto(tokens: Sequence[str], scores: Floats, byte_ids: Sequence[int]) -> bytes:
    """Return a serialised SentencePiece model; its id `len(tokens)` stands for unknown characters.

    Special tokens are pieces like any other, as in llama.cpp: they are cut out beforehand, and one
    that is left in a text may come together from its parts. With `byte_ids`, all 256, unknown
    characters become bytes. Raises FormatError.
    """
    kinds = np.full(len(tokens) + 1, NORMAL, np.uint8)
    kinds[list(byte_ids)] = BYTE
    kinds[-1] = UNKNOWN
    pieces = _pieces([*tokens, NO_TOKEN], np.append(scores, np.float32(0)), kinds)
    trainer = _number(MODEL_TYPE, BPE) + _number(BYTE_FALLBACK, bool(byte_ids))
    normalizer = (
        _message(NAME, b"identity")
        + _number(ADD_DUMMY_PREFIX, 0)  # `encode` adds it where llama.cpp does
        + _number(REMOVE_EXTRA_WHITESPACES, 0)
        + _number(ESCAPE_WHITESPACES, 1)
    )
    return pieces + _message(TRAINER, trainer) + _message(NORMALIZER, normalizer)


def unigram_proto(
    tokens: Sequence[str],
    scores: Floats,
    kinds: Bytes,
    charsmap: bytes,
    *,
    space_prefix: bool,
    merge_spaces: bool,
) -> bytes:
    """Return a serialised unigram model; `kinds` has one UNKNOWN. Raises FormatError."""
    normalizer = (
        _message(NAME, b"given")
        + _message(CHARSMAP, charsmap)
        + _number(ADD_DUMMY_PREFIX, space_prefix)
        + _number(REMOVE_EXTRA_WHITESPACES, merge_spaces)
        + _number(ESCAPE_WHITESPACES, 1)
    )
    return (
        _pieces(tokens, scores, kinds)
        + _message(TRAINER, _number(MODEL_TYPE, UNIGRAM))
        + _message(NORMALIZER, normalizer)
    )


def _pieces(tokens: Sequence[str], scores: Floats, kinds: Bytes) -> bytes:
    """Return the messages of all pieces: text (field 1), score (2) and type (3).

    A length takes three bytes even where one would do, so that every field has a fixed distance
    from the start or the end of its piece.
    """
    texts = [token.encode(errors="surrogateescape") for token in tokens]
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    if sizes.max() > MAX_TOKEN:
        raise FormatError(
            f"tokenizer.ggml.tokens: token {int(sizes.argmax())} is {int(sizes.max())} bytes long, "
            f"and at most {MAX_TOKEN} can be read; {REMEDY}"
        )
    head, tail = 8, 7
    ends = np.cumsum(sizes + head + tail)
    starts = ends - (sizes + head + tail)
    wire = np.empty(int(ends[-1]), np.uint8)
    wire[starts] = _tag(PIECES, 2)
    _put_lengths(wire, starts + 1, sizes + 4 + tail)
    wire[starts + 4] = _tag(1, 2)
    _put_lengths(wire, starts + 5, sizes)
    text_starts = np.cumsum(sizes) - sizes
    places = np.arange(int(sizes.sum())) + np.repeat(starts + head - text_starts, sizes)
    wire[places] = np.frombuffer(b"".join(texts), np.uint8)
    wire[ends - 7] = _tag(2, 5)
    wire[ends[:, None] + np.arange(-6, -2)] = scores.astype("<f4").view(np.uint8).reshape(-1, 4)
    wire[ends - 2] = _tag(3, 0)
    wire[ends - 1] = kinds
    return wire.tobytes()


def _put_lengths(wire: Bytes, places: Sizes, lengths: Sizes) -> None:
    wire[places] = lengths & 0x7F | 0x80
    wire[places + 1] = lengths >> 7 & 0x7F | 0x80
    wire[places + 2] = lengths >> 14


def _message(field: int, content: bytes) -> bytes:
    return _varint(_tag(field, 2)) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(_tag(field, 0)) + _varint(value)


def _tag(field: int, wire_type: int) -> int:
    return field << 3 | wire_type


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
