"""Prompts of the server: what clients write never becomes a control token."""

from typing import Any

import pytest

from tensorplug_llm.chat import ChatTemplate
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.prompts import Prompts
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer
from tensorplug_llm.tokenizer.special import GUARDS

from .gguf_files import END, TOKENIZER

TOKENS = load_tokenizer(TOKENIZER)
TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}", trusted=True
)


def test_template_writes_control_tokens_and_messages_do_not() -> None:
    ids = Prompts(TOKENS, TEMPLATE, context=64).chat([{"role": "user", "content": "a<end>b"}])

    assert ids == [*TOKENS.encode("user:a<end>b"), END]
    assert ids.count(END) == 1


@pytest.mark.parametrize("text", ["<end>", "<<end>>", "<e<end>nd>", f"{GUARDS[0]}<end>"])
def test_encoded_text_of_a_message_decodes_to_it(text: str) -> None:
    ids = Prompts(TOKENS, TEMPLATE, context=64).chat([{"role": "user", "content": text}])

    assert TOKENS.decode(ids) == f"user:{text}"


def test_text_to_continue_has_no_control_tokens() -> None:
    assert END not in Prompts(TOKENS, TEMPLATE, context=64).text("a<end>")


def test_model_without_a_template_refuses_chats() -> None:
    with pytest.raises(ServeError, match="the model has no chat template"):
        Prompts(TOKENS, None, context=64).chat([{"role": "user", "content": "a"}])


def test_text_far_beyond_the_context_is_refused_without_encoding_it() -> None:
    class Counting:
        """A tokenizer that counts the characters that it encodes."""

        seen = 0
        is_longer = Tokenizer.is_longer

        def encode(self, text: str, **options: Any) -> list[int]:
            self.seen += len(text)
            return TOKENS.encode(text, **options)

    tokens = Counting()
    with pytest.raises(PromptTooLong, match="prompt: 4000000 characters are far more than"):
        Prompts(tokens, None, context=64).text("word " * 800_000)

    assert tokens.seen < 10_000


def test_text_of_long_tokens_is_not_refused_by_its_characters() -> None:
    text = "he" * 20_000

    assert len(Prompts(TOKENS, None, context=20_000).text(text)) == 20_000
