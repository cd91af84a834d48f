"""Chat templates: what they see, what they may do, how they fail."""

import signal
import sys
from typing import Any

import pytest

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import rendering
from tensorplug_llm.chat import ChatTemplate, encode_chat
from tensorplug_llm.confined import Confined
from tensorplug_llm.tokenizer import load_tokenizer

from .gguf_files import END, TOKENIZER

CHATML = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def trusted(source: str) -> ChatTemplate:
    """A template that runs in this process."""
    return ChatTemplate(source, trusted=True)


@pytest.mark.parametrize(
    ("generation_prompt", "end"), [(True, "<|im_start|>assistant\n"), (False, "")]
)
def test_a_conversation_becomes_a_prompt(generation_prompt: bool, end: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi"}]

    prompt = trusted(CHATML).render(messages, add_generation_prompt=generation_prompt)

    assert prompt == (
        f"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n{end}"
    )


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{% if true %}\n  yes\n  {% endif %}\nno", "  yes\nno"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hello"}'),
        ("{{ {'a': \"<é>'\"} | tojson(indent=1) }}", '{\n "a": "<é>\'"\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ 'marked' }}{% endgeneration %}", "marked"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ unheard_of }}", ""),
        ("{{ topic }}", "tea"),
        ("{{ messages[0]['content'].split('l')[0] }}", "He"),
    ],
)
def test_templates_find_what_the_models_of_others_expect(template: str, prompt: str) -> None:
    rendered = trusted(template).render(HELLO, bos="<s>", eos="</s>", variables={"topic": "tea"})

    assert rendered == prompt


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.chat_template": " "}])
def test_a_model_without_a_template_is_told_apart(metadata: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as error:
        ChatTemplate.from_metadata(metadata)

    assert str(error.value) == (
        "tokenizer.chat_template: the model has no chat template; it was not trained on "
        "conversations, so give it a plain prompt"
    )


def test_the_template_of_a_model_is_found_in_its_metadata() -> None:
    template = ChatTemplate.from_metadata({"tokenizer.chat_template": "{{ bos_token }}"})

    assert template.render(HELLO, bos="<s>") == "<s>"


BROKEN = "the model's template is broken, so give a plain prompt"
FAILS = "fails on these messages: "


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (
            "\n{{ messages",
            "line 2: \"unexpected end of template, expected 'end of print statement'.\"; ",
        ),
        ("{% frob %}", "line 1: \"Encountered unknown tag 'frob'.\"; "),
        ("{{ messages[0].none.at_all }}", None),
        ("{{ 1 / 0 }}", f"{FAILS}ZeroDivisionError 'division by zero'; "),
        ("{{ range(10000000) }}", None),
        ("{{ ''.__class__.__mro__ }}", None),
        ("{{ messages.append(1) }}", None),
        ("{% include 'secret' %}", None),
        ("{{ '%s' | tojson }}{{ messages | tojson(nonsense=1) }}", None),
        ("(" * 3 + "{{ " + "(" * 400 + "1" + ")" * 400 + " }}", None),
    ],
)
def test_a_broken_or_forbidden_template_is_named(template: str, sentence: str | None) -> None:
    with pytest.raises(FormatError) as error:
        trusted(template).render(HELLO)

    assert str(error.value).startswith(f"tokenizer.chat_template: {sentence or ''}")
    assert str(error.value).endswith(BROKEN)


def test_a_template_may_refuse_messages() -> None:
    template = trusted("{{ raise_exception('Roles must alternate') }}")

    with pytest.raises(OptionError) as error:
        template.render(HELLO)

    assert str(error.value) == (
        "tokenizer.chat_template: refuses these messages: 'Roles must alternate'; change their "
        "roles or order"
    )


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        ({}, "[]"),
        ({"role": "user"}, "['role']"),
        ({"role": 1, "content": ""}, "['content', 'role']"),
    ],
)
def test_messages_need_a_role_and_a_content(message: dict[str, Any], keys: str) -> None:
    with pytest.raises(OptionError) as error:
        trusted(CHATML).render([*HELLO, message])

    assert str(error.value) == (
        f"chat: message 2 has the keys {keys}; give it a role, such as 'user', and a content"
    )


@pytest.mark.parametrize("template", ["{{ bos_token }}a", "a"])
@pytest.mark.parametrize(("add_bos", "ids"), [(True, [1, 3]), (False, None)])
def test_a_conversation_begins_with_one_bos_token_at_most(
    template: str, add_bos: bool, ids: list[int] | None
) -> None:
    tokenizer = load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
            "tokenizer.ggml.token_type": [2, 3, 3, 1],
            "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    as_the_template_says = [1, 3] if "bos" in template else [3]

    assert encode_chat(tokenizer, trusted(template), HELLO) == (ids or as_the_template_says)


def test_control_tokens_in_a_message_stay_text() -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    template = trusted("{{ messages[0].content }}<end>")

    ids = encode_chat(tokenizer, template, [{"role": "user", "content": "a<end>"}])

    assert ids == [*tokenizer.encode("a<end>"), END]


def test_a_template_finds_names_that_a_file_calls_control_tokens() -> None:
    names = ["messages", "variables", "role", "content", "said"]
    tokenizer = load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", *names, "a", "b"],
            "tokenizer.ggml.scores": [0.0] * 8,
            "tokenizer.ggml.token_type": [2, *[3] * len(names), 1, 1],
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    template = trusted("{{ messages[0].content }}{{ said }}")

    ids = encode_chat(
        tokenizer, template, [{"role": "user", "content": "a"}], variables={"said": "b"}
    )

    assert ids == [6, 7]


# --- templates that are not trusted --------------------------------------------------------------

LIMITS = (
    "tokenizer.chat_template: takes more than 2 s or 512 MiB on these messages; the model's "
    "template is broken or malicious, so give a plain prompt"
)
NO_MEMORY = f"tokenizer.chat_template: {FAILS}MemoryError; {BROKEN}"


def test_a_template_gives_the_same_in_a_process_of_its_own() -> None:
    template = "{{ messages[0] | tojson }}{{ bos_token }}\u2028é\x1b{{ 'a\\r\\nb' }}"

    own, here = (ChatTemplate(template, trusted=t).render(HELLO, bos="<s>") for t in (False, True))

    assert own == here == '{"role": "user", "content": "Hello"}<s>\u2028é\x1ba\r\nb'


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        pytest.param("{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2, LIMITS, id="loops"),
        pytest.param("{{ 'a' * 10**9 }}", NO_MEMORY, id="product"),
        pytest.param("{{ '%3000000000d' % 1 }}", NO_MEMORY, id="format"),
        pytest.param(
            "{{ 1 | tojson(indent=3000000000) }}{{ [1] | tojson(indent=3000000000) }}",
            NO_MEMORY,
            id="filter",
        ),
        pytest.param(
            "{{ 'a' * 2**25 }}",
            f"tokenizer.chat_template: {FAILS}its prompt has 33554432 characters, and 16777216 are "
            f"allowed; {BROKEN}",
            id="output",
        ),
    ],
)
def test_a_template_without_end_or_bounds_is_an_error(template: str, sentence: str) -> None:
    with pytest.raises(FormatError) as error:
        ChatTemplate(template).render(HELLO)

    assert str(error.value) == sentence


@pytest.mark.long
def test_template_renders_again_after_it_reached_a_limit() -> None:
    template = ChatTemplate("{% for i in range(messages[0].content) %}" * 2 + "a{% endfor %}" * 2)
    many, few = ([{"role": "user", "content": n}] for n in (99999, 2))

    with pytest.raises(FormatError):
        template.render(many)

    assert template.render(few) == "aaaaaa"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_template_renders_again_after_an_interrupt_of_its_process() -> None:
    confined = Confined(rendering.__file__)
    request = {"source": "{{ 1 + 1 }}", "values": {}}
    first = confined.answer(request)
    assert confined._process is not None

    confined._process._process.send_signal(signal.SIGINT)

    assert confined.answer(request) == first


def test_what_a_template_raises_holds_no_control_characters() -> None:
    with pytest.raises(OptionError) as error:
        ChatTemplate("{{ raise_exception('\x1b]0;owned\x07') }}").render(HELLO)

    assert str(error.value) == (
        "tokenizer.chat_template: refuses these messages: '\\x1b]0;owned\\x07'; change their "
        "roles or order"
    )


def test_messages_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(OptionError) as error:
        trusted(CHATML).render([{"role": "user", "content": object()}])

    assert str(error.value) == (
        "chat: messages and variables must be plain data that JSON can hold, and Object of type "
        "object is not JSON serializable; give texts, numbers, lists and dictionaries"
    )


def test_answer_of_an_interrupted_request_is_not_that_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")

    def interrupted(process: Any, request: str) -> str:
        process._process.stdin.write(f"{request}\n")
        process._process.stdin.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tensorplug_llm.confined._Process.ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            template.render([{"role": "user", "content": "first"}])

    assert template.render([{"role": "user", "content": "second"}]) == "second"
