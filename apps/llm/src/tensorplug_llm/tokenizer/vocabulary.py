"""`Vocabulary`: the tokens of a model and what is special among them, checked."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensorplug.errors import FormatError
from tensorplug_llm.tokenizer.fields import REMEDY, Fields, Ints
from tensorplug_llm.tokenizer.special import TokenType, find_ends

KEY = "tokenizer.ggml."

SPECIAL_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unknown": "unknown_token_id",
    "separator": "seperator_token_id",  # the format spells it so
    "cls": "cls_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "fim_pre": "fim_pre_token_id",
    "fim_suf": "fim_suf_token_id",
    "fim_mid": "fim_mid_token_id",
    "fim_pad": "fim_pad_token_id",
    "fim_rep": "fim_rep_token_id",
    "fim_sep": "fim_sep_token_id",
}
"""Roles and the metadata that names their tokens."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a kind of tokenizer assumes where the metadata says nothing."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    add_bos: bool = False
    add_eos: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model by id."""

    tokens: list[str]  # bytes that are not UTF-8 are lone surrogates, as `surrogateescape` has it
    ids: Mapping[str, int]
    types: Ints  # TokenType, corrected by `find_ends`
    special: Mapping[str, int]  # token ids by role
    end_of_generation: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_separator: bool = False
    """Whether a separator stands between two texts, after the token that ends the first."""

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


def read_vocabulary(fields: Fields, defaults: Defaults) -> Vocabulary:
    """Read and check everything about a vocabulary but how it cuts text. Raises FormatError."""
    tokens = _tokens(fields)
    size = len(tokens)
    ids = _ids(tokens)
    types = fields.ints(KEY + "token_type", size, TokenType.NORMAL)
    special = {}
    for role, key in SPECIAL_IDS.items():
        id = fields.token_id(KEY + key, size, getattr(defaults, role, None))
        if id is not None:
            special[role] = id
    ends = find_ends(ids, types, special)
    return Vocabulary(
        tokens,
        ids,
        types,
        special,
        ends,
        add_bos=_adds(fields, "bos", special, default=defaults.add_bos),
        add_eos=_adds(fields, "eos", special, default=defaults.add_eos),
        add_separator=fields.flag(KEY + "add_sep_token", default=False) and "separator" in special,
    )


def byte_value(token: str) -> int:
    """Return the byte that a byte token such as `<0x0A>` stands for. Raises ValueError."""
    if len(token) != len("<0x0A>") or not (token.startswith("<0x") and token.endswith(">")):
        raise ValueError(token)
    return int(token[3:5], 16)


def byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Return the ids of the byte tokens by their byte. Raises FormatError."""
    values = {}
    for id in np.flatnonzero(vocabulary.types == TokenType.BYTE).tolist():
        token = vocabulary.tokens[id]
        try:
            values[byte_value(token)] = id
        except ValueError as error:
            raise FormatError(
                f"{KEY}tokens: token {id} is a byte by its type, but its text is {token[:40]!r} "
                f"and not like '<0x0A>'; {REMEDY}"
            ) from error
    return values


def _tokens(fields: Fields) -> list[str]:
    tokens = fields.strings(KEY + "tokens")
    if not tokens:
        raise FormatError(f"{KEY}tokens: the vocabulary is empty; {REMEDY}")
    if "" not in tokens:
        return tokens
    # The same names as llama.cpp's: an empty text would be found everywhere.
    return [token or f"[EMPTY_{id}]" for id, token in enumerate(tokens)]


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) < len(tokens):
        twice = next(id for id, token in enumerate(tokens) if ids[token] != id)
        raise FormatError(
            f"{KEY}tokens: {tokens[twice][:40]!r} stands twice, as tokens {twice} and "
            f"{ids[tokens[twice]]}; {REMEDY}"
        )
    return ids


def _adds(fields: Fields, role: str, special: Mapping[str, int], *, default: bool) -> bool:
    key = f"{KEY}add_{role}_token"
    adds = fields.flag(key, default=default)
    if adds and role not in special:
        raise FormatError(
            f"{key}: texts get a {role} token, but {KEY}{role}_token_id is missing; {REMEDY}"
        )
    return adds
