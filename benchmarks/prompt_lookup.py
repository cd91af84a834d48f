"""Tokens per second with drafts by prompt lookup and without, in turns, as JSON.

SmolLM2 (or MODEL) rewrites short texts, so that answers repeat their prompts, and answers questions
with texts that repeat little. Both engines share the loaded weights. Everything runs once before it
is timed. `equal` says whether the tokens with drafts were those without.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensorplug as tp
from tensorplug.device import SupportsThreads
from tensorplug_llm import Engine, LanguageModel, SamplingParams, find_model, load_model
from tensorplug_llm.chat import ChatTemplate, encode_chat

Rows = dict[str, dict[str, Any]]

LETTER = """Dear Ms Huber, thank you for your letter of 3 March. The machine that you ordered will
leave our works on Monday and should reach your workshop in Linz by Thursday. Two fitters will come
with it. They need about four hours to set it up, a socket for 400 volts and a flat floor of three
by four metres. Please tell us at least one day before if the floor is not ready, so that they
can take another date. The invoice follows when the machine runs to your satisfaction."""

NOTICE = """The libary opens at nine in the morning and closes at six in the evning. Books may be
kept for four weeks, and films for one week. A book that comes back late costs twenty cents for
each day. Children under twelve need a card that there parents have signed. The reading room on
the second floor is quiet, so plese leave your telephone at the entrance. On Sundays only the
coffee house is open."""

BAKER = """She gets up at five, before the sun, and she lights the oven. Then she mixes flour,
water and salt, and she lets the dough rest for an hour. While it rests she sweeps the floor and
she opens the shutters. At seven she sells the first loaves, and by noon she has sold them
all."""

TASKS = {
    "letter": f"Repeat this letter, with the day Monday replaced by Tuesday:\n\n{LETTER}",
    "notice": f"Correct the spelling of this text:\n\n{NOTICE}",
    "baker": f"Rewrite this text, with every she replaced by he:\n\n{BAKER}",
}
QUESTIONS = {
    "story": "Tell a story about a lighthouse keeper who finds a letter in a bottle.",
    "advice": "Explain how bread is baked, from the flour to the oven.",
}
PROMPTS = {**TASKS, **QUESTIONS}


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds of one prompt."""

    prompt_tokens: int
    tokens: int
    plain_tokens_per_s: float
    lookup_tokens_per_s: float
    ratio: float
    ratios: list[float]
    drafted: int
    accepted: int
    equal: bool


def rate(engine: Engine, ids: Sequence[int], params: SamplingParams) -> tuple[list[int], float]:
    """The tokens of a text, and how many came in a second after the first one."""
    stream = engine.submit(ids, params)
    found = stream.result()
    return found, (len(found) - 1) / (stream.times[-1] - stream.times[0])


def measured(
    engines: Sequence[Engine], ids: Sequence[int], params: SamplingParams, rounds: int
) -> Row:
    """Rates of both engines in turns, of which the first goes first in every second round."""
    rates: list[list[float]] = [[], []]
    texts: list[list[int]] = [[], []]
    batcher = engines[1]._batcher
    for round in range(-1, rounds):
        drafted, accepted = batcher.drafted, batcher.accepted
        for side in (0, 1) if round % 2 else (1, 0):
            texts[side], found = rate(engines[side], ids, params)
            if round >= 0:
                rates[side].append(found)
    ratios = [b / a for a, b in zip(*rates, strict=True)]
    return Row(
        len(ids),
        len(texts[0]),
        statistics.median(rates[0]),
        statistics.median(rates[1]),
        statistics.median(ratios),
        ratios,
        batcher.drafted - drafted,
        batcher.accepted - accepted,
        texts[0] == texts[1],
    )


def report(
    model: LanguageModel, params: SamplingParams, prompts: Sequence[str], drafts: int, rounds: int
) -> Rows:
    """Rows of prompts."""
    template = ChatTemplate.from_metadata(model.file.metadata)
    options = {"texts": 1, "rows": model.context, "threaded": False}
    with (
        Engine(model, **options) as plain,
        Engine(model, prompt_lookup=drafts, **options) as drafting,
    ):
        found: Rows = {}
        for name in prompts:
            message = {"role": "user", "content": PROMPTS[name]}
            ids = encode_chat(model.tokenizer, template, [message])
            found[name] = asdict(measured((plain, drafting), ids, params, rounds))
            print(name, found[name]["ratio"], file=sys.stderr)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=15, help="tokens drafted at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy; seed 1")
    parser.add_argument("--prompts", nargs="+", choices=[*PROMPTS], default=[*PROMPTS])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tp.open(given.device) as backend:
        if isinstance(backend, SupportsThreads):
            backend.threads = given.threads
        with load_model(find_model(given.model), [backend]) as model:
            params = SamplingParams(temperature=given.temperature, seed=1, max_tokens=given.tokens)
            found = report(model, params, given.prompts, given.drafts, given.rounds)
    names = ("model", "device", "threads", "drafts", "temperature")
    whole = {**{name: getattr(given, name) for name in names}, "prompts": found}
    text = json.dumps(whole, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
