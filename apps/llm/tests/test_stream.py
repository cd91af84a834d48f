"""Text of tokens one by one: stop strings wherever the borders of tokens are."""

import random
from collections.abc import Sequence

import pytest

from tensorplug_llm.tokenizer import StreamDecoder


class Chunks:
    """A tokenizer whose tokens are pieces of bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def piece(self, id: int) -> bytes:
        return self._pieces[id]

    def is_silent(self, id: int) -> bool:
        return self._pieces[id] == b"<silent>"


def streamed(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], str | None]:
    """What is shown after each piece and at the end, and the stop string."""
    decoder = StreamDecoder(Chunks(pieces), stop=stop)
    shown = [decoder.feed(id) for id in range(len(pieces))]
    stopped = decoder.stopped
    return [*shown, decoder.finish()], stopped


def reference(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Character by character: the text ends before the longest stop string that is complete."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "stopped"),
    [
        ([b"one", b"two"], ["x"], ["one", "two", ""], None),
        ([b"one", b"two"], ["two"], ["one", "", ""], "two"),
        ([b"on", b"e", b"two"], ["etw"], ["on", "", "", ""], "etw"),
        ([b"on", b"e", b"t"], ["etw"], ["on", "", "", "et"], None),
        ([b"on", b"e", b"x"], ["etw"], ["on", "", "ex", ""], None),
        ([b"aab", b"c"], ["aabb", "ab!"], ["", "aabc", ""], None),
        ([b"a\n", b"\n", b"b"], ["\n\n"], ["a", "", "", ""], "\n\n"),
        ([b"abcd"], ["bcd", "bc"], ["a", ""], "bc"),
        ([b"abc"], ["bc", "abc"], ["", ""], "abc"),
        ([b"\xc3", b"\xa4b"], ["ä"], ["", "", ""], "ä"),
        ([b"\xc3", b"\xa4b"], ["b"], ["", "ä", ""], "b"),
        ([b"a", b"<silent>", b"b"], ["ab"], ["", "", "", ""], "ab"),
        ([b"a\xe2\x82"], ["\ufffd"], ["a", ""], None),
    ],
)
def test_text_ends_before_a_stop_string(
    pieces: list[bytes], stop: list[str], shown: list[str], stopped: str | None
) -> None:
    assert streamed(pieces, stop) == (shown, stopped)


@pytest.mark.parametrize("seed", range(300))
def test_borders_of_tokens_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choices("abä", k=chance.randrange(30)))
    stop = ["".join(chance.choices("abä", k=chance.randrange(1, 6))) for _ in range(3)]
    raw, pieces = text.encode(), []
    while raw:
        size = chance.randrange(1, 6)
        pieces.append(raw[:size])
        raw = raw[size:]

    shown, stopped = streamed(pieces, stop)

    assert ("".join(shown), stopped) == reference(text, stop)


def test_nothing_follows_a_stop_string() -> None:
    decoder = StreamDecoder(Chunks([b"a", b"stop", b"b"]), stop=["stop"])

    assert [decoder.feed(id) for id in (0, 1, 2)] == ["a", "", ""]
    assert decoder.stopped == "stop"


def test_only_what_can_be_a_stop_string_is_held_back() -> None:
    decoder = StreamDecoder(Chunks([b"hello <", b"b", b">"]), stop=["<end>"])

    assert [decoder.feed(id) for id in (0, 1, 2)] == ["hello ", "<b", ">"]


def test_a_finished_decoder_can_begin_another_text() -> None:
    decoder = StreamDecoder(Chunks([b"a", b"stop"]), stop=["stop"])
    decoder.feed(1)
    decoder.finish()

    assert decoder.feed(0) == "a"
    assert decoder.stopped is None
