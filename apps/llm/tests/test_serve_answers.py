"""Answers of the server as JSON."""

from tensorplug_llm.sampling import Sampled
from tensorplug_llm.serve.answers import CompletionAnswer
from tensorplug_llm.serve.texts import Piece
from tensorplug_llm.tokenizer import load_tokenizer

from .gguf_files import TOKENIZER


def answer() -> CompletionAnswer:
    tokenizer = load_tokenizer(TOKENIZER)
    return CompletionAnswer(id="a", created=0, model="m", tokenizer=tokenizer, logprobs=True)


def sampled(text: str) -> list[Sampled]:
    """A token for each byte, with the same log probability as two others have."""
    ids = load_tokenizer(TOKENIZER).encode(text, add_special=False)
    return [Sampled(id, -1.0, ((id, -1.0), (ids[1], -2.0), (ids[2], -3.0))) for id in ids]


def test_offsets_of_tokens_go_on_from_part_to_part_of_a_completion() -> None:
    head, tokens = answer(), sampled("aéhe!")

    parts = [head.part(Piece(0, "", part)) for part in (tokens[:2], tokens[2:])]

    found = [part["choices"][0]["logprobs"]["text_offset"] for part in parts]
    assert found == [[0, 1], [2, 2, 4]]


def test_offsets_count_what_bytes_that_are_no_character_become() -> None:
    ids = load_tokenizer(TOKENIZER).encode("éé!", add_special=False)
    tokens = [Sampled(id, -1.0, ()) for id in (ids[1], ids[3], ids[0], ids[4], ids[4])]

    choice = answer().part(Piece(0, "", tokens))["choices"][0]

    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


def test_parts_of_characters_are_told_apart_in_log_probabilities_of_completions() -> None:
    tokens = sampled("aé!")

    choice = answer().part(Piece(0, "", tokens))["choices"][0]["logprobs"]

    assert choice["tokens"] == ["a", r"bytes:\xc3", r"bytes:\xa9", "!"]
    assert choice["top_logprobs"][0] == {"a": -1.0, r"bytes:\xc3": -2.0, r"bytes:\xa9": -3.0}
