"""Microseconds to choose a token by vocabulary and rules, next to sorting the vocabulary: JSON."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tensorplug_llm.sampling import Sampler, SamplingParams

VOCABULARIES = {"smollm2-135m": 49_152, "gemma3-270m": 262_144}
RULES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "greedy": {"temperature": 0.0},
    "penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.2},
    "typical": {"typical_p": 0.9},
    "logprobs": {"logprobs": 5},
    "no top_k": {"top_k": 0},
}


def microseconds(work: Callable[[], object], repeat: int) -> float:
    """Median of the calls after the first."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=100)
    repeat = parser.parse_args().repeat
    random = np.random.default_rng(0)
    history = random.integers(0, 49_152, 500).tolist()
    report: dict[str, dict[str, float]] = {}
    for name, size in VOCABULARIES.items():
        logits = random.normal(0, 3, size).astype(np.float32)
        logits[:20] += 12  # a few likely tokens, as models give
        samplers = {
            rule: Sampler(SamplingParams(**changes, seed=1)) for rule, changes in RULES.items()
        }
        report[name] = {
            rule: microseconds(partial(sampler.next, logits, history), repeat)
            for rule, sampler in samplers.items()
        }
        report[name]["sorting all"] = microseconds(partial(np.argsort, -logits), repeat)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
