"""An engine that serves thousands of texts: each gets its tokens, and nothing piles up."""

import gc
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import DeviceError
from tensorplug_llm import Engine, LanguageModel, SamplingParams, load_model
from tensorplug_llm.cache import PAGE
from tensorplug_llm.stream import Stream
from tensorplug_llm.testing import LoneText

STATUS = Path("/proc/self/status")
REQUESTS, WARM = 5000, 2500
"""Texts of the whole test, and those after which memory is measured first."""
GROWTH = 8 << 20
"""Bytes that may come after that; a page of each text would be 80 MB."""
AT_ONCE = 20
KINDS = 40
"""Prompts that differ."""
FAILURES = (300, 600)
"""Waits after which each device but the last fails for good: long before memory is measured."""


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


class Failing:
    """Lets a stream work for some waits, and never again."""

    def __init__(self, patch: pytest.MonkeyPatch, stream: Backend, waits: int) -> None:
        self.left = waits
        self._name, self._wait = stream.name, stream._synchronize
        patch.setattr(stream, "_synchronize", self._synchronize)

    def _synchronize(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DeviceError(f"{self._name}: planted failure")
        self._wait()


def prompts() -> list[list[int]]:
    """Some share their beginnings."""
    chance = random.Random(1)
    begins = [chance.choices(range(20, 250), k=2 * PAGE) for _ in range(4)]
    return [
        [
            *chance.choice(begins)[: chance.randint(1, 2 * PAGE)],
            *chance.choices(range(20, 250), k=9),
        ]
        for _ in range(KINDS)
    ]


def serve(engine: Engine, expected: dict[int, list[int]], count: int, seed: int) -> None:
    """Submit texts, cancel some of them, and compare each with its lone run."""
    chance = random.Random(seed)
    known = prompts()
    open_streams: list[tuple[int, Stream]] = []
    for number in range(count):
        kind = chance.randrange(KINDS)
        params = SamplingParams(temperature=0, max_tokens=chance.randint(1, 24))
        open_streams.append((kind, engine.submit(known[kind], params)))
        if chance.random() < 0.1:
            chance.choice(open_streams)[1].cancel()
        while len(open_streams) > (AT_ONCE if number < count - 1 else 0):
            kind, stream = open_streams.pop(0)
            assert stream.result() == expected[kind][: len(stream.ids)]


def lone(model: LanguageModel) -> dict[int, list[int]]:
    found = {}
    with LoneText(model, 4 * PAGE, kv=tp.F32) as text:
        for kind, ids in enumerate(prompts()):
            text.rewind()
            found[kind] = text.continued(ids, 24)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="reads the memory of a process on Linux")
def test_memory_and_pages_stay_the_same_for_thousands_of_texts(
    model_file: Callable[..., Path],
    walled: Callable[..., Backend],
    cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    with (
        load_model(model_file(), streams, layers=[1, 1, 0]) as model,
        Engine(
            model, context=4 * PAGE, rows=16 * PAGE, texts=8, kv=tp.F32, on_failure="replan"
        ) as engine,
    ):
        expected = lone(model)
        engine.prepare().wait()
        failing = [Failing(monkeypatch, s, n) for s, n in zip(streams[:2], FAILURES, strict=True)]
        serve(engine, expected, WARM, seed=0)
        assert all(one.left < 0 for one in failing)
        before, plans = resident(), engine.plans

        serve(engine, expected, REQUESTS - WARM, seed=1)

        assert resident() - before < GROWTH
        assert engine.plans == plans
        assert engine._batcher.prefixes.evictable == engine._batcher.pool.used
