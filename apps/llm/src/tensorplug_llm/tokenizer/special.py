"""Special tokens: which texts mark them, which end a generation, how they are cut out of a text.

The tables and the order of the steps are llama.cpp's (0.5.0-dev, `llama-vocab.cpp`), so that token
ids and the end of a generation agree with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property

import numpy as np

from tensorplug.errors import OptionError
from tensorplug_llm.tokenizer.fields import Ints

GUARDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Noncharacters of Unicode, which no text has a use for."""


def unused(text: str) -> str:
    """A noncharacter that a text does not have. Raises OptionError."""
    for guard in GUARDS:
        if guard not in text and ascii(guard)[1:-1] not in text:
            return guard
    raise OptionError("chat: the messages have all noncharacters of Unicode; leave one out")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; other numbers count as UNDEFINED."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


ROLES: Mapping[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001  the bars are DeepSeek's spelling
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",  # noqa: RUF001  the bars are DeepSeek's spelling
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",  # noqa: RUF001  the bars are DeepSeek's spelling
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",  # noqa: RUF001  the bars are DeepSeek's spelling
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Roles whose token is known by its text where the metadata does not name it."""

ENDING_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

ENDINGS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001  the bars are DeepSeek's spelling
    "[e~[",
)
"""Texts that end a generation wherever a vocabulary has them."""

CHANNELS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Parts of a reply, not ends of it: user-defined whatever the file says."""

HARMONY_ENDS = (
    frozenset({"<|return|>", "<|call|>"}),
    frozenset({"<|return|>", "<|calls|>"}),
    frozenset({"<|flush|>", "<|call|>"}),
    frozenset({"<|flush|>", "<|calls|>"}),
)
"""In a vocabulary with any of these pairs `<|end|>` ends a channel and not the reply."""

PLAIN_S_MARKERS = frozenset({"<|tool_response>", "<|plamo:eos|>"})
"""In a vocabulary with any of these `</s>` is HTML and not the end of a reply."""


def find_ends(ids: Mapping[str, int], types: Ints, given: Mapping[str, int]) -> frozenset[int]:
    """Return the ids that end a generation, and correct `types` where known texts demand it.

    `given` maps roles to the ids that the metadata names.
    """
    roles = dict(given)
    for role, texts in ROLES.items():
        found = next((ids[text] for text in texts if text in ids), None)
        if role not in roles and found is not None:
            roles[role] = found
            types[found] = TokenType.CONTROL
    ends = {roles[role] for role in ENDING_ROLES if role in roles}
    for text in ENDINGS:
        if text in ids:
            ends.add(ids[text])
            types[ids[text]] = TokenType.CONTROL
    for text in CHANNELS:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    return frozenset(ends - _no_ends(ids, types, ends))


def _no_ends(ids: Mapping[str, int], types: Ints, ends: set[int]) -> set[int]:
    present = {text for text in {*ENDINGS, *PLAIN_S_MARKERS} if ids.get(text) in ends}
    taken_back = set()
    if "<|end|>" in present and any(pair <= present for pair in HARMONY_ENDS):
        taken_back.add(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in present and PLAIN_S_MARKERS & present:
        taken_back.add(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return taken_back


Groups = dict[str, list[tuple[str, int]]]
"""Tokens and their ids by the texts that they begin with."""

PREFIX = 4
"""Characters: enough to pass over thousands of `<unused...>` with one search."""


HOLE = "\ud800"
"""Takes the place of text that was cut out; no text and no token holds this lone surrogate."""


class Cutter:
    """Cuts special tokens out of a text: the longest first, each from left to right."""

    def __init__(self, tokens: Sequence[str], types: Ints) -> None:
        self._tokens = tokens
        self._types = types

    def cut(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Return ids of special tokens and the non-empty texts between them.

        User-defined tokens are always cut; control and unknown tokens with `parse_special` only.
        """
        groups = self._all if parse_special else self._user_defined
        fragments: list[str | int] = []
        done = 0
        for start, end, id in _places(text, sorted(_present(groups, text), key=_longest_first)):
            if done < start:
                fragments.append(text[done:start])
            fragments.append(id)
            done = end
        if done < len(text):
            fragments.append(text[done:])
        return fragments

    def guarded(self, text: str, guard: str) -> str:
        """Put `guard` behind the first character of each text of a control or unknown token."""
        for token, _ in _present(self._control, text):
            text = text.replace(token, token[0] + guard + token[1:])
        return text

    @cached_property
    def _control(self) -> Groups:
        return self._grouped(TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def _user_defined(self) -> Groups:
        return self._grouped(TokenType.USER_DEFINED)

    @cached_property
    def _all(self) -> Groups:
        return self._grouped(TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)

    def _grouped(self, *types: TokenType) -> Groups:
        groups: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for id in np.flatnonzero(np.isin(self._types, types)).tolist():
            token = self._tokens[id]
            groups[token[:PREFIX]].append((token, id))
        return groups


def _present(groups: Groups, text: str) -> list[tuple[str, int]]:
    """The tokens that a text has."""
    return [
        token
        for prefix, group in groups.items()
        if prefix in text
        for token in group
        if token[0] in text
    ]


def _longest_first(token: tuple[str, int]) -> int:
    return -len(token[0].encode(errors="surrogateescape"))


def _places(text: str, tokens: Iterable[tuple[str, int]]) -> list[tuple[int, int, int]]:
    """Return start, end and id of every token, the first of `tokens` where some overlap."""
    places = []
    for token, id in tokens:
        start = text.find(token)
        while start >= 0:
            end = start + len(token)
            places.append((start, end, id))
            start = text.find(token, end)
        text = text.replace(token, HOLE * len(token))
    return sorted(places)
