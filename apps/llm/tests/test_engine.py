"""The engine: a thread of its own serves texts from threads and from asyncio."""

import asyncio
import gc
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import Closed, OptionError, RunFailed
from tensorplug_llm import Engine, LanguageModel, QueueFull, SamplingParams, load_model
from tensorplug_llm.cache import PAGE
from tensorplug_llm.engine import timings_of
from tensorplug_llm.errors import EngineFailed, PromptTooLong
from tensorplug_llm.sampling import Sampled, Sampler
from tensorplug_llm.stream import Stream, Wakes
from tensorplug_llm.testing import LoneText

from .failing import Dying

Write = Callable[..., Path]
Open = Callable[..., Backend]

PROMPTS = [[40 + (7 * n * i) % 60 for i in range(1 + 5 * n)] for n in range(1, 7)]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def model(model_file: Write, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(model_file(), [cpu]) as model:
        yield model


def lone(model: LanguageModel, tokens: int = 12) -> list[list[int]]:
    """The tokens of each prompt by itself."""
    found = []
    with LoneText(model, 256, kv=tp.F32) as text:
        for prompt in PROMPTS:
            text.rewind()
            found.append(text.continued(prompt, tokens))
    return found


def test_texts_of_many_threads_get_their_own_tokens(model: LanguageModel) -> None:
    expected = lone(model)

    with Engine(model, context=256, kv=tp.F32) as engine, ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda p: engine.submit(p, GREEDY).result(), PROMPTS))

    assert found == expected


def test_engine_without_a_thread_computes_where_its_streams_are_read(model: LanguageModel) -> None:
    expected = lone(model)
    threads = threading.active_count()

    with Engine(model, context=256, kv=tp.F32, threaded=False) as engine:
        engine.prepare()
        plans = engine.plans
        streams = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        first = [next(streams[-1]).token for _ in range(12)]
        found = [stream.result() for stream in streams]
        unread = engine.submit(PROMPTS[0], GREEDY)

        assert threading.active_count() == threads
        assert engine.plans == plans

    assert first == expected[-1]
    assert found == expected
    assert unread.finish == "cancelled"


def test_engine_without_a_thread_computes_where_asyncio_reads(model: LanguageModel) -> None:
    expected = lone(model)

    async def read(engine: Engine) -> list[list[int]]:
        async def one(prompt: Sequence[int]) -> list[int]:
            return [sampled.token async for sampled in engine.submit(prompt, GREEDY)]

        return await asyncio.gather(*map(one, PROMPTS))

    with Engine(model, context=256, kv=tp.F32, threaded=False) as engine:
        assert asyncio.run(read(engine)) == expected


@pytest.mark.parametrize("prompt", ["the", [1.5], [None]], ids=repr)
def test_prompt_that_is_not_of_token_ids_is_refused(model: LanguageModel, prompt: Any) -> None:
    with (
        Engine(model, context=256, kv=tp.F32, threaded=False) as engine,
        pytest.raises(OptionError, match=r"^prompt: has .*; give ids of tokens, which tokenizer"),
    ):
        engine.submit(prompt, GREEDY)


def test_texts_can_be_read_by_asyncio(model: LanguageModel) -> None:
    expected = lone(model)

    async def one(engine: Engine, prompt: list[int]) -> list[int]:
        return [sampled.token async for sampled in engine.submit(prompt, GREEDY)]

    async def all_of_them(engine: Engine) -> list[list[int]]:
        return await asyncio.gather(*(one(engine, prompt) for prompt in PROMPTS))

    with Engine(model, context=256, kv=tp.F32) as engine:
        assert asyncio.run(all_of_them(engine)) == expected


def test_tokens_that_came_meanwhile_are_ready_together(model: LanguageModel) -> None:
    expected = lone(model)[0]

    async def late(engine: Engine) -> list[list[int]]:
        stream = engine.submit(PROMPTS[0], GREEDY)
        while not stream.finish:
            await asyncio.to_thread(engine.submit(PROMPTS[0], GREEDY).result)
        return [[sampled.token for sampled in (await stream.ready())[0]] for _ in "ab"]

    with Engine(model, context=256, kv=tp.F32, texts=1) as engine:
        assert asyncio.run(late(engine)) == [expected, []]


def test_tokens_of_a_pass_wake_an_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = Wakes()
    streams = [Stream([1], lambda: None, wakes) for _ in range(3)]

    async def read() -> tuple[list[list[Sampled]], int]:
        loop = asyncio.get_running_loop()
        calls: list[object] = []
        call = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *given: calls.append(given) or call(*given)
        )
        readers = [asyncio.create_task(stream.ready()) for stream in streams]
        await asyncio.sleep(0)  # all of them wait now
        for stream in streams:
            stream.put(Sampled(7), "7")
        wakes.send()
        return [await reader for reader in readers], len(calls)

    found, calls = asyncio.run(read())

    assert found == [([Sampled(7)], "7")] * 3
    assert calls == 1


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_scores_of_a_prompt_are_those_of_a_lone_text(
    most: int, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(7 * i + 3) % 250 for i in range(3 * PAGE)]
    with LoneText(model, 256, kv=tp.F32) as text:
        logits = text.score(ids).astype(np.float64)
    sums = np.log(np.exp(logits).sum(axis=1))
    expected = [row[id] - total for row, id, total in zip(logits, ids[1:], sums, strict=False)]
    monkeypatch.setattr("tensorplug_llm.batching.MOST_LOGITS", most * model.hparams.vocabulary)

    with Engine(model, context=256, kv=tp.F32, threaded=False) as engine:
        others = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        first = next(others[0])  # the last two thirds are read while texts are continued
        found = engine.score(ids)
        again = engine.score(ids)

        assert [first.token, *others[0].result()[1:]] == lone(model)[0]

    assert found == pytest.approx(expected, abs=1e-4)
    assert again == pytest.approx(expected, abs=1e-4)


def test_closed_engine_gives_no_scores(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(model, threaded=False)
    monkeypatch.setattr(engine._batcher, "step", engine.close)

    with pytest.raises(Closed, match="was closed before the prompt was read"):
        engine.score(PROMPTS[0])


def test_text_ends_before_the_token_that_ends_texts(model: LanguageModel) -> None:
    expected = lone(model)[3]
    number = next(i for i in range(1, 12) if expected[i] not in expected[:i])
    model.tokenizer.end_of_generation = frozenset({expected[number]})

    with Engine(model, context=256, kv=tp.F32) as engine:
        stream = engine.submit(PROMPTS[3], GREEDY)

        assert stream.result() == expected[:number]
        assert stream.finish == "stop"


def test_spare_rows_of_the_embedding_table_are_never_chosen(model: LanguageModel) -> None:
    tokens = model.tokenizer.vocab_size
    params = SamplingParams(temperature=100.0, top_k=0, top_p=1, min_p=0, seed=3, max_tokens=50)

    with Engine(model) as engine:
        ids = engine.submit(PROMPTS[0], params).result()

    assert model.hparams.vocabulary > tokens > max(ids)


def test_stream_says_why_it_ended(model: LanguageModel) -> None:
    with Engine(model, context=PAGE) as engine:
        short = engine.submit(PROMPTS[0], GREEDY)
        long = engine.submit([50] * (PAGE - 2), SamplingParams(temperature=0))

        assert (len(short.result()), short.finish) == (12, "length")
        assert (len(long.result()), long.finish) == (2, "context")


def test_text_ends_with_a_stop_string(model: LanguageModel) -> None:
    with Engine(model) as engine:
        ids = engine.submit(PROMPTS[1], GREEDY).result()
        stop = model.tokenizer.decode(ids[4:6])
        params = SamplingParams(temperature=0, max_tokens=12, stop=[stop])

        stream = engine.submit(PROMPTS[1], params)

        found = model.tokenizer.decode(stream.result())
        assert stream.finish == "stop"
        assert found.endswith(stop)
        assert found.count(stop) == 1


def test_cancelled_text_ends_early(model: LanguageModel) -> None:
    with Engine(model) as engine:
        stream = engine.submit(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1000))
        next(stream)
        stream.cancel()

        assert len(stream.result()) < 1000
        assert stream.finish == "cancelled"


def test_ended_text_is_forgotten_though_its_stream_is_kept(model: LanguageModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=3)

    with Engine(model, context=256, threaded=False) as engine:
        gc.disable()
        try:
            streams = [engine.submit(prompt, params) for prompt in PROMPTS]
            streams[0].cancel()
            results = [stream.result() for stream in streams]
            left = [o for o in gc.get_objects() if isinstance(o, Sampler) and o.params is params]
        finally:
            gc.enable()

    assert list(map(len, results)) == [0, 3, 3, 3, 3, 3]
    assert not left


def test_results_of_one_prompt_draw_by_seeds_of_their_own(model: LanguageModel) -> None:
    params = SamplingParams(temperature=1.5, seed=3, n=3, max_tokens=20)

    with Engine(model) as engine:
        first, second = (
            [s.result() for s in engine.submit_all([PROMPTS[3]], params)] for _ in "ab"
        )

    assert first == second
    assert len({tuple(ids) for ids in first}) == 3


def test_timings_say_what_was_done(model: LanguageModel) -> None:
    params = SamplingParams(temperature=0, n=2, max_tokens=6)
    with Engine(model) as engine:
        streams = engine.submit_all([PROMPTS[0]], params)
        for stream in streams:
            stream.result()

        timings = timings_of(engine, streams)

    assert (timings.prompt_tokens, timings.generated_tokens) == (6, 12)
    assert timings.prefill_tokens_per_s == pytest.approx(6 / timings.prefill_s)
    assert timings.decode_tokens_per_s == pytest.approx(10 / timings.decode_s)
    assert timings.load_s > 0
    assert timings.plan_s > 0


def test_timings_of_a_text_without_tokens_are_zero(model: LanguageModel) -> None:
    with Engine(model) as engine:
        stream = engine.submit(PROMPTS[0], GREEDY)
        stream.result()
        stream.times.clear()

        timings = timings_of(engine, [stream])

    assert (timings.prefill_s, timings.decode_s, timings.decode_tokens_per_s) == (0, 0, 0)


def test_full_queue_refuses_texts(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    with Engine(model, texts=1, queue=2) as engine:
        step = engine._batcher.step
        monkeypatch.setattr(engine._batcher, "step", lambda: go_on.wait(60) and step())
        taken = []
        caught = ""
        while not caught:
            try:
                taken.append(engine.submit(PROMPTS[0], GREEDY))
            except QueueFull as error:
                caught = str(error)
        go_on.set()

        assert caught == (
            "engine: 2 texts wait already, and of 1 more not all fit the queue of 2; submit again "
            "when some have ended"
        )
        assert len(taken) < 5
        assert [len(stream.result()) for stream in taken] == [12] * len(taken)


def test_idle_engine_takes_what_it_can_run_besides_its_queue(model: LanguageModel) -> None:
    with Engine(model, texts=3, queue=1) as engine:
        with pytest.raises(QueueFull):
            engine.submit_all(PROMPTS[:5], GREEDY)

        streams = engine.submit_all(PROMPTS[:4], GREEDY)

        assert [len(stream.result()) for stream in streams] == [12] * 4


def test_results_are_refused_all_together(model: LanguageModel) -> None:
    params = SamplingParams(max_tokens=1000, n=2)
    with Engine(model, texts=1, queue=2) as engine:
        with pytest.raises(QueueFull):
            engine.submit_all(PROMPTS[:2], params)
        with pytest.raises(OptionError):
            engine.submit_all([PROMPTS[0], []], params)

        assert not engine._batcher.busy
        assert len(engine.submit_all(PROMPTS[:1], params)) == 2


def test_prepared_engine_plans_nothing_for_texts(model: LanguageModel) -> None:
    with Engine(model, context=256, texts=4) as engine:
        assert engine.prepare().wait(60)
        plans = engine.plans

        for stream in [engine.submit(prompt, GREEDY) for prompt in PROMPTS]:
            stream.result()

        assert engine.plans == plans
        assert engine.prepare().wait(60)
        assert engine.plans == plans


def test_engine_that_closes_lets_nobody_wait_for_plans(model: LanguageModel) -> None:
    engine = Engine(model)
    prepared = engine.prepare()

    engine.close()

    assert prepared.wait(60)


def test_idle_engine_makes_no_step(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[bool] = []
    with Engine(model) as engine:
        step = engine._batcher.step
        monkeypatch.setattr(engine._batcher, "step", lambda: (steps.append(True), step()))
        engine.submit(PROMPTS[0], GREEDY).result()
        count = len(steps)

        engine.submit(PROMPTS[1], SamplingParams(temperature=0, max_tokens=1)).result()

    assert (count, len(steps)) == (12, 13)


@pytest.mark.parametrize("size", [PAGE, PAGE + 5])
def test_prompt_without_room_for_a_token_is_refused(size: int, model: LanguageModel) -> None:
    with Engine(model, context=PAGE) as engine, pytest.raises(OptionError) as caught:
        engine.submit([40] * size, GREEDY)

    assert str(caught.value) == (
        f"prompt: {size} tokens leave no room in the context of 64 tokens; shorten the prompt, or "
        "ask for a larger context: this model can have 1024"
    )


def test_prompt_that_fills_the_context_can_be_scored(model: LanguageModel) -> None:
    with Engine(model, context=PAGE) as engine:
        assert len(engine.score([40] * PAGE)) == PAGE - 1
        with pytest.raises(PromptTooLong):
            engine.score([40] * (PAGE + 1))


def test_closed_engine_ends_its_texts_and_takes_no_more(model: LanguageModel) -> None:
    engine = Engine(model)
    stream = engine.submit(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1000))
    next(stream)

    engine.close()

    stream.result()
    assert stream.finish == "cancelled"
    with pytest.raises(Closed):
        engine.submit(PROMPTS[0], GREEDY)


# --- devices that fail ---------------------------------------------------------------------------


def busy(streams: list[Backend], path: Path, on_failure: str) -> list[list[int]]:
    """Texts with equal beginnings, some put back for want of pages, over two devices.

    Each call makes the same passes: the reader computes, and time decides nothing.
    """
    begin = PROMPTS[5][:4] * 20
    grow = [[n, *PROMPTS[4] * 2, *PROMPTS[1][:6]] for n in range(50, 53)]  # into a second page
    prompts = [*grow, [*begin, 41, 42], [*begin, 43], [*begin, 44, 45]]
    with (
        load_model(path, streams, layers=[1, 1, 0]) as model,
        Engine(
            model,
            context=2 * PAGE,
            rows=5 * PAGE,
            texts=4,
            kv=tp.F32,
            on_failure=on_failure,
            slowdown=math.inf,
            threaded=False,
        ) as engine,
    ):
        found = [s.result() for s in [engine.submit(p, GREEDY) for p in prompts]]
        assert engine._batcher.preempted
        assert engine._batcher.reused
        return found


WAITS = (216, 285)
"""Waits of either device while the texts run."""
FEW = ((0, 0), (0, 100), (1, 33), (1, 80), (1, 284))


def test_devices_wait_as_often_as_is_tested(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    counted = [Dying(monkeypatch, stream, waits=1000) for stream in streams[:2]]

    busy(streams, model_file(), "raise")

    assert tuple(1000 - one.left for one in counted) == WAITS


@pytest.mark.parametrize(
    ("device", "waits"),
    [
        pytest.param(device, n, marks=() if (device, n) in FEW else pytest.mark.slow)
        for device, count in enumerate(WAITS)
        for n in range(count)
    ],
)
def test_no_text_is_lost_when_a_device_dies(
    device: int,
    waits: int,
    model_file: Write,
    walled: Open,
    cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = model_file()
    expected = busy([walled("walled:0"), walled("walled:1"), cpu], path, "raise")
    streams = [walled("walled:2"), walled("walled:3"), cpu]
    dying = Dying(monkeypatch, streams[device], waits)

    found = busy(streams, path, "replan")

    assert found == expected
    assert dying.left < 0


def test_lost_device_ends_all_texts_where_none_may_go_on(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    Dying(monkeypatch, streams[1], 20)

    with pytest.raises(RunFailed, match="walled:1: gone"):
        busy(streams, model_file(), "raise")


@pytest.fixture
def dying(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LanguageModel]:
    """A model one of whose devices dies."""
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    with load_model(model_file(), streams, layers=[1, 1, 0]) as model:
        Dying(monkeypatch, streams[1], 20)
        yield model


def test_failed_engine_without_a_thread_ends_all_its_texts(dying: LanguageModel) -> None:
    with Engine(dying, context=64, threaded=False) as engine:
        read, waiting = engine.submit(PROMPTS[0], GREEDY), engine.submit(PROMPTS[1], GREEDY)

        with pytest.raises(RunFailed, match="walled:1: gone"):
            read.result()

        assert waiting.finish == "failed"
        assert engine.failure is waiting.error


def test_error_of_a_failed_engine_does_not_grow_with_what_is_asked_of_it(
    dying: LanguageModel,
) -> None:
    with Engine(dying, context=64) as engine:
        stream = engine.submit(PROMPTS[0], GREEDY)
        with pytest.raises(RunFailed):
            stream.result()
        assert engine.failure is not None
        before = len(traceback.format_tb(engine.failure.__traceback__))

        for _ in range(3):
            with pytest.raises(EngineFailed, match=r"earlier text: .*walled:1: gone.*; make"):
                engine.submit(PROMPTS[0], GREEDY)
            with pytest.raises(RunFailed):
                stream.result()

        assert len(traceback.format_tb(engine.failure.__traceback__)) == before


@pytest.mark.parametrize(("remote", "groups"), [(2, 0), (2, 3), (2, 1.5), (1, 2)])
def test_groups_that_the_devices_cannot_take_are_refused_before_memory_is_taken(
    remote: int, groups: int, walled: Open, model_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled(f"walled:{i}") for i in range(2)]
    for stream in streams[:remote]:
        monkeypatch.setattr(stream.device, "remote", True)
    most = 2 if remote == 2 else 1

    with (
        load_model(model_file(), streams) as model,
        pytest.raises(OptionError, match=f"groups is {groups}; give 1 to {most} here"),
    ):
        Engine(model, context=60, rows=1 << 50, groups=groups)
