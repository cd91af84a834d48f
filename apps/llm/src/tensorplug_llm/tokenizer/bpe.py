"""The `gpt2` kind of tokenizer: byte-level byte-pair encoding by rank of merges.

Words are cut as llama.cpp cuts them. Only the 5,000 characters that Unicode 16 added may differ:
Oniguruma knows their classes, and llama.cpp's tables are of Unicode 15.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields
from tensorplug_llm.tokenizer.vocabulary import (
    KEY,
    Defaults,
    Vocabulary,
    byte_tokens,
    read_vocabulary,
)

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's words."""

_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_AFTER_NUMBERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

WORDS_3_DIGITS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_AFTER_NUMBERS}"
"""Llama 3's words: numbers in groups of three digits."""

WORDS_1_DIGIT = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_AFTER_NUMBERS}"
"""Qwen 2's words: every digit alone."""


@dataclass(frozen=True, slots=True)
class PreType:
    """How a `tokenizer.ggml.pre` cuts text into words before merging."""

    patterns: tuple[str, ...]  # one after the other, each cuts what those before it left
    whole_words: bool = False  # a word that is a token is taken whole, without its merges
    add_bos: bool = False


DEFAULT = PreType((r"[\p{P}$+<=>^~|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"))
GPT2 = PreType((WORDS,))
SINGLE_DIGITS = PreType((r"\p{N}", WORDS))
LLAMA3 = PreType((WORDS_3_DIGITS,), whole_words=True, add_bos=True)
DBRX = PreType((WORDS_3_DIGITS,))
QWEN2 = PreType((WORDS_1_DIGIT,))

PRE_TYPES: Mapping[str, PreType] = {
    "default": DEFAULT,
    "dbrx": DBRX,
    "smaug-bpe": DBRX,
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "trillion", "mpt", "exaone4"), GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        SINGLE_DIGITS,
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), LLAMA3
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "megrez", "deepseek-r1-qwen", "hunyuan"), QWEN2),
}


class BytePairs:
    """Cuts text by a byte-pair model made of the vocabulary, on first use."""

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreType) -> None:
        self._vocabulary = vocabulary
        self._merges = merges
        self._pre = pre

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        stranger = self._vocabulary.size
        return ids if self._has_all_bytes else [id for id in ids if id != stranger]

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return b"".join(_BYTES.get(char) or char.encode(errors="surrogateescape") for char in token)

    @cached_property
    def _has_all_bytes(self) -> bool:
        return self._vocabulary.ids.keys() >= _BYTES.keys()

    @cached_property
    def _engine(self) -> Engine:
        # Stands for bytes that the vocabulary lacks: they part their neighbours and then vanish.
        stranger = _unused_text(self._vocabulary.ids)
        _check_text("tokens", self._vocabulary.tokens)
        _check_text("merges", self._merges)
        pairs = _pairs(self._merges)
        try:
            model = BPE(
                vocab={**self._vocabulary.ids, stranger: self._vocabulary.size},
                merges=pairs,
                unk_token=stranger,
                ignore_merges=self._pre.whole_words,
            )
        except Exception as error:  # tokenizers raises no narrower type
            raise FormatError(f"{KEY}merges: {error}; {REMEDY}") from error
        engine = Engine(model)
        splits = [Split(Regex(pattern), "isolated") for pattern in self._pre.patterns]
        to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
        engine.pre_tokenizer = Sequence([*splits, to_bytes])
        return engine


def load(fields: Fields) -> tuple[Vocabulary, BytePairs]:
    """Read the metadata of a `gpt2` tokenizer. Raises FormatError."""
    pre = _pre_type(fields)
    vocabulary = read_vocabulary(fields, Defaults(add_bos=pre.add_bos))
    byte_tokens(vocabulary)  # raises for byte tokens that stand for no byte
    return vocabulary, BytePairs(vocabulary, fields.strings(KEY + "merges"), pre)


def _pre_type(fields: Fields) -> PreType:
    name = fields.text(KEY + "pre", default="default")
    if name in PRE_TYPES:
        return PRE_TYPES[name]
    known = ", ".join(sorted(PRE_TYPES))
    raise FormatError(
        f"{KEY}pre: {name[:40]!r} is an unknown way to cut text into words; known are {known}; "
        "use a model with one of these"
    )


def _check_text(what: str, texts: list[str]) -> None:
    """Raise FormatError for the first text that is no UTF-8, which the engine cannot take."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        wrong = next(text for text in texts if any("\ud800" <= char <= "\udfff" for char in text))
        raise FormatError(f"{KEY}{what}: {wrong[:40]!r} is no UTF-8; {REMEDY}") from error


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    pairs: dict[tuple[str, str], None] = {}  # of a pair that stands twice the first rank counts
    for merge in merges:
        space = merge.find(" ", 1)  # a token may begin with a space, none holds one further on
        if space < 0:
            raise FormatError(f"{KEY}merges: {merge[:40]!r} is no pair of tokens; {REMEDY}")
        pairs[merge[:space], merge[space + 1 :]] = None
    return list(pairs)


def _unused_text(ids: Mapping[str, int]) -> str:
    text = "\n"  # hardly ever a token: byte-level tokens write a newline as another character
    while text in ids:
        text += "\n"
    return text


def _byte_alphabet() -> dict[str, bytes]:
    # GPT-2 writes printable Latin-1 bytes as themselves, the others as characters from 256 on.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    return alphabet | {chr(256 + n): bytes([byte]) for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()
