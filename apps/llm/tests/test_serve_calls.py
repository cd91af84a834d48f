"""Calls of tools: what is found in answers, and what forced answers may say, by family."""

import itertools
import json
import random
from typing import Any

import pytest

from tensorplug.errors import TensorplugError
from tensorplug_llm.chat import ChatTemplate
from tensorplug_llm.sampling import SamplingParams
from tensorplug_llm.sampling.grammar import Grammars
from tensorplug_llm.serve import requests
from tensorplug_llm.serve.calls import Call, CallReader
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.forms import LineForm, form_of
from tensorplug_llm.serve.prompts import Prompts
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer

from .gguf_files import BYTES, TOKENIZER
from .tool_templates import FAMILIES, HERMES, Family

USER = {"role": "user", "content": "Weather?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Rome", "Oslo"]},
                "days": {"type": "integer"},
                "hot": {"type": "boolean"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
DIGIT = {"digit": {"enum": ["5", "7"], "type": "string"}}
TIME = {"type": "function", "function": {"name": "time"}}
TWO = [Call("weather", '{"city": "Rome"}'), Call("weather", '{"city": "Oslo"}')]
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def chat(**values: Any) -> requests.ChatRequest:
    return requests.chat_request({"messages": [USER], "tools": [WEATHER, TIME], **values})


def tokenizer_of(family: Family) -> Tokenizer:
    """Single bytes, and the control tokens of a family."""
    tokens = [*BYTES, "he", "<end>", *family.control]
    types = [1] * (len(BYTES) + 1) + [3] * (1 + len(family.control))
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return load_tokenizer({**TOKENIZER, **changed})


def prompts_of(family: Family) -> Prompts:
    return Prompts(tokenizer_of(family), ChatTemplate(family.template, trusted=True), context=64)


def parted(reader: CallReader, pieces: list[str]) -> tuple[str, list[Call]]:
    """All that is said and called in a text that comes in pieces."""
    said, calls = "", []
    for more_said, more_calls in [*map(reader.feed, pieces), reader.finish()]:
        said += more_said
        calls += more_calls
    return said, calls


def reader_of(template: str, **options: bool) -> CallReader:
    form = form_of(template)
    assert form is not None
    parameters = {
        "s": {"type": "string"},
        "o": {"type": ["string", "null"]},
        "n": {},
        "a": {"anyOf": [{"$ref": "#/$defs/digit"}, {"type": "null"}]},
        "e": {"enum": ["5", 6, None]},
        "l": {"oneOf": [{"type": "string"}, {"type": "array"}]},
    }
    tools = {
        "weather": WEATHER["function"]["parameters"],
        "time": {"properties": parameters, "$defs": DIGIT},
    }
    return CallReader(form, tools, **options)


@every_family
def test_calls_are_found_however_the_answer_is_cut(family: Family) -> None:
    rng = random.Random(0)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(family.answer)), k=rng.randint(0, 30)))
        places = [0, *cuts, len(family.answer)]
        pieces = [family.answer[a:b] for a, b in itertools.pairwise(places)]

        assert parted(reader_of(family.template), pieces) == ("", TWO), pieces


@every_family
def test_half_of_a_call_stays_text(family: Family) -> None:
    half = family.answer[: family.answer.index("Rome")]

    assert parted(reader_of(family.template), list(half)) == (half, [])


@every_family
def test_answer_without_a_call_is_said_as_it_is(family: Family) -> None:
    text = " It rains [in Rome], <b> {not} in <tool>Oslo </tool>.\n"

    assert parted(reader_of(family.template), list(text)) == (text, [])


@every_family
def test_call_of_an_unknown_function_stays_text(family: Family) -> None:
    text = family.answer.replace("weather", "strange")

    assert parted(reader_of(family.template), [text])[1] == []


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (HERMES, 'Let me look.\n<tool_call>{"name": "time"}</tool_call>'),
        (FAMILIES["mistral"].template, 'Let me look. [TOOL_CALLS][{"name": "time"}]'),
        (
            FAMILIES["gemma"].template,
            "Let me look.<start_function_call>call:time{}<end_function_call>",
        ),
    ],
)
def test_text_before_a_call_is_said(template: str, text: str) -> None:
    assert parted(reader_of(template), list(text)) == ("Let me look.", [Call("time", "{}")])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("{}", {}),
        ("{n:3,ok:true}", {"n": 3, "ok": True}),
        ("{a:<escape>x,{y:z}<escape>,b:[1,2]}", {"a": "x,{y:z}", "b": [1, 2]}),
        ('{o:{k:<escape>"<escape>}}', {"o": {"k": '"'}}),
    ],
)
def test_notation_of_function_gemma_becomes_json(body: str, arguments: Any) -> None:
    text = f"<start_function_call>call:time{body}<end_function_call>"

    _, (call,) = parted(reader_of(FAMILIES["gemma"].template), [text])

    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("[time()]", {}),
        ("time(a=-3, b=True, c=null, d=[1.5, {'k': \"it's\"}])", None),
        ("[time(a='x)]', b=\"[\")]", {"a": "x)]", "b": "["}),
        ("[time(from='x', user-id=1)]", {"from": "x", "user-id": 1}),
        (
            r'[time(a="\/tmp", b="\ud83d\ude00", c="\x41")]',
            {"a": "/tmp", "b": "\U0001f600", "c": "A"},
        ),
        (r'[time(a="\ud83d")]', {"a": "\ud83d"}),
    ],
)
def test_calls_of_python_become_json(body: str, arguments: Any) -> None:
    text = f"<|tool_call_start|>{body}<|tool_call_end|>"

    _, (call,) = parted(reader_of(FAMILIES["lfm2"].template), [text])

    expected = {"a": -3, "b": True, "c": None, "d": [1.5, {"k": "it's"}]}
    assert json.loads(call.arguments.encode()) == (expected if arguments is None else arguments)


@pytest.mark.parametrize(
    "body",
    [
        *("time", "time(1)", "time(a=b)", "time(**{})", "time(a=1e999)", "a.time()", "[]", "time("),
        *("time(a=f'{1}')", "[" * 5000, "time(a=2j)", "time(a=time())", "time(a=...)"),
        *("time(a=1, a=2)", f"time(a=0x{'f' * 4000})", "time#\n(a=1)"),
    ],
)
def test_python_that_is_no_call_of_constants_stays_text(body: str) -> None:
    text = f"<|tool_call_start|>{body}<|tool_call_end|>"

    assert parted(reader_of(FAMILIES["lfm2"].template), [text]) == (text, [])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("time", {}),
        ("time\n", {}),
        (" time <arg_key>n</arg_key> <arg_value>[1, {}]</arg_value> ", {"n": [1, {}]}),
        ("time<arg_key>s</arg_key><arg_value>0.10</arg_value>", {"s": "0.10"}),
        ("time<arg_key>s</arg_key><arg_value>null</arg_value>", {"s": "null"}),
        ("time<arg_key>o</arg_key><arg_value>null</arg_value>", {"o": None}),
        ("time<arg_key>o</arg_key><arg_value>7</arg_value>", {"o": "7"}),
        ("time<arg_key>n</arg_key><arg_value>a <b>\n{c</arg_value>", {"n": "a <b>\n{c"}),
        ("time<arg_key>n</arg_key><arg_value>NaN</arg_value>", {"n": "NaN"}),
        ("time<arg_key>n</arg_key><arg_value></arg_value>", {"n": ""}),
        ("time<arg_key>a</arg_key><arg_value>7</arg_value>", {"a": "7"}),
        ("time<arg_key>a</arg_key><arg_value>null</arg_value>", {"a": None}),
        ("time<arg_key>e</arg_key><arg_value>5</arg_value>", {"e": "5"}),
        ("time<arg_key>e</arg_key><arg_value>6</arg_value>", {"e": 6}),
        ("time<arg_key>e</arg_key><arg_value>null</arg_value>", {"e": None}),
        ('time<arg_key>l</arg_key><arg_value>["7"]</arg_value>', {"l": ["7"]}),
        ("time<arg_key>l</arg_key><arg_value>7</arg_value>", {"l": "7"}),
        (
            "time<arg_key>x</arg_key><arg_value>true</arg_value>\n"
            "<arg_key>n</arg_key><arg_value>7</arg_value>",
            {"x": True, "n": 7},
        ),
    ],
)
def test_arguments_of_glm_have_the_types_of_their_schema(body: str, arguments: Any) -> None:
    text = f"<tool_call>{body}</tool_call>"

    _, (call,) = parted(reader_of(FAMILIES["glm"].template), list(text))

    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\ntime\n{}", ("", [Call("time", "{}")])),
        ("I look.\n<|assistant|>time\n{}", ("I look.", [Call("time", "{}")])),
        ("time", ("time", [])),
        ("timely\n{}", ("timely\n{}", [])),
        ("time\nflies", ("time\nflies", [])),
        ("It is time\n{}", ("It is time\n{}", [])),
        ("other\n{}", ("other\n{}", [])),
    ],
)
def test_name_in_the_first_line_of_an_answer_of_glm_begins_a_call(
    text: str, found: tuple[str, list[Call]]
) -> None:
    template = FAMILIES["lines"].template

    assert parted(reader_of(template), [text]) == found
    assert parted(reader_of(template), list(text)) == found


def test_earlier_calls_and_results_are_told_as_glm_knows_them() -> None:
    form = form_of(FAMILIES["lines"].template)
    assert isinstance(form, LineForm)
    call = {"id": "a", "function": {"name": "time", "arguments": {"n": 1}}}
    asked = {"role": "assistant", "content": "I look.", "tool_calls": [call]}

    found = [*form.told([USER, asked, {"role": "tool", "content": "Noon."}])]

    assert found == [
        USER,
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "metadata": "time", "content": '{"n": 1}'},
        {"role": "observation", "content": "Noon."},
    ]


@pytest.mark.parametrize(
    "body",
    [
        *("", "two words", '{"name": "time"}', "time<arg_key>n</arg_key>"),
        *("time<arg_value>1</arg_value>", "time<arg_key>n<arg_value>1</arg_value>"),
    ],
)
def test_text_between_the_marks_of_glm_that_is_no_call_stays_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"

    assert parted(reader_of(FAMILIES["glm"].template), [text]) == (text, [])


def test_many_arguments_of_glm_before_a_wrong_one_are_read_once() -> None:
    pair = "<arg_key>n</arg_key><arg_value>1</arg_value>"
    text = f"<tool_call>time{pair * 5000}<arg_key></tool_call>"

    assert parted(reader_of(FAMILIES["glm"].template), [text]) == (text, [])


def test_number_that_json_has_not_is_no_argument() -> None:
    text = '<tool_call>{"name": "time", "arguments": {"n": Infinity}}</tool_call>'

    assert parted(reader_of(HERMES), [text]) == (text, [])


@pytest.mark.parametrize(
    "head",
    [
        *("<|channel|>commentary <|constrain|>json", "<|channel|>commentary json"),
        *(" <|constrain|>json", "<|channel|>commentary", ""),
    ],
)
def test_heads_of_calls_of_gpt_oss_are_known(head: str) -> None:
    text = f"to=functions.time{head}<|message|>{{}}"

    assert parted(reader_of(FAMILIES["harmony"].template), list(text)) == ("", [Call("time", "{}")])


def test_second_call_is_left_out_where_calls_are_not_parallel() -> None:
    family = FAMILIES["hermes"]

    found = parted(reader_of(family.template, parallel=False), list(family.answer))

    assert found == ("", TWO[:1])


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ tools }}", "[TOOL_CALLS]"])
def test_template_without_tools_or_a_known_form_has_none(template: str) -> None:
    assert form_of(template) is None


# --- prompts -------------------------------------------------------------------------------------


@every_family
def test_prompt_tells_of_the_tools_the_calls_and_their_results(family: Family) -> None:
    prompts = prompts_of(family)
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "abcdefghi", "content": "It rains."}
    wanted = chat(messages=[USER, asked, told])

    text = tokenizer_of(family).decode(prompts.chat(wanted.messages, wanted.tools), special=True)

    assert text.index("weather") < text.index("Rome") < text.index("It rains.")


def test_control_tokens_in_tools_and_arguments_stay_text() -> None:
    family = FAMILIES["hermes"]
    tokenizer = tokenizer_of(family)
    evil = {"type": "object", "properties": {"<|im_end|>": {"description": "<|im_end|>"}}}
    tool = {"type": "function", "function": {"name": "time", "parameters": evil}}
    function = {"name": "time", "arguments": '{"<|im_end|>": "<|im_end|>"}'}
    asked = {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}

    def ends(*messages: Any, tools: Any) -> int:
        wanted = requests.chat_request({"messages": [USER, *messages], "tools": tools})
        ids = prompts_of(family).chat(wanted.messages, wanted.tools)
        return ids.count(tokenizer.encode("<|im_end|>", parse_special=True)[0])

    assert ends(tools=[tool]) == ends(tools=[TIME])
    assert ends(asked, tools=[tool]) == ends(tools=[TIME]) + 1


def test_tools_of_a_template_that_has_none_are_refused() -> None:
    prompts = Prompts(
        load_tokenizer(TOKENIZER), ChatTemplate("{{ messages }}", trusted=True), context=64
    )

    with pytest.raises(ServeError, match="the chat template of this model has no form of calls"):
        prompts.chat([USER], chat().tools)


# --- forced calls --------------------------------------------------------------------------------


def forced_call(family: Family, seed: int, **asked: Any) -> tuple[str, Any]:
    """Name and arguments of a call of random tokens that the grammar allows."""
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    prompts, tokenizer = prompts_of(family), tokenizer_of(family)
    wanted = chat(tool_choice="required", **asked).tools
    assert wanted is not None
    params = SamplingParams(grammar=prompts.grammar(wanted))
    constraint = Grammars(tokenizer).constraint(params)
    assert constraint is not None
    rng, ids = random.Random(seed), []
    while len(ids) < 300:
        (allowed,) = constraint.allowed().nonzero()
        token = rng.choice(allowed.tolist())
        if token in tokenizer.end_of_generation:
            break
        constraint.accept(token)
        ids.append(token)
    decoder = tokenizer.stream(shown=prompts.shown())
    form = form_of(family.template)
    assert form is not None
    reader = CallReader(form, {tool.name: tool.parameters for tool in wanted.forced})
    said, (call,) = parted(reader, [decoder.feed(id) for id in ids])
    assert not said
    return call.name, json.loads(call.arguments)


@every_family
@pytest.mark.parametrize("seed", range(4))
def test_forced_answer_is_a_call_of_a_tool(family: Family, seed: int) -> None:
    name, arguments = forced_call(family, seed)

    assert arguments == {} if name == "time" else arguments["city"] in ("Rome", "Oslo")


@every_family
@pytest.mark.parametrize("place", ["$defs", "definitions"])
def test_schemas_of_forced_arguments_may_refer_to_definitions(family: Family, place: str) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city": {"$ref": f"#/{place}/town"},
            "others": {"type": "array", "items": {"$ref": f"#/{place}/city"}, "maxItems": 2},
        },
        "required": ["city"],
        "additionalProperties": False,
        place: {
            "town": {"$ref": f"#/{place}/city"},
            "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        },
    }
    function = {"name": "weather", "parameters": parameters}

    _, arguments = forced_call(family, 1, tools=[{"type": "function", "function": function}])

    assert arguments["city"] in ("Rome", "Oslo")


DIGITS = {
    "list of types": ({"type": ["string", "null"], "enum": ["5", "7", None]}, ["5", "7", None]),
    "reference": ({"anyOf": [{"$ref": "#/$defs/digit"}, {"type": "null"}]}, ["5", "7", None]),
    "options": ({"enum": ["5", 6, None, True]}, ["5", 6, None, True]),
    "options of a type": ({"enum": ["5", None], "type": "string"}, ["5"]),
    "constants": ({"oneOf": [{"const": "5"}, {"const": 6}]}, ["5", 6]),
}


@pytest.mark.parametrize("family", ["gemma", "glm", "lfm2"])
@pytest.mark.parametrize(("schema", "options"), DIGITS.values(), ids=DIGITS)
def test_forced_arguments_are_options_of_their_kind(
    family: str, schema: Any, options: list[Any]
) -> None:
    properties = {"a": schema}
    parameters = {"type": "object", "properties": properties, "required": ["a"], "$defs": DIGIT}
    function = {"name": "time", "parameters": parameters | {"additionalProperties": False}}
    tools = [{"type": "function", "function": function}]

    made = [forced_call(FAMILIES[family], seed, tools=tools)[1]["a"] for seed in range(6)]

    kinds = {(type(option), option) for option in options}
    assert {(type(value), value) for value in made} <= kinds
    assert len(set(map(str, made))) > 1 or len(options) == 1


def test_definitions_repeated_for_many_arguments_are_refused() -> None:
    family = FAMILIES["glm"]
    properties = {f"a{i}": {"items": {"$ref": "#/$defs/digit"}} for i in range(100)}
    parameters = {"properties": properties, "$defs": {**DIGIT, "long": {"title": "x" * 20_000}}}
    function = {"name": "time", "parameters": parameters}
    tools = chat(tools=[{"type": "function", "function": function}], tool_choice="required").tools
    assert tools is not None

    with pytest.raises(ServeError, match="definitions of 20083 characters and 100 arguments"):
        prompts_of(family).grammar(tools)


@every_family
def test_forced_integers_that_come_out_as_others_are_refused(family: Family) -> None:
    function = {"name": "f", "parameters": {"properties": {"n": {"const": 2**53 + 1}}}}
    tools = chat(tools=[{"type": "function", "function": function}], tool_choice="required").tools
    assert tools is not None

    with pytest.raises(ServeError, match=r"^tools: function f has the integer 9007199254740993,"):
        prompts_of(family).grammar(tools)


@pytest.mark.parametrize("kind", [{}, {"type": ["object", "null"]}], ids=str)
def test_forced_arguments_are_an_object(kind: Any) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    family = FAMILIES["hermes"]
    function = {"name": "f", "parameters": {**kind, "properties": {}}}
    tools = chat(tools=[{"type": "function", "function": function}], tool_choice="required").tools
    assert tools is not None
    tokenizer = tokenizer_of(family)
    params = SamplingParams(grammar=prompts_of(family).grammar(tools))

    def fits(arguments: str) -> bool:
        constraint = Grammars(tokenizer).constraint(params)
        assert constraint is not None
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}'
        for token in tokenizer.encode(text, parse_special=True):
            if not constraint.allowed()[token]:
                return False
            constraint.accept(token)
        return True

    assert (fits("{"), fits("1"), fits("null")) == (True, False, False)


@every_family
@pytest.mark.parametrize("required", [None, 7, "days"], ids=repr)
def test_function_whose_schema_has_no_list_of_required_arguments_is_forced(
    family: Family, required: Any
) -> None:
    parameters = {**WEATHER["function"]["parameters"], "required": required}
    function = {**WEATHER["function"], "parameters": parameters}
    tools = chat(tools=[{"type": "function", "function": function}], tool_choice="required").tools
    assert tools is not None

    assert prompts_of(family).grammar(tools)


def test_named_function_is_the_only_one_that_is_forced() -> None:
    choice = {"type": "function", "function": {"name": "time"}}

    tools = chat(tool_choice=choice).tools

    assert tools is not None
    assert [tool.name for tool in tools.forced] == ["time"]


@pytest.mark.parametrize(("choice", "forced"), [("auto", 0), (None, 0), ("required", 2)])
def test_choice_says_how_many_functions_are_forced(choice: Any, forced: int) -> None:
    tools = chat(tool_choice=choice).tools

    assert tools is not None
    assert len(tools.forced) == forced


def test_tools_without_a_choice_to_call_are_left_out() -> None:
    assert chat(tool_choice="none").tools is None
    assert requests.chat_request({"messages": [USER], "tool_choice": "auto"}).tools is None


CALL = {"id": "a", "function": {"name": "time", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tools": {}}, "tools: is empty; give a list of functions"),
        ({"tools": [TIME] * 2}, "tools: has two functions of one name; rename one"),
        ({"tools": [TIME] * 129}, "tools: has 129 functions; 128 are allowed"),
        ({"tools": [{"type": "code"}]}, "tools[0].type: is 'code'; give function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name: is 'a b'; give up to 64 letters, digits, _ or -",
        ),
        (
            {"tools": [], "tool_choice": "required"},
            "tool_choice: is there without tools; give tools",
        ),
        (
            {"tool_choice": "always"},
            "tool_choice: is 'always'; give none, auto, required or a function's name",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice: names 'x'; choose one of the tools",
        ),
        (
            {"response_format": {"type": "json_object"}},
            "response_format: is there with tools, which have forms of their own; leave one",
        ),
        (
            {"messages": [{"role": "tool", "content": "", "tool_call_id": "a"}]},
            "messages[0].tool_call_id: is 'a', which no message before it called; send the "
            "assistant's message with its tool_calls too",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"id": None}]}]},
            "messages[0].tool_calls[0].id: is missing; send it",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": "no"}]},
            "messages[0].tool_calls: is a text; give a list of calls",
        ),
    ],
)
def test_wrong_tools_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ServeError) as caught:
        chat(**values)

    assert str(caught.value) == message


def test_schema_of_a_tool_that_nothing_follows_is_refused() -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    family = FAMILIES["hermes"]
    strange = {"type": "function", "function": {"name": "f", "parameters": {"type": "strange"}}}
    tools = chat(tools=[strange], tool_choice="required").tools
    assert tools is not None
    params = SamplingParams(grammar=prompts_of(family).grammar(tools))

    with pytest.raises(TensorplugError, match="grammar: "):
        Grammars(tokenizer_of(family)).constraint(params)
