"""What the engine does with many texts of a model, as JSON; `batched.py` compares it.

Tokens per second of texts that are continued together, how much sooner the first token of a prompt
comes whose beginning is known, how long single tokens take while a prompt is read (all shapes are
planned before), the share of Python in a step, and the memory of 32 texts of 128 tokens. Everything
runs once before it is timed.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import tensorplug as tp
from tensorplug.device import SupportsThreads
from tensorplug_llm import Engine, LanguageModel, SamplingParams, find_model, load_model
from tensorplug_llm.cache import PAGE

T = TypeVar("T")
STRIDE = 7919
ROWS = 64 * PAGE
STATUS = Path("/proc/self/status")


def prompt(model: LanguageModel, count: int, start: int) -> list[int]:
    """Tokens that differ for each `start`."""
    return [(STRIDE * (i + 1) + start) % model.tokenizer.vocab_size for i in range(count)]


def greedy(model: LanguageModel, tokens: int) -> SamplingParams:
    """Exactly `tokens` tokens, each the most likely one."""
    ends = dict.fromkeys(model.tokenizer.end_of_generation, float("-inf"))
    return SamplingParams(temperature=0, max_tokens=tokens, logit_bias=ends)


def together(engine: Engine, count: int, length: int, steps: int) -> float:
    """Tokens per second of `count` texts, from when all have their first token."""
    params = greedy(engine.model, steps + 1)
    streams = [engine.submit(prompt(engine.model, length, s), params) for s in range(count)]
    for stream in streams:
        stream.result()
    begin = max(s.times[0] for s in streams)
    after = sum(time > begin for s in streams for time in s.times)
    return after / (max(s.times[-1] for s in streams) - begin)


def first_token(engine: Engine, ids: Sequence[int]) -> float:
    """Seconds to the first token of a prompt."""
    stream = engine.submit(ids, greedy(engine.model, 1))
    stream.result()
    return stream.times[0] - stream.submitted


def prefixes(engine: Engine, repeat: int) -> dict[str, float]:
    """Seconds to the first token of 288 tokens: none known, 256 of them known, and the ratio."""
    fresh, shared = [], []
    for round in range(repeat + 1):
        ids = prompt(engine.model, 288, 1000 + round)
        fresh.append(first_token(engine, ids))
        shared.append(first_token(engine, [*ids[:256], *prompt(engine.model, 32, 5000 + round)]))
    cold, known = statistics.median(fresh[1:]), statistics.median(shared[1:])
    return {"fresh_s": cold, "shared_s": known, "ratio": cold / known}


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds from each token to the next."""
    return [b - a for a, b in itertools.pairwise(times)]


def mixed(engine: Engine, repeat: int) -> dict[str, float]:
    """Seconds between tokens of a text: by itself, and while prompts of 512 tokens are read."""
    slow: list[float] = []
    lone: list[float] = []
    engine.prepare().wait()
    for round in range(repeat + 3):
        stream = engine.submit(prompt(engine.model, 8, 2000 + round), greedy(engine.model, 300))
        for _ in range(40):
            next(stream)
        reading = engine.submit(prompt(engine.model, 512, 3000 + round), greedy(engine.model, 1))
        reading.result()
        stream.result()
        during = [t for t in stream.times if reading.submitted <= t <= reading.times[0]]
        if round > 2:  # the pace is found
            slow += gaps(during)
            lone += gaps(stream.times[8:40])
    p95 = statistics.quantiles(slow, n=20)[-1]
    alone = statistics.median(lone)
    return {
        "tokens_at_once": engine._batcher._pace.tokens,
        "lone_s": alone,
        "lone_p95_s": statistics.quantiles(lone, n=20)[-1],
        "mixed_s": statistics.median(slow),
        "mixed_p95_s": p95,
        "ratio": p95 / alone,
    }


def python_share(engine: Engine, count: int) -> float:
    """Share of the time of a step with `count` texts that is not spent in a pass."""
    batcher, inside = engine._batcher, [0.0, 0.0]
    step, run = batcher.step, batcher.runner.run

    def timed(index: int, call: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = call()
        inside[index] += time.perf_counter() - begin
        return result

    batcher.step = lambda: timed(0, step)
    batcher.runner.run = lambda readings: timed(1, lambda: run(readings))
    together(engine, count, 8, 48)
    batcher.step, batcher.runner.run = step, run
    return 1 - inside[1] / inside[0]


def memory(model: LanguageModel) -> dict[str, float]:
    """The cache for 32 texts of 128 tokens, and what a process grows by while they run.

    `ratio` is the sum of both over the bytes of the rows. Pages that become resident late count
    twice.
    """
    with Engine(model, context=128, rows=32 * 128, texts=32) as engine:
        engine.prepare().wait()
        cache = engine._batcher.runner.cache
        together(engine, 1, 80, 47)
        before = resident()
        together(engine, 32, 80, 47)
        grown = resident() - before
        rows = cache.rows * sum(t.dtype.row_size(t.ne[0]) for t in cache.tensors)
        return {
            "cache_bytes": cache.nbytes,
            "rows_bytes": rows,
            "grown_bytes": grown,
            "ratio": (cache.nbytes + grown) / rows,
        }


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path or name of a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--counts", default="1 4 8 16 32", help="numbers of texts, in one string")
    parser.add_argument("--prompt", type=int, default=8, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=48, help="tokens generated for each text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="decode prefixes mixed python memory")
    given = parser.parse_args()
    tp.load_all()
    with tp.open(given.device) as backend:
        if isinstance(backend, SupportsThreads):
            backend.threads = given.threads
        gc.freeze()
        with load_model(find_model(given.model), [backend]) as model:
            print(json.dumps(measured(model, given)))


def measured(model: LanguageModel, given: argparse.Namespace) -> dict[str, object]:
    """All that is asked for."""
    found: dict[str, object] = {}
    wanted = given.only.split()
    with Engine(model, context=1024, rows=ROWS) as engine:
        if "decode" in wanted:
            speeds = {}
            for count in map(int, given.counts.split()):
                rounds = []
                for _ in range(given.repeat + 1):
                    engine._batcher.prefixes.clear()
                    rounds.append(together(engine, count, given.prompt, given.steps))
                speeds[count] = statistics.median(rounds[1:])
            found["decode"] = speeds
        if "python" in wanted:
            together(engine, 16, 8, 48)
            found["python_share_16"] = python_share(engine, 16)
        if "prefixes" in wanted:
            found["prefixes"] = prefixes(engine, 3)
        if "mixed" in wanted:
            found["mixed"] = mixed(engine, 3)
        found["plans"] = engine.plans
        found["plan_s"] = engine._batcher.runner.plan_seconds
    if "memory" in wanted:
        found["memory_32_texts_of_128"] = memory(model)
    return found


if __name__ == "__main__":
    main()
