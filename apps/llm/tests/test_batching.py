"""Batching: whatever texts come, go and share, each gets the tokens of a lone run."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug_llm import LanguageModel, SamplingParams, load_model
from tensorplug_llm.batching import Batcher, Pace, Text
from tensorplug_llm.cache import PAGE
from tensorplug_llm.runner import Runner
from tensorplug_llm.sampling import Sampled, Sampler
from tensorplug_llm.shapes import MIXED
from tensorplug_llm.step import Reading
from tensorplug_llm.testing import LoneText
from tensorplug_llm.tokenizer import StreamDecoder

from .gguf_files import write_model
from .placements import PLACEMENTS, set_activations

Write = Callable[..., Path]

CONTEXT = 4 * PAGE
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 200))]


class Heard:
    """Keeps what it is told of a text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.finish = ""

    def put(self, sampled: Sampled, text: str) -> None:
        self.ids.append(sampled.token)

    def end(self, finish: str, error: BaseException | None = None, *, text: str = "") -> None:
        assert not self.finish
        self.finish = finish


class Letters:
    """A vocabulary whose tokens write one letter each."""

    def piece(self, id: int) -> bytes:
        return b"x"

    def is_silent(self, id: int) -> bool:
        return False


class Lone:
    """Greedy tokens of texts that run by themselves."""

    def __init__(self, model: LanguageModel) -> None:
        self._lone = LoneText(model, CONTEXT, kv=tp.F32)
        self._known: dict[tuple[int, ...], list[int]] = {}

    def ids(self, prompt: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that continue a prompt."""
        known = self._known.get(tuple(prompt), [])
        if len(known) < count:
            self._lone.rewind()
            known = self._lone.continued(prompt, count)
            self._known[tuple(prompt)] = known
        return known[:count]


def text(prompt: Sequence[int], tokens: int, *, priority: int = 0) -> Text:
    """A greedy text of `tokens` tokens; `sink` is a Heard."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    return made(prompt, params, limit=len(prompt) + tokens, priority=priority)


def made(prompt: Sequence[int], params: SamplingParams, *, limit: int, priority: int = 0) -> Text:
    decoder = StreamDecoder(Letters())
    return Text(prompt, Sampler(params), Heard(), decoder, limit=limit, priority=priority)


def heard(text: Text) -> Heard:
    assert isinstance(text.sink, Heard)
    return text.sink


def run(batcher: Batcher, *texts: Text) -> list[list[int]]:
    """Let texts begin together and run to their end; return the tokens of each."""
    for one in texts:
        batcher.add(one)
    while batcher.busy:
        batcher.step()
    return [heard(one).ids for one in texts]


def prompt(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(20, 250), k=count)


@pytest.fixture(scope="module")
def streams() -> Iterator[Backend]:
    with tp.open("cpu@tensorplug-cpu?threads=1") as backend:
        yield backend


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, streams: Backend
) -> Iterator[LanguageModel]:
    path = write_model(tmp_path_factory.mktemp("model") / "m.gguf", request.param)
    with load_model(path, [streams]) as model:
        yield model


@pytest.fixture(scope="module")
def batcher(model: LanguageModel) -> Iterator[Batcher]:
    """Room for eight pages: two texts of the whole context."""
    batcher = Batcher(model, 8, most=6, kv=tp.F32)
    yield batcher
    batcher.close()


@pytest.fixture(scope="module")
def lone(model: LanguageModel) -> Lone:
    return Lone(model)


@pytest.fixture(autouse=True)
def empty(batcher: Batcher) -> Iterator[None]:
    """Each test begins with an empty cache, and ends with pages that only prefixes hold."""
    batcher.prefixes.clear()
    yield
    assert batcher.prefixes.evictable == batcher.pool.used


def test_texts_that_run_together_get_the_tokens_of_lone_runs(batcher: Batcher, lone: Lone) -> None:
    prompts = [prompt(seed, count) for seed, count in enumerate((5, 70, 1, 33, 20))]

    found = run(batcher, *(text(p, 20) for p in prompts))

    assert found == [lone.ids(p, 20) for p in prompts]


def test_text_joins_while_another_is_continued(batcher: Batcher, lone: Lone) -> None:
    first, second = text(prompt(1, 30), 30), text(prompt(2, 100), 10)
    batcher.add(first)
    for _ in range(5):
        batcher.step()

    run(batcher, second)

    assert heard(first).ids == lone.ids(first.ids[:30], 30)
    assert heard(second).ids == lone.ids(second.ids[:100], 10)


def test_equal_beginnings_are_read_once(batcher: Batcher, lone: Lone) -> None:
    begin = prompt(3, 2 * PAGE)
    prompts = [[*begin, *prompt(4, 9)], [*begin, *prompt(5, 20)]]
    reused = batcher.reused

    found = [run(batcher, text(p, 8))[0] for p in prompts]

    assert batcher.reused - reused == 2 * PAGE
    assert found == [lone.ids(p, 8) for p in prompts]


def test_rows_of_a_page_that_is_partly_equal_are_copied(batcher: Batcher, lone: Lone) -> None:
    begin = prompt(6, PAGE + 20)
    prompts = [[*begin, *prompt(7, 9)], [*begin, *prompt(8, 30)]]
    reused = batcher.reused

    found = [run(batcher, text(p, 8))[0] for p in prompts]

    assert batcher.reused - reused == len(begin)
    assert found == [lone.ids(p, 8) for p in prompts]
    assert run(batcher, text(prompts[0], 8)) == found[:1]


def test_equal_prompts_that_come_together_share_their_pages(batcher: Batcher, lone: Lone) -> None:
    same = prompt(9, 3 * PAGE)
    texts = [text(same, 5) for _ in range(3)]
    for one in texts:
        batcher.add(one)
    while any(one.unread != 1 for one in texts):
        batcher.step()
    pages = {page for one in texts for page in one.pages[:2]}

    run(batcher)

    assert len(pages) == 2
    assert [heard(one).ids for one in texts] == 3 * [lone.ids(same, 5)]


def test_text_that_finds_no_page_puts_back_the_last_one(batcher: Batcher, lone: Lone) -> None:
    prompts = [prompt(seed, 2 * PAGE - 10) for seed in range(10, 14)]
    preempted = batcher.preempted

    found = run(batcher, *(text(p, 2 * PAGE) for p in prompts))

    assert batcher.preempted > preempted
    assert found == [lone.ids(p, 2 * PAGE) for p in prompts]


def test_text_of_higher_priority_takes_the_place_of_another(batcher: Batcher, lone: Lone) -> None:
    texts = [text(prompt(seed, 8), 12) for seed in range(20, 26)]
    for one in texts:
        batcher.add(one)
    batcher.step()
    urgent = text(prompt(30, 8), 4, priority=1)
    batcher.add(urgent)
    batcher.step()

    assert urgent in batcher.running
    assert texts[-1] in batcher.waiting
    run(batcher)
    assert heard(texts[-1]).ids == lone.ids(texts[-1].ids[:8], 12)


def test_cancelled_texts_leave_at_once(batcher: Batcher) -> None:
    texts = [text(prompt(seed, 8), 50) for seed in range(40, 48)]
    for one in texts:
        batcher.add(one)
    batcher.step()
    for one in texts:
        one.cancelled = True

    batcher.step()

    assert not batcher.busy
    assert {heard(one).finish for one in texts} == {"cancelled"}


def test_text_ends_where_the_context_is_full(batcher: Batcher, lone: Lone) -> None:
    full = made(prompt(50, CONTEXT - 3), SamplingParams(temperature=0), limit=CONTEXT)

    run(batcher, full)

    assert (len(heard(full).ids), heard(full).finish) == (3, "context")


def test_failing_sampler_ends_only_its_text(batcher: Batcher, lone: Lone) -> None:
    params = SamplingParams(temperature=0, logit_bias={100_000: 1.0})
    bad = made(prompt(51, 5), params, limit=20)
    good = text(prompt(52, 5), 10)

    run(batcher, bad, good)

    assert heard(bad).finish == "failed"
    assert heard(good).ids == lone.ids(good.ids[:5], 10)


def test_decoder_with_a_bug_ends_only_its_text(
    batcher: Batcher, lone: Lone, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = text(prompt(53, 5), 10), text(prompt(54, 5), 10)
    monkeypatch.setattr(bad.decoder, "feed", lambda token: [][token])

    run(batcher, bad, good)

    assert heard(bad).finish == "failed"
    assert heard(good).ids == lone.ids(good.ids[:5], 10)


def test_same_load_plans_nothing_the_second_time(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "note", lambda *_: None)  # the time that passes take chooses sizes

    def load() -> list[list[int]]:
        batcher.prefixes.clear()
        return run(batcher, *(text(prompt(seed, 9 * seed), 15) for seed in range(1, 9)))

    first, plans = load(), batcher.runner.plans

    assert load() == first
    assert batcher.runner.plans == plans


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_do_not_depend_on_neighbours(seed: int, batcher: Batcher, lone: Lone) -> None:
    check_random_texts(seed, batcher, lone)


@pytest.mark.parametrize(("seed", "groups", "drafts"), [(0, 1, 0), (1, 2, 7), (2, 3, 0), (3, 2, 0)])
def test_tokens_do_not_depend_on_passes_in_flight(
    seed: int, groups: int, drafts: int, model: LanguageModel, lone: Lone
) -> None:
    """As over devices of other processes, which also send few logits."""
    batcher = Batcher(model, 8, most=6, kv=tp.F32, prompt_lookup=drafts)
    runner = batcher.runner
    runner._flies, runner.lanes, runner.kept, batcher._groups = True, 4, 16, groups

    check_random_texts(seed, batcher, lone)

    assert batcher.prefixes.evictable == batcher.pool.used
    batcher.close()


def check_random_texts(seed: int, batcher: Batcher, lone: Lone) -> None:
    """Run texts that come and are cancelled at random; compare each with a lone run."""
    chance = random.Random(seed)
    begins = [prompt(seed + n, chance.randint(1, 2 * PAGE)) for n in range(3)]
    texts: list[Text] = []
    while len(texts) < 12 or batcher.busy:
        if len(texts) < 12 and chance.random() < 0.3:
            begin = chance.choice(begins)[: chance.randint(1, 2 * PAGE)]
            ids = [*begin, *prompt(chance.randint(0, 999), chance.randint(0, PAGE))]
            texts.append(text(ids, chance.randint(1, 60), priority=chance.randint(0, 1)))
            batcher.add(texts[-1])
        if texts and chance.random() < 0.02:
            chance.choice(texts).cancelled = True
        batcher.step()

    for one in texts:
        ids = heard(one).ids
        assert ids == lone.ids(one.ids[: one.prompt_tokens], max(len(ids), 1))[: len(ids)]
        assert one.cancelled or heard(one).finish in ("length", "stop")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_prepared_batcher_plans_nothing_whatever_comes(seed: int, model: LanguageModel) -> None:
    chance = random.Random(seed)
    batcher = Batcher(model, 9, most=12, kv=tp.F32)
    for _ in batcher.runner.prepare():
        pass
    plans = batcher.runner.plans

    for _ in range(300):
        if chance.random() < 0.7:
            ids = prompt(chance.randint(0, 9), chance.randint(1, CONTEXT // 2))
            batcher.add(text(ids, chance.randint(1, 60)))
        batcher.step()

    assert batcher.reused
    assert batcher.preempted
    assert batcher.runner.plans == plans
    batcher.close()


@pytest.mark.parametrize("devices", PLACEMENTS)
@pytest.mark.parametrize(("activations", "most"), [("f32", 1e-4), ("int8", 5e-2)])
def test_logits_in_a_shared_pass_are_those_of_a_lone_one(
    activations: str, most: float, devices: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    set_activations(monkeypatch, activations)
    path, texts = tmp_path / "m.gguf", [prompt(n, 9 * n + 2) for n in range(5)]
    write_model(path, "llama")
    with ExitStack() as stack:
        backends = [stack.enter_context(tp.open(name)) for name in devices]
        model = stack.enter_context(load_model(path, backends))
        runner = Runner(
            model, 6, most=5, context=PAGE, kv=tp.F32, on_failure="raise", restore=lambda: None
        )
        stack.enter_context(runner)
        for page, ids in enumerate(texts):
            runner.run([Reading(ids[:-1], 0, [page], wanted=0)])
        last = [Reading(ids[-1:], len(ids) - 1, [page]) for page, ids in enumerate(texts)]
        lone = [runner.run([reading])[0][0].copy() for reading in last]

        together = runner.run([*last[:3], Reading(prompt(9, 20), 0, [5], wanted=0)])
        for (found,), expected in zip(together[:3], lone[:3], strict=True):
            assert np.abs(found - expected).max() <= most * np.abs(expected).max()
        for (found,), expected in zip(runner.run(last), lone, strict=True):
            assert np.abs(found - expected).max() <= most * np.abs(expected).max()


def test_pass_in_which_many_prompts_end_reads_no_single_token_of_another(
    model: LanguageModel, lone: Lone
) -> None:
    batcher = Batcher(model, 16, most=16, kv=tp.F32)
    # A pass reads 64 of these 68 tokens: seven whole prompts, and one token would be left.
    prompts = [prompt(seed, count) for seed, count in enumerate((9,) * 7 + (5,))]

    found = run(batcher, *(text(ids, 3) for ids in prompts))
    batcher.close()

    assert found == [lone.ids(ids, 3) for ids in prompts]


def test_pace_grows_while_passes_are_short_and_shrinks_when_they_are_long() -> None:
    pace = Pace(2.0)
    pace.note(0, 1.0)

    for _ in range(9):
        pace.note(pace.tokens, 0.5)
    assert pace.tokens == MIXED[-1]
    for _ in range(30):
        pace.note(pace.tokens, 3.0)
    assert pace.tokens == MIXED[0]


def test_pace_stays_at_the_largest_size_that_is_short_enough() -> None:
    pace = Pace(2.0)
    pace.note(0, 1.0)
    tokens = []

    for _ in range(200):
        tokens.append(pace.tokens)
        pace.note(pace.tokens, 1 + pace.tokens / 40)

    assert tokens[100:].count(32) >= 98


def test_pace_is_not_misled_by_passes_that_another_program_held_up() -> None:
    pace = Pace(2.0)
    tokens = []

    for number in range(400):
        held_up = 5 if number % 20 == 0 else 1
        pace.note(0, held_up * 1.0)
        pace.note(pace.tokens, held_up * (1 + pace.tokens / 40))
        tokens.append(pace.tokens)

    assert tokens[100:].count(32) >= 285


def test_pace_fits_the_first_size_after_one_pass() -> None:
    pace = Pace(2.0)
    pace.note(0, 1.0)

    pace.note(pace.tokens, 1 + pace.tokens / 6)

    assert pace.tokens == 4


def test_pace_takes_the_pause_that_is_allowed_where_passes_are_short() -> None:
    pace = Pace(2.0, pause=5.0)
    pace.note(0, 1.0)

    for _ in range(50):
        pace.note(pace.tokens, 1 + pace.tokens / 40)

    assert pace.tokens == 128
