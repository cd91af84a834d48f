"""Seconds to read a prompt, by its length, next to the line through the best lengths: JSON.

The line goes from one best length to the next, and all others lie above it: the lower convex hull
of the lengths and their times. A length that is padded or read in an uneven way lies far above.
A prompt of 32 tokens is read before and after each: the clock of a machine changes within seconds.
Times are medians of the rounds' ratios to it, in which all lengths take turns in one process.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from model_speeds import numbers, prompt, timed
from our_model import opened
from tqdm import tqdm

from tensorplug_llm.testing import LoneText

LENGTHS = (
    "2 3 4 5 6 7 8 10 12 14 16 17 20 24 28 32 33 40 48 56 64 65 72 80 96 100 112 128 130 "
    "144 160 192 200 224 256 257 300 320 384 400 448 512 513 600 700 768 900 1024"
)

REFERENCE = 32
"""Tokens of the prompt with which all others are compared."""

Times = Mapping[int, float]
"""Seconds by number of tokens."""


def hull(times: Times) -> list[int]:
    """The lengths that are best: corners of the lower convex hull."""
    corners: list[int] = []
    for n in sorted(times):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (times[b] - times[a]) * (n - a) < (times[n] - times[a]) * (b - a):
                break
            corners.pop()
        corners.append(n)
    return corners


def ratios(times: Times, corners: Sequence[int]) -> dict[int, float]:
    """How many times as long as by the line through `corners` each length takes."""
    line = np.interp(list(times), corners, [times[n] for n in corners])
    return {n: times[n] / float(at) for n, at in zip(times, line, strict=True)}


def measured(text: LoneText, lengths: Sequence[int], rounds: int) -> Times:
    """The seconds of each length, of `rounds` reads of each after one that plans."""

    def read(n: int) -> float:
        text.rewind(0)
        ids = prompt(n, text.model.hparams.vocabulary)
        return timed(lambda: text.prefill(ids))

    for n in (REFERENCE, *lengths):
        read(n)
    shares: dict[int, list[float]] = {n: [] for n in lengths}
    around: list[float] = []
    for _ in tqdm(range(rounds), disable=not sys.stderr.isatty()):
        for n in lengths:
            before, seconds, after = read(REFERENCE), read(n), read(REFERENCE)
            shares[n].append(2 * seconds / (before + after))
            around += (before, after)
    reference = statistics.median(around)
    return {n: reference * statistics.median(found) for n, found in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name or path of a model")
    parser.add_argument("--lengths", default=LENGTHS, help="tokens of prompts, in one string")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    lengths = numbers(given.lengths)
    with opened(given.model, given.device, given.threads, max(lengths) + 1) as text:
        times = measured(text, lengths, given.rounds)
    best = hull(times)
    above = ratios(times, best)
    report = {
        "model": given.model,
        "threads": given.threads,
        "best lengths": best,
        "times as long as by the line": {n: round(r, 3) for n, r in above.items()},
        "ms": {n: round(1e3 * t, 2) for n, t in times.items()},
        "worst": round(max(above.values()), 3),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
