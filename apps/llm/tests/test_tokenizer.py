"""Tokenizers of a few hundred tokens, made here: both kinds, special tokens, damaged metadata."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm.tokenizer import load_tokenizer
from tensorplug_llm.tokenizer.bpe import PRE_TYPES
from tensorplug_llm.tokenizer.merging import SHORT

Metadata = dict[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
FUZZ = settings(derandomize=True, deadline=None, max_examples=300)
DAMAGED = "the model file is damaged or incomplete: fetch or convert it again"
ALPHABET = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_CHARS = [chr(b) for b in ALPHABET] + [chr(256 + n) for n in range(256 - len(ALPHABET))]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(
    merges: str = "", *, pre: str = "gpt-2", special: dict[str, int] | None = None, **more: Any
) -> Metadata:
    """Metadata of all 256 bytes, the results of "a+b" merges, and special tokens with types."""
    pairs = [merge.split("+") for merge in merges.split()]
    special = special or {}
    plain = list(dict.fromkeys([*BYTE_CHARS, *("".join(pair) for pair in pairs)]))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*plain, *special],
        "tokenizer.ggml.token_type": [NORMAL] * len(plain) + list(special.values()),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in pairs],
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def spm(
    pieces: dict[str, float] | None = None,
    *,
    special: dict[str, int] | None = None,
    byte_tokens: bool = True,
    **more: Any,
) -> Metadata:
    """Metadata of <unk>, <s>, </s>, the byte tokens, scored pieces and special tokens."""
    pieces = pieces or {}
    special = special or {}
    head = ["<unk>", "<s>", "</s>", *(BYTE_TOKENS if byte_tokens else [])]
    head_types = [UNKNOWN, CONTROL, CONTROL, *([BYTE] * (len(head) - 3))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*head, *pieces, *special],
        "tokenizer.ggml.scores": [0.0] * len(head) + [*pieces.values()] + [-1000.0] * len(special),
        "tokenizer.ggml.token_type": head_types + [NORMAL] * len(pieces) + [*special.values()],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def cut(metadata: Metadata, text: str, **options: bool) -> list[str]:
    """The texts of the tokens of a text, which a library finds too."""
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode(text, **options)
    tokenizer.encode("." * (SHORT + 1))  # from now on the library merges
    assert tokenizer.encode(text, **options) == ids
    return [metadata["tokenizer.ggml.tokens"][id] for id in ids]


# Byte-pair encoding


def test_merges_go_by_rank_and_not_from_left_to_right() -> None:
    assert cut(bpe("b+c a+b"), "abc") == ["a", "bc"]


def test_of_a_merge_that_stands_twice_the_first_rank_counts() -> None:
    assert cut(bpe("b+c a+b b+c"), "abc") == ["a", "bc"]


DIGITS = "1+2 12+3 123+4"
WORDS = "'+L 'L+L !+Ċ Ċ+Ċ Ġ+Ġ Ġ+a !+?"


@pytest.mark.parametrize(
    ("pre", "merges", "text", "tokens"),
    [
        ("default", DIGITS, "1234", ["123", "4"]),
        ("gpt-2", DIGITS, "1234", ["1234"]),
        ("smollm", DIGITS, "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", DIGITS, "1234", ["123", "4"]),
        ("qwen2", DIGITS, "1234", ["1", "2", "3", "4"]),
        ("gpt-2", WORDS, "I'LL", ["I", "'", "L", "L"]),
        ("llama-bpe", WORDS, "I'LL", ["I", "'LL"]),
        ("qwen2", WORDS, "I'LL", ["I", "'LL"]),
        ("gpt-2", WORDS, "!\n", ["!", "Ċ"]),
        ("llama-bpe", WORDS, "!\n", ["!Ċ"]),
        ("qwen2", WORDS, "!\n", ["!Ċ"]),
        ("smollm", WORDS, "  a", ["Ġ", "Ġa"]),
        ("llama-bpe", WORDS, "  a", ["Ġ", "Ġa"]),
        ("smollm", WORDS, "  ", ["ĠĠ"]),
        ("smollm", WORDS, "\n\n", ["ĊĊ"]),
        ("gpt-2", WORDS, "!?", ["!?"]),
        ("default", WORDS, "!?", ["!?"]),
        ("gpt-4o", "a+b b+C", "abC", ["ab", "C"]),
        ("tekken", "a+b b+C", "abC", ["ab", "C"]),
        ("llama-bpe", "b+C a+b", "abC", ["a", "bC"]),
        ("gpt-4o", DIGITS, "1234", ["123", "4"]),
        ("tekken", DIGITS, "1234", ["1", "2", "3", "4"]),
        ("glm4", DIGITS, "1234", ["123", "4"]),
    ],
)
def test_text_is_cut_into_words_before_merging(
    pre: str, merges: str, text: str, tokens: list[str]
) -> None:
    assert cut(bpe(merges, pre=pre), text) == tokens


def test_without_a_pre_type_words_are_cut_by_the_default_one() -> None:
    metadata = bpe(DIGITS)
    del metadata["tokenizer.ggml.pre"]

    assert cut(metadata, "1234") == ["123", "4"]


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["abc"]), ("gpt-2", ["a", "b", "c"])])
def test_llama_3_takes_a_word_that_is_a_token_without_its_merges(
    pre: str, tokens: list[str]
) -> None:
    assert cut(bpe(pre=pre, special={"abc": NORMAL}), "abc") == tokens


def test_bytes_that_the_vocabulary_lacks_part_their_neighbours_and_vanish() -> None:
    metadata = bpe("a+c")
    metadata["tokenizer.ggml.tokens"][BYTE_CHARS.index("b")] = "instead of b"

    assert cut(metadata, "abc ac") == ["a", "c", "Ġ", "ac"]


# SentencePiece

SCORED = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "▁a": -3.0}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", ["a", "bc"]),
        ("ab", ["ab"]),
        ("a a", ["a", "▁a"]),
        ("aba", ["ab", "a"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("aéb\n", ["a", "<0xC3>", "<0xA9>", "b", "<0x0A>"]),
        ("\0", ["<0x00>"]),
        ("▁a", ["▁a"]),
        ("", []),
    ],
)
def test_pieces_merge_by_score_and_unknown_characters_become_bytes(
    text: str, tokens: list[str]
) -> None:
    assert cut(spm(SCORED), text) == tokens


def test_of_equal_scores_the_leftmost_pair_merges_first() -> None:
    assert cut(spm({"a": -1.0, "aa": -1.0}), "aaa") == ["aa", "a"]


def test_without_byte_tokens_unknown_characters_become_the_unknown_token() -> None:
    assert cut(spm(SCORED, byte_tokens=False), "aéb") == ["a", "<unk>", "b"]


def test_long_tokens_are_read() -> None:
    pieces = {"a" * (1 << n): -100.0 + n for n in range(13)}

    assert cut(spm(pieces), "a" * 4096 + "b") == ["a" * 4096, "<0x62>"]


def test_a_token_longer_than_any_real_one_is_refused_where_text_is_long() -> None:
    tokenizer = load_tokenizer(spm({"a" * 2_000_000: -1.0}))

    with pytest.raises(FormatError) as error:
        tokenizer.encode("a" * (SHORT + 1))

    assert str(error.value) == (
        "tokenizer.ggml.tokens: token 259 is 2000000 bytes long, and at most 1048575 can be read; "
        f"{DAMAGED}"
    )


def test_a_space_comes_before_the_text_and_before_what_follows_a_special_token() -> None:
    metadata = spm(SCORED, special={"<x>": USER_DEFINED}, add_space_prefix=True)

    assert cut(metadata, "ab<x>ab") == ["▁", "ab", "<x>", "▁", "ab"]


def test_the_space_prefix_is_the_default_as_in_llama_cpp() -> None:
    metadata = spm(SCORED)
    del metadata["tokenizer.ggml.add_space_prefix"]

    assert cut(metadata, "a") == ["▁a"]


def test_a_control_token_may_come_together_from_its_parts_as_in_llama_cpp() -> None:
    metadata = spm({"<": -9.0, "x": -9.0, ">": -9.0, "<x": -1.0}, special={"<x>": CONTROL})

    assert cut(metadata, "<x>") == ["<x>"]


# Special tokens

SPECIAL = {"<ctl>": CONTROL, "<user>": USER_DEFINED, "<none>": UNKNOWN, "<user>>": USER_DEFINED}
EITHER_KIND = pytest.mark.parametrize("make", [bpe, spm], ids=["bpe", "spm"])


@EITHER_KIND
def test_control_tokens_are_read_from_text_only_when_asked(
    make: Callable[..., Metadata],
) -> None:
    metadata = make(special=SPECIAL)

    assert "<ctl>" not in cut(metadata, "a<ctl>b")
    assert "<ctl>" in cut(metadata, "a<ctl>b", parse_special=True)
    assert "<none>" not in cut(metadata, "a<none>b")
    assert "<none>" in cut(metadata, "a<none>b", parse_special=True)


@EITHER_KIND
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<user>", ["<user>"]),
        ("<user>>", ["<user>>"]),
        ("<user>>><user>", ["<user>>", ">", "<user>"]),
        ("<<user>", ["<", "<user>"]),
    ],
)
def test_user_defined_tokens_are_cut_out_first_and_the_longest_before_all_others(
    make: Callable[..., Metadata], text: str, tokens: list[str]
) -> None:
    metadata = make(special=SPECIAL)

    shown = [">" if token == "<0x3E>" else token for token in cut(metadata, text)]
    shown = ["<" if token == "<0x3C>" else token for token in shown]

    assert shown == tokens


def test_a_long_token_wins_over_an_earlier_short_one() -> None:
    metadata = bpe(special={"ab": USER_DEFINED, "bcd": USER_DEFINED})

    assert cut(metadata, "abcd") == ["a", "bcd"]


@EITHER_KIND
@pytest.mark.parametrize(
    ("flags", "options", "first", "last"),
    [
        ({}, {}, ["<bos>"], ["<eos>"]),
        ({"add_bos_token": False}, {}, [], ["<eos>"]),
        ({"add_eos_token": False}, {}, ["<bos>"], []),
        ({}, {"add_special": False}, [], []),
    ],
)
def test_bos_and_eos_are_added_where_the_model_wants_them(
    make: Callable[..., Metadata],
    flags: dict[str, bool],
    options: dict[str, bool],
    first: list[str],
    last: list[str],
) -> None:
    special = {"<bos>": CONTROL, "<eos>": CONTROL, "<mid>": USER_DEFINED}
    ids = {name: place for place, name in enumerate(make(special=special)[TOKENS])}
    wanted = {"add_bos_token": True, "add_eos_token": True, **flags}

    metadata = make(special=special, bos_token_id=ids["<bos>"], eos_token_id=ids["<eos>"], **wanted)

    assert cut(metadata, "<mid>", **options) == [*first, "<mid>", *last]


TOKENS = "tokenizer.ggml.tokens"


@pytest.mark.parametrize(
    ("special", "ids", "ends"),
    [
        (["<|im_end|>"], {}, ["<|im_end|>"]),
        (["<|eot_id|>", "<|eom_id|>"], {}, ["<|eot_id|>", "<|eom_id|>"]),
        (["<stop>", "<turn>"], {"eos": "<stop>", "eot": "<turn>"}, ["<stop>", "<turn>"]),
        (["<end_of_turn>", "<eos>", "<x>"], {}, ["<end_of_turn>", "<eos>"]),
        (
            ["<|file_sep|>", "<fim_pad>", "<reponame>"],
            {},
            ["<|file_sep|>", "<fim_pad>", "<reponame>"],
        ),
        (["<|fim_prefix|>", "<|fim_middle|>"], {}, []),
        (["<|return|>", "<|call|>", "<|end|>"], {}, ["<|return|>", "<|call|>"]),
        (["</s>", "<|tool_response>"], {}, ["<|tool_response>"]),
        ([], {}, []),
    ],
)
def test_known_texts_and_the_metadata_tell_what_ends_a_generation(
    special: list[str], ids: dict[str, str], ends: list[str]
) -> None:
    metadata = bpe(special=dict.fromkeys(special, CONTROL))
    place = {name: id for id, name in enumerate(metadata[TOKENS])}
    for role, name in ids.items():
        metadata[f"tokenizer.ggml.{role}_token_id"] = place[name]

    tokenizer = load_tokenizer(metadata)

    assert tokenizer.end_of_generation == {place[name] for name in ends}


def test_what_ends_a_generation_counts_as_a_control_token_whatever_its_type() -> None:
    metadata = bpe(special={"<|im_end|>": USER_DEFINED})

    assert "<|im_end|>" not in cut(metadata, "<|im_end|>")
    assert cut(metadata, "<|im_end|>", parse_special=True) == ["<|im_end|>"]


def test_parts_of_a_reply_count_as_user_defined_whatever_their_type() -> None:
    assert cut(bpe(special={"<|channel|>": CONTROL}), "<|channel|>") == ["<|channel|>"]


def test_an_empty_token_is_never_found_in_a_text() -> None:
    assert cut(bpe(special={"": CONTROL}), "ab", parse_special=True) == ["a", "b"]


# Back to text


@FUZZ
@given(st.text())
def test_decoding_gives_back_the_encoded_text_of_bytes(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@FUZZ
@given(st.text().filter(lambda text: "▁" not in text))
def test_decoding_gives_back_the_encoded_text_of_pieces(text: str) -> None:
    assert SPM.decode(SPM.encode(text)) == text


BPE = load_tokenizer(bpe("t+h th+e Ġ+a", pre="llama-bpe"))
SPM = load_tokenizer(spm(SCORED))


@pytest.mark.parametrize(
    ("token", "written"),
    [("Ġa", b" a"), ("Ãł", b"\xc3\xa0"), ("Ċ", b"\n"), ("日", "日".encode())],
)
def test_byte_level_tokens_write_bytes(token: str, written: bytes) -> None:
    metadata = bpe()
    metadata[TOKENS][0] = token if token not in metadata[TOKENS] else "!"

    id = metadata[TOKENS].index(token)

    assert load_tokenizer(metadata).piece(id) == written


@pytest.mark.parametrize(
    ("token", "type", "written"),
    [
        ("▁a▁", NORMAL, b" a "),
        ("<0x0A>", BYTE, b"\n"),
        ("<x▁>", CONTROL, "<x▁>".encode()),
        ("<y▁>", USER_DEFINED, "<y▁>".encode()),
        ("unused", UNUSED, b""),
        ("strange", 77, b""),
        ("\udcff\udcfe", NORMAL, b"\xff\xfe"),
    ],
)
def test_what_a_token_writes_depends_on_its_type(token: str, type: int, written: bytes) -> None:
    tokenizer = load_tokenizer(spm(byte_tokens=False, special={token: type}))

    assert tokenizer.piece(tokenizer.vocab_size - 1) == written


def test_control_tokens_show_in_a_decoded_text_only_when_asked() -> None:
    tokenizer = load_tokenizer(spm(SCORED, special={"<ctl>": CONTROL}))
    ids = tokenizer.encode("ab<ctl>c", parse_special=True)

    assert tokenizer.decode(ids) == "abc"
    assert tokenizer.decode(ids, special=True) == "ab<ctl>c"


def test_a_stream_holds_back_characters_until_they_are_whole() -> None:
    stream = SPM.stream()

    parts = [stream.feed(id) for id in SPM.encode("aé日a")]

    assert parts == ["a", "", "é", "", "", "日", "a"]
    assert stream.finish() == ""


def test_a_stream_ends_with_a_sign_for_half_a_character() -> None:
    stream = SPM.stream()

    parts = [stream.feed(id) for id in SPM.encode("a日")[:-1]]

    assert parts == ["a", "", ""]
    assert stream.finish() == "\ufffd"
    assert stream.feed(SPM.encode("b")[0]) == "b"


def test_a_stream_leaves_control_tokens_out() -> None:
    stream, shown = SPM.stream(), SPM.stream(special=True)

    assert stream.feed(1) == ""
    assert shown.feed(1) == "<s>"


@pytest.mark.parametrize(
    ("text", "same_as"), [("a\udc80b", "a\ufffdb"), ("\ud83d\ude00", "😀"), ("\ud83d", "\ufffd")]
)
def test_surrogates_in_a_text_count_as_the_character_they_make_or_as_unreadable(
    text: str, same_as: str
) -> None:
    assert SPM.encode(text) == SPM.encode(same_as)
    assert BPE.encode(text) == BPE.encode(same_as)


@pytest.mark.parametrize("id", [-1, 266])
def test_ids_outside_the_vocabulary_are_refused(id: int) -> None:
    with pytest.raises(OptionError) as error:
        SPM.piece(id)

    assert str(error.value) == (
        f"tokenizer: {id} is not a token of a vocabulary of 266 tokens; use ids from encode() or "
        "from the model"
    )


def test_the_repr_says_the_kind_and_the_size() -> None:
    assert repr(SPM) == "<Tokenizer SentencePieces, 266 tokens>"


# Metadata


@EITHER_KIND
def test_arrays_may_be_lists_or_numpy_arrays(make: Callable[..., Metadata]) -> None:
    metadata = make(special={"<x>": USER_DEFINED})
    arrays = {
        key: np.asarray(value) if isinstance(value, list) else value
        for key, value in metadata.items()
    }

    assert load_tokenizer(arrays).encode("a<x> b") == load_tokenizer(metadata).encode("a<x> b")


def without(key: str) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.pop(f"tokenizer.ggml.{key}")


def change(key: str, value: object) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update({f"tokenizer.ggml.{key}": value})


def token(id: int, text: str) -> Callable[[Metadata], None]:
    def put(metadata: Metadata) -> None:
        metadata[TOKENS][id] = text

    return put


KNOWN = ", ".join(sorted(PRE_TYPES))


@pytest.mark.parametrize(
    ("make", "damage", "sentence"),
    [
        (bpe, without("model"), f"model: missing from the metadata; {DAMAGED}"),
        (bpe, change("model", 3), f"model: must be a string, not int; {DAMAGED}"),
        (
            bpe,
            change("model", "rwkv"),
            "model: 'rwkv' is an unknown kind of tokenizer; known are bert, gemma4, gpt2, llama, "
            "t5; use a model with one of these",
        ),
        (
            bpe,
            change("pre", "klingon"),
            "pre: 'klingon' is an unknown way to cut text into words; known are "
            f"{KNOWN}; use a model with one of these",
        ),
        (bpe, without("tokens"), f"tokens: missing from the metadata; {DAMAGED}"),
        (bpe, change("tokens", []), f"tokens: the vocabulary is empty; {DAMAGED}"),
        (bpe, change("tokens", "abc"), f"tokens: must be an array, not str; {DAMAGED}"),
        (bpe, change("tokens", ["a", b"b"]), f"tokens: must hold strings, not bytes; {DAMAGED}"),
        (bpe, token(7, "!"), f"tokens: '!' stands twice, as tokens 0 and 7; {DAMAGED}"),
        (bpe, without("merges"), f"merges: missing from the metadata; {DAMAGED}"),
        (
            bpe,
            change("token_type", [1, 2, 3]),
            f"token_type: has 3 entries for a vocabulary of 256 tokens; {DAMAGED}",
        ),
        (
            bpe,
            change("token_type", ["a"] * 256),
            f"token_type: must hold numbers, not str32 in 1 dimensions; {DAMAGED}",
        ),
        (
            bpe,
            change("eos_token_id", 256),
            f"eos_token_id: 256 is not a token of a vocabulary of 256 tokens; {DAMAGED}",
        ),
        (
            bpe,
            change("eos_token_id", -1),
            f"eos_token_id: -1 is not a token of a vocabulary of 256 tokens; {DAMAGED}",
        ),
        (bpe, change("eot_token_id", "x"), f"eot_token_id: must be a token id, not str; {DAMAGED}"),
        (
            bpe,
            change("add_bos_token", True),
            "add_bos_token: texts get a bos token, but tokenizer.ggml.bos_token_id is missing; "
            f"{DAMAGED}",
        ),
        (
            bpe,
            change("add_eos_token", 1),
            f"add_eos_token: must be true or false, not int; {DAMAGED}",
        ),
        (
            spm,
            change("scores", [0.5]),
            f"scores: has 1 entries for a vocabulary of 259 tokens; {DAMAGED}",
        ),
        (
            spm,
            change("scores", [float("nan")] * 259),
            f"scores: holds numbers that are not finite; {DAMAGED}",
        ),
        (
            spm,
            token(3, "<0xZZ>"),
            "tokens: token 3 is a byte by its type, but its text is '<0xZZ>' and not like "
            f"'<0x0A>'; {DAMAGED}",
        ),
    ],
)
def test_damaged_metadata_is_named(
    make: Callable[..., Metadata], damage: Callable[[Metadata], None], sentence: str
) -> None:
    metadata = make()
    damage(metadata)

    with pytest.raises(FormatError) as error:
        load_tokenizer(metadata)

    assert str(error.value) == f"tokenizer.ggml.{sentence}"


@pytest.mark.parametrize(
    ("merge", "problem"),
    [
        ("ab", "'ab' is not a pair of tokens"),
        ("a 日", "Token `日` out of vocabulary"),
        ("a b", "Token `ab` out of vocabulary"),
        ("a ", "Token `` out of vocabulary"),
    ],
)
def test_merges_are_checked_on_first_use(merge: str, problem: str) -> None:
    tokenizer = load_tokenizer(bpe() | {"tokenizer.ggml.merges": [merge]})

    with pytest.raises(FormatError) as error:
        tokenizer.encode("ab")

    assert str(error.value) == f"tokenizer.ggml.merges: {problem}; {DAMAGED}"


@EITHER_KIND
@FUZZ
@given(st.data())
def test_damaged_values_raise_format_errors_and_nothing_else(
    make: Callable[..., Metadata], data: st.DataObject
) -> None:
    metadata = make(special=SPECIAL)
    key = data.draw(st.sampled_from(sorted(metadata)))
    metadata[key] = data.draw(STRANGE)

    with suppress(FormatError):
        load_tokenizer(metadata).encode("ab <user> c")


STRANGE = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.booleans(),
    st.lists(st.text(max_size=2), max_size=300),
    st.lists(st.integers(), min_size=256, max_size=266),
    st.lists(st.floats(), min_size=256, max_size=266),
    st.lists(st.lists(st.integers(), max_size=2), max_size=3),
)
