"""The `gpt2` kind of tokenizer: byte-level byte-pair encoding by rank of merges.

Words are cut as llama.cpp cuts them. Only the 5,000 characters that Unicode 16 added may differ:
Oniguruma knows their classes, and llama.cpp's tables are of Unicode 15.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields
from tensorplug_llm.tokenizer.merging import SHORT, merge
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
"""Qwen 2's words: each digit is a word."""

WORDS_WITH_MARKS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen 3.5's words: as Qwen 2's, but combining marks belong to letters."""


def _by_case(ending: str, numbers: str) -> str:
    """Words end before capital letters; as in llama.cpp, only A to Z and a to z have cases."""
    upper, lower = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}|{numbers}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^"
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7fc\uab30-\uab68"
    "\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U00016e7f\U0001d400-\U0001df2a]]"
)
"""Letters with a case, without those that DeepSeek leaves out."""
_ASIAN = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&\\S]+"
"""What DeepSeek takes for Chinese, Japanese and Korean."""

WORDS_BY_CASE = _by_case(rf"(?:{_CONTRACTIONS})?", r"\p{N}{1,3}")
"""The words of GPT-4o and gpt-oss."""
WORDS_BY_CASE_1_DIGIT = _by_case("", r"\p{N}")
"""The words of Mistral's Tekken."""


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
DEEPSEEK_LLM = PreType(
    (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
        r"\s+\z",
        _ASIAN,
        r"\p{N}+",
    )
)
DEEPSEEK_CODER = PreType(
    (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        _ASIAN,
        r"\p{N}",
    )
)
FALCON = PreType((r"[\p{P}$+<=>^~|`]+", WORDS, "[0-9][0-9][0-9]"))

PRE_TYPES: Mapping[str, PreType] = {
    "default": DEFAULT,
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), DBRX),
    "glm4": PreType((WORDS_3_DIGITS,), whole_words=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreType((WORDS_BY_CASE,))),
    "tekken": PreType((WORDS_BY_CASE_1_DIGIT,), whole_words=True, add_bos=True),
    "qwen35": PreType((WORDS_WITH_MARKS,)),
    "falcon": FALCON,
    "deepseek-coder": DEEPSEEK_CODER,
    "deepseek-llm": DEEPSEEK_LLM,
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
    """Merges the first SHORT characters by itself, then by a model that `tokenizers` builds."""

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre: PreType) -> None:
        self._vocabulary = vocabulary
        self._merges = merges
        self._pre = pre
        self._left = SHORT

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens in it."""
        self._left -= len(text)
        if self._left >= 0:
            return self._merged(text)
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        stranger = self._vocabulary.size
        return ids if self._has_all_bytes else [id for id in ids if id != stranger]

    def text_bytes(self, token: str) -> bytes:
        """Return what an ordinary token writes."""
        return b"".join(_BYTES.get(char) or char.encode(errors="surrogateescape") for char in token)

    def _merged(self, text: str) -> list[int]:
        """What the model of `tokenizers` gives, without building it."""
        known, ids = self._vocabulary.ids, []
        for word, _ in self._words.pre_tokenize_str(text):
            if self._pre.whole_words and word in known:
                ids.append(known[word])
            else:
                # Bytes that the vocabulary lacks part their neighbours and then vanish.
                ids += [known[part] for part in merge(word, self._rank) if part in known]
        return ids

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return ranks_of(self._merges, self._vocabulary)

    @cached_property
    def _has_all_bytes(self) -> bool:
        return self._vocabulary.ids.keys() >= _BYTES.keys()

    @cached_property
    def _words(self) -> Any:
        """Cuts a text into words of byte-level characters."""
        from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415 - takes a while to import

        splits = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self._pre.patterns
        ]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, to_bytes])

    @cached_property
    def _engine(self) -> Any:
        from tokenizers import Tokenizer, models  # noqa: PLC0415 - takes a while to import

        # Stands for bytes that the vocabulary lacks.
        stranger = _unused_text(self._vocabulary.ids)
        _check_text("tokens", self._vocabulary.tokens)
        ranks = self._ranks
        try:
            model = models.BPE(
                vocab={**self._vocabulary.ids, stranger: self._vocabulary.size},
                merges=[_pair(text) for text in sorted(ranks, key=ranks.__getitem__)],
                unk_token=stranger,
                ignore_merges=self._pre.whole_words,
            )
        except Exception as error:  # tokenizers raises no narrower type
            raise FormatError(f"{KEY}merges: {error}; {REMEDY}") from error
        engine = Tokenizer(model)
        engine.pre_tokenizer = self._words
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


def ranks_of(merges: list[str], vocabulary: Vocabulary) -> Mapping[str, int]:
    """Merges as the file has them, with their ranks: of one that stands twice the first.

    Raises FormatError.
    """
    _check_merges(merges, vocabulary)
    ranks = range(len(merges) - 1, -1, -1)
    return dict(zip(reversed(merges), ranks, strict=True))


def _check_text(what: str, texts: list[str]) -> None:
    """Raise FormatError for the first text that is not UTF-8, which `tokenizers` cannot take."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        wrong = next(text for text in texts if any("\ud800" <= char <= "\udfff" for char in text))
        raise FormatError(f"{KEY}{what}: {wrong[:40]!r} is not UTF-8; {REMEDY}") from error


def _check_merges(merges: list[str], vocabulary: Vocabulary) -> None:
    """Raise FormatError for the first merge that is not a pair of tokens that make a token."""
    _check_text("merges", merges)
    known = vocabulary.ids
    lines = "\n".join(merges)
    parts = lines.replace(" ", "\n").split("\n")
    whole = lines.replace(" ", "").split("\n")
    # Four times as fast as the loop, which knows tokens with spaces and names the wrong one.
    strangers = {*parts, *whole}.difference(known)
    if len(parts) == 2 * len(whole) == 2 * len(merges) and not strangers:
        return
    for text in merges:
        left, right = _pair(text)
        if not (left in known and right in known and left + right in known):
            missing = next(part for part in (left, right, left + right) if part not in known)
            raise FormatError(f"{KEY}merges: Token `{missing[:40]}` out of vocabulary; {REMEDY}")


def _pair(text: str) -> tuple[str, str]:
    space = text.find(" ", 1)  # a token may begin with a space, none holds one further on
    if space < 0:
        raise FormatError(f"{KEY}merges: {text[:40]!r} is not a pair of tokens; {REMEDY}")
    return text[:space], text[space + 1 :]


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
