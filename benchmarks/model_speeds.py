"""Tokens per second of a model that is read by one engine or another, by length of the text.

It needs nothing but Python, for llama.cpp is measured where tensorplug need not be.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

Read = Callable[[Sequence[int]], int]
"""Reads tokens behind those read so far, and returns the likeliest next one."""
Rewind = Callable[[int], None]
"""Forgets all tokens from a position on."""

START = 8
"""Tokens of the text that decoding continues, where no longer one is asked for."""
PIECE = 512
"""Tokens that are read at a time, at most."""
STRIDE = 7919


def prompt(count: int, vocabulary: int) -> list[int]:
    """Any tokens will do, as long as they differ."""
    return [(STRIDE * i + 1) % vocabulary for i in range(count)]


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def speeds(
    read: Read, rewind: Rewind, vocabulary: int, given: argparse.Namespace
) -> dict[str, float]:
    """Medians of reading prompts and of continuing texts, after one untimed run of each."""
    found: dict[str, list[float]] = {}
    for _ in range(given.repeat + 1):
        for count in numbers(given.prompts):
            rewind(0)
            seconds = timed(partial(read, prompt(count, vocabulary)))
            found.setdefault(f"prefill {count}", []).append(count / seconds)
    rewind(0)
    text, at = prompt(max(numbers(given.depths), default=0), vocabulary), 0
    for depth in sorted(numbers(given.depths)):
        for start in range(at, depth, PIECE):
            read(text[start : min(start + PIECE, depth)])
        at = depth
        for _ in range(given.repeat + 1):
            seconds = timed(partial(continued, read, given.tokens))
            found.setdefault(f"decode at {depth}", []).append(given.tokens / seconds)
            rewind(depth)
    return {name: statistics.median(series[1:]) for name, series in found.items()}


def continued(read: Read, tokens: int) -> None:
    """Generate `tokens` tokens."""
    chosen = 1
    for _ in range(tokens):
        chosen = read([chosen])


def numbers(words: str) -> list[int]:
    """Whole numbers in one string."""
    return [int(word) for word in words.split()]


def context(given: argparse.Namespace) -> int:
    """Positions that a measurement takes."""
    longest = max(numbers(given.depths), default=0) + given.tokens
    return max(longest, *numbers(given.prompts), 2 * PIECE)


def arguments_of(description: str) -> argparse.ArgumentParser:
    """What both engines are asked for."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", default="512", help="tokens of prompts, in one string")
    parser.add_argument("--depths", default=str(START), help="tokens before those generated")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--repeat", type=int, default=3)
    return parser
