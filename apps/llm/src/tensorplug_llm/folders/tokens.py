"""tokenizer.json and what goes with it as metadata of a GGUF file."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug.errors import FormatError
from tensorplug.gguf.cursor import FETCH_AGAIN, quote
from tensorplug_llm.folders.cutting import (
    Cutting,
    byte_level,
    scored,
    sentence_pieces,
    unigrams,
    word_pieces,
)
from tensorplug_llm.folders.jsonfile import MOST, Fields, read_object
from tensorplug_llm.tokenizer.special import ENDINGS, ROLES, TokenType
from tensorplug_llm.tokenizer.vocabulary import KEY, SPECIAL_IDS

Stored = dict[str, Any]

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
ROLE_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
"""Roles of tokens, and the metadata that names them."""


@dataclass(slots=True)
class _Tokens:
    """Texts and types of all tokens, by id."""

    texts: list[str]
    types: list[int]
    ids: Mapping[str, int] = field(default_factory=dict)


def read_tokenizer(folder: Path, config: Fields, rows: int) -> Stored:
    """Metadata of the tokenizer for a table of `rows` embeddings. Raises FormatError."""
    file = Fields(read_object(folder / TOKENIZER), str(folder / TOKENIZER))
    model = file.section("model")
    cutting = _cutting(file, model)
    tokens = _read_tokens(file, model, rows)
    _mark_bytes_and_unknown(tokens, model, cutting)
    more = _optional(folder / TOKENIZER_CONFIG)
    special = _special(more, config, _optional(folder / GENERATION), tokens)
    added = _added(file, more, special, tokens)
    if cutting.model == "t5":
        special["unknown_token_id"] = model.values["unk_id"]
    if cutting.model == "bert":
        special |= _of_words(model, special, tokens)
    return {
        KEY + "model": cutting.model,
        KEY + "tokens": [cutting.written(text) for text in tokens.texts],
        KEY + "token_type": np.array(tokens.types, np.int32),
        **cutting.stored(tokens.texts),
        **added,
        **{KEY + key: id for key, id in special.items()},
        **_templates(folder, more),
    }


def _cutting(file: Fields, model: Fields) -> Cutting:
    """How text is cut. Raises FormatError."""
    kind = model.text("type", "BPE")
    if kind == "WordPiece":
        return word_pieces(file, model)
    unwanted = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    for key in unwanted:
        if model.values.get(key):
            raise model.error(key, "it is not supported; use a GGUF file of this model")
    has_bytes = model.flag("byte_fallback", default=False)
    if kind == "Unigram" and not has_bytes:
        return unigrams(file, model)
    if kind != "BPE":
        raise model.error(
            "type",
            "known are BPE, Unigram without bytes for unknown characters, and WordPiece; use a "
            "GGUF file of this model",
        )
    merges = _merges(model)
    return sentence_pieces(file, model, merges) if has_bytes else byte_level(file, model, merges)


def _optional(path: Path) -> Fields:
    return Fields(read_object(path) if path.exists() else {}, str(path))


def _read_tokens(file: Fields, model: Fields, rows: int) -> _Tokens:
    """The vocabulary and the tokens that were added to it, filled up to `rows`."""
    texts: dict[int, str] = {}
    types: dict[int, int] = {}
    is_list = model.text("type", "BPE") == "Unigram"
    vocabulary: Collection[tuple[str, object]] = (
        [(text, id) for id, (text, _) in enumerate(scored(model))]
        if is_list
        else model.section("vocab").values.items()
    )
    if not vocabulary:
        raise model.error("vocab", f"it is empty; {FETCH_AGAIN}")
    for text, value in vocabulary:
        id = _checked(model, "vocab", value, rows)
        if texts.setdefault(id, text) != text:
            raise FormatError(
                f"{model.what}: {quote(texts[id])} and {quote(text)} are both token {id}; "
                f"{FETCH_AGAIN}"
            )
    for added in file.sections("added_tokens"):
        text, id = added.text("content"), _checked(added, "id", added.values.get("id"), rows)
        if texts.setdefault(id, text) != text:
            raise added.error("id", f"in the vocabulary that is {quote(texts[id])}; {FETCH_AGAIN}")
        special = added.flag("special", default=False)
        types[id] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    try:
        "".join(texts.values()).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{file.what}: has a token that is not UTF-8; {FETCH_AGAIN}") from error
    known = set(texts.values())
    for id in range(max(rows, max(texts) + 1)):
        if id not in texts:
            texts[id] = _unused(id, known)
            types[id] = TokenType.UNUSED
    order = sorted(texts)
    return _Tokens(
        [texts[id] for id in order],
        [types.get(id, TokenType.NORMAL) for id in order],
        {text: id for id, text in texts.items()},
    )


def _checked(fields: Fields, key: str, id: object, rows: int) -> int:
    """`id`, if it is a row of the table of embeddings."""
    if type(id) is not int or not 0 <= id < rows:
        raise FormatError(
            f"{fields.what}: {quote(key)} has the token id {quote(id)}, and the embedding table "
            f"has {rows} rows; {FETCH_AGAIN}"
        )
    return id


def _unused(id: int, known: set[str]) -> str:
    """A text for a row of the table without a token, as converters to GGUF name it."""
    text = f"[PAD{id}]"
    while text in known:
        text += "_"
    return text


def _merges(model: Fields) -> list[tuple[str, str]]:
    """Pairs of tokens, in the order in which they are merged."""
    found = []
    for merge in model.array("merges"):
        if isinstance(merge, str):
            left, _, right = merge.partition(" ")
        elif isinstance(merge, list) and len(merge) == 2:
            left, right = merge
        else:
            left = right = ""
        if not (isinstance(left, str) and isinstance(right, str) and left and right):
            raise FormatError(
                f"{model.what}: merge {quote(merge)} is not a pair of tokens; {FETCH_AGAIN}"
            )
        found.append((left, right))
    return found


def _mark_bytes_and_unknown(tokens: _Tokens, model: Fields, cutting: Cutting) -> None:
    if cutting.model == "t5":
        unknown_id = model.values.get("unk_id")
        if type(unknown_id) is not int or not 0 <= unknown_id < len(tokens.types):
            raise model.error("unk_id", "the id of a token is needed")
        tokens.types[unknown_id] = TokenType.UNKNOWN
    if not cutting.has_bytes:
        return
    for id, text in enumerate(tokens.texts):
        if text[:3] == "<0x" and BYTE.fullmatch(text):
            tokens.types[id] = TokenType.BYTE
    unknown = model.text("unk_token", "")
    if unknown in tokens.ids:
        tokens.types[tokens.ids[unknown]] = TokenType.UNKNOWN


def _special(more: Fields, config: Fields, generation: Fields, tokens: _Tokens) -> dict[str, int]:
    """Ids of tokens with roles, by the names of their metadata."""
    found: dict[str, int] = {}
    for role, key in ROLE_KEYS.items():
        text = _content(more, f"{role}_token")
        ids = _ids(config, f"{role}_token_id", tokens) if role != "unk" else []
        if text in tokens.ids:
            found[key] = tokens.ids[text]
        elif ids:
            found[key] = ids[0]
    ends = [*_ids(generation, "eos_token_id", tokens), *_ids(config, "eos_token_id", tokens)]
    known = {*ENDINGS, *(text for texts in ROLES.values() for text in texts)}
    others = dict.fromkeys(
        id for id in ends if id != found.get("eos_token_id") and tokens.texts[id] not in known
    )
    # What else ends a generation, and is not known by its text.
    found |= dict(zip(("eot_token_id", "eom_token_id"), others, strict=False))
    return found


def _of_words(model: Fields, special: Mapping[str, int], tokens: _Tokens) -> dict[str, int]:
    """Ids of tokens that WordPiece needs. Raises FormatError."""
    unknown = tokens.ids.get(model.text("unk_token", "[UNK]"))
    if unknown is None or "eos_token_id" not in special:
        raise model.error("unk_token", "it and the tokens around a text must be tokens")
    return {
        "unknown_token_id": unknown,
        SPECIAL_IDS["separator"]: special["eos_token_id"],
    }


def _content(fields: Fields, key: str) -> str:
    """The text of a special token, which is a string or an object."""
    if isinstance(fields.values.get(key), dict):
        return fields.section(key).text("content")
    return fields.text(key, "")


def _ids(fields: Fields, key: str, tokens: _Tokens) -> list[int]:
    """A token id or several; those beyond the vocabulary are left out, as -1 in some configs."""
    value = fields.values.get(key)
    values = value if isinstance(value, list) else [value]
    for id in values:
        if id is not None and type(id) is not int:
            raise fields.error(key, "a token id is needed, or several")
    return [id for id in values if id is not None and 0 <= id < len(tokens.texts)]


def _added(file: Fields, more: Fields, special: dict[str, int], tokens: _Tokens) -> Stored:
    """Which tokens begin and end each text."""
    before, after = _template(file)
    begins = [tokens.ids.get(text) for text in before]
    ends = [tokens.ids.get(text) for text in after]
    if None in begins or None in ends or len(begins) > 1 or len(ends) > 1:
        raise file.error("post_processor", "at most one token before a text and one after it")
    if begins and begins[0] is not None:
        special["bos_token_id"] = begins[0]
    if ends and ends[0] is not None:
        special["eos_token_id"] = ends[0]
    if not file.has("post_processor") and "bos_token_id" in special:
        begins = [0] * more.flag("add_bos_token", default=False)
    return {KEY + "add_bos_token": bool(begins), KEY + "add_eos_token": bool(ends)}


def _template(file: Fields) -> tuple[list[str], list[str]]:
    """Tokens before and after a single text."""
    processor = file.section("post_processor")
    inner = processor.sections("processors") if processor.has("processors") else [processor]
    before: list[str] = []
    after: list[str] = []
    for step in inner:
        kind = step.text("type", "none")
        if kind == "TemplateProcessing":
            place = before
            for item in step.sections("single"):
                if item.has("Sequence"):
                    place = after
                else:
                    place.append(item.section("SpecialToken").text("id"))
        elif kind in ("BertProcessing", "RobertaProcessing"):
            before.append(_named(step, "cls"))
            after.append(_named(step, "sep"))
        elif kind not in ("none", "ByteLevel"):
            raise step.error("type", "known are ByteLevel and TemplateProcessing")
    return before, after


def _named(step: Fields, key: str) -> str:
    """The text of a token that is given with its id."""
    found = step.array(key)
    if not found or not isinstance(found[0], str):
        raise step.error(key, "the text of a token and its id are needed")
    return found[0]


def _templates(folder: Path, more: Fields) -> Stored:
    """Templates of conversations: one, or several with names."""
    key = "tokenizer.chat_template"
    path = folder / TEMPLATE
    if path.is_file():
        try:
            with path.open("rb") as file:
                return {key: file.read(MOST).decode()}
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: {error}; {FETCH_AGAIN}") from error
    if not isinstance(more.values.get("chat_template"), list):
        text = more.text("chat_template", "")
        return {key: text} if text else {}
    found = {}
    for entry in more.sections("chat_template"):
        name = entry.text("name")
        found[key if name == "default" else f"{key}.{name}"] = entry.text("template")
    return found
