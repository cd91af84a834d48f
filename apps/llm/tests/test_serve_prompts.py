"""Prompts of the server: what clients write never becomes a control token."""

import pytest

from tensorplug_llm.chat import GUARDS, ChatTemplate
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.prompts import Prompts
from tensorplug_llm.tokenizer import load_tokenizer

from .gguf_files import END, TOKENIZER

TOKENS = load_tokenizer(TOKENIZER)
TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}", trusted=True
)


def test_template_writes_control_tokens_and_messages_do_not() -> None:
    ids = Prompts(TOKENS, TEMPLATE).chat([{"role": "user", "content": "a<end>b"}])

    assert ids == [*TOKENS.encode("user:a<end>b"), END]
    assert ids.count(END) == 1


@pytest.mark.parametrize("text", ["<end>", "<<end>>", "<e<end>nd>", f"{GUARDS[0]}<end>"])
def test_encoded_text_of_a_message_decodes_to_it(text: str) -> None:
    ids = Prompts(TOKENS, TEMPLATE).chat([{"role": "user", "content": text}])

    assert TOKENS.decode(ids) == f"user:{text}"


def test_text_to_continue_has_no_control_tokens() -> None:
    assert END not in Prompts(TOKENS, TEMPLATE).text("a<end>")


def test_model_without_a_template_refuses_chats() -> None:
    with pytest.raises(ServeError, match="the model has no chat template"):
        Prompts(TOKENS, None).chat([{"role": "user", "content": "a"}])
