"""Prompt lookup: whatever is drafted, a text gets the tokens that it gets without drafts."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import OptionError
from tensorplug_llm import Engine, LanguageModel, SamplingParams, load_model
from tensorplug_llm.cache import PAGE
from tensorplug_llm.lookup import MOST_DRAFTED, PromptLookup, sizes_up_to
from tensorplug_llm.sampling.grammar import Grammars
from tensorplug_llm.stream import Stream

from .failing import Dying
from .gguf_files import END, write_model

Write = Callable[..., Path]

CONTEXT = 4 * PAGE
MOST = 15
SIZES = (1, 3, 7, 15)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))]


def prompt(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(20, 250), k=count)


def engine(model: LanguageModel, drafts: int = MOST, *, rows: int = 2 * CONTEXT) -> Engine:
    """An engine that the test's own thread drives."""
    return Engine(
        model,
        context=CONTEXT,
        rows=rows,
        texts=4,
        kv=tp.F32,
        prompt_lookup=drafts,
        threaded=False,
    )


class Told:
    """Drafts what a text will have, with a wrong token at a random place of most drafts."""

    def __init__(self, patch: pytest.MonkeyPatch, whole: Sequence[int], seed: int = 0) -> None:
        self.whole = whole
        self.drafts: list[int] = []
        """The place in the text of each draft."""
        self._chance = random.Random(seed)
        patch.setattr(PromptLookup, "draft", lambda _self, ids, most: self._draft(ids, most))

    def _draft(self, ids: Sequence[int], most: int) -> list[int]:
        count = max((n for n in SIZES if n <= min(most, self._chance.randint(0, 20))), default=0)
        found = [*self.whole, *([0] * MOST)][len(ids) :][:count]
        if found and self._chance.random() < 0.7:
            found[self._chance.randrange(len(found))] ^= 1
        self.drafts.append(len(ids))
        return found


@pytest.fixture(scope="module")
def streams() -> Iterator[Backend]:
    with tp.open("cpu@tensorplug-cpu?threads=1") as backend:
        yield backend


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, streams: Backend
) -> Iterator[LanguageModel]:
    """Of gemma3 every second layer sees a window of 20 tokens."""
    path = write_model(tmp_path_factory.mktemp("model") / "m.gguf", request.param)
    with load_model(path, [streams]) as model:
        yield model


@pytest.fixture(scope="module")
def plain(model: LanguageModel) -> Iterator[Engine]:
    with engine(model, 0) as found:
        yield found


def ended(stream: Stream) -> tuple[list[int], str]:
    return stream.result(), stream.finish


def whole(stream: Stream) -> list[int]:
    """A text with its prompt, and the token that ended it."""
    return [*stream.prompt, *stream.result(), *([END] * (stream.finish == "stop"))]


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_do_not_depend_on_drafts(
    seed: int, model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    params = SamplingParams(
        temperature=chance.choice((0, 0.8, 2.0)),
        repeat_penalty=chance.choice((1.0, 1.2)),
        logit_bias={END: chance.choice((0.0, 3.0))},
        seed=seed,
        logprobs=2,
        max_tokens=chance.choice((None, 1, 5, 100)),
    )
    ids = prompt(seed, chance.randint(1, 2 * PAGE))
    expected = plain.submit(ids, params)
    sampled = list(expected)
    told = Told(monkeypatch, whole(expected), seed)

    with engine(model) as drafting:
        stream = drafting.submit(ids, params)
        found = list(stream)

    assert ended(stream) == ended(expected)
    assert [one.token for one in found] == [one.token for one in sampled]
    for one, other in zip(found, sampled, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert told.drafts or len(sampled) <= 1


def test_a_text_that_repeats_itself_takes_fewer_passes(model: LanguageModel, plain: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=200)
    ids = prompt(1, 20)
    expected = plain.submit(ids, params).result()  # a random model soon says the same forever

    with engine(model) as drafting:
        found = drafting.submit(ids, params).result()
        batcher = drafting._batcher

        assert found == expected
        assert len(found) // 2 < batcher.accepted <= batcher.drafted


def test_texts_that_are_scored_draft_nothing(model: LanguageModel, plain: Engine) -> None:
    # The last pass of 64 + 1 tokens reads one token, behind which a generated text would draft.
    ids = prompt(3, 13) * 5

    with engine(model) as drafting:
        assert drafting.score(ids) == pytest.approx(plain.score(ids), abs=1e-4)
        assert not drafting._batcher.drafted


@pytest.mark.parametrize("place", [PAGE - 3, PAGE - 1, PAGE])
def test_drafts_cross_the_end_of_a_page(
    place: int, model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(2, place)
    expected = plain.submit(ids, GREEDY)
    monkeypatch.setattr(
        PromptLookup, "draft", lambda _self, ids, most: whole(expected)[len(ids) :][: min(most, 7)]
    )

    with engine(model) as drafting:
        found = drafting.submit(ids, GREEDY).result()

        assert found == expected.result()
        assert drafting._batcher.accepted == drafting._batcher.drafted > 30


@pytest.mark.parametrize("most", range(2, 12))
def test_text_ends_within_a_draft(
    most: int, model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(3, 10)
    whole_text = whole(plain.submit(ids, GREEDY))
    Told(monkeypatch, whole_text)
    short = SamplingParams(temperature=0, max_tokens=most)
    told = whole_text[10 : 10 + most]
    stop = SamplingParams(temperature=0, stop=[model.tokenizer.decode(told[-2:])])

    with engine(model) as drafting:
        assert ended(drafting.submit(ids, short)) == (told, "length")
        assert ended(drafting.submit(ids, stop)) == ended(plain.submit(ids, stop))


def test_text_ends_by_its_token_within_a_draft(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(seed=5, temperature=1.5, logit_bias={END: 2.0})
    ids = prompt(4, 12)
    expected = plain.submit(ids, params)
    text = whole(expected)
    assert expected.finish == "stop"
    text += [30] * 7  # behind the end: tokens that the text must not get
    monkeypatch.setattr(
        PromptLookup, "draft", lambda _self, ids, most: text[len(ids) :][: min(most, 7)]
    )

    with engine(model) as drafting:
        assert ended(drafting.submit(ids, params)) == ended(expected)


def test_text_fills_its_context_with_drafts(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, params = prompt(5, CONTEXT - 30), SamplingParams(temperature=0)
    expected = plain.submit(ids, params)
    Told(monkeypatch, whole(expected))

    with engine(model, rows=CONTEXT) as drafting:
        assert ended(drafting.submit(ids, params)) == ended(expected)
        assert expected.finish == "context"


def test_texts_that_run_together_draft_nothing(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(6, 9), prompt(7, 30), prompt(8, 2)]
    expected = [plain.submit(ids, GREEDY) for ids in prompts]
    texts = [whole(stream) for stream in expected]
    told = Told(monkeypatch, texts[0])

    with engine(model) as drafting:
        streams = [drafting.submit(ids, GREEDY) for ids in prompts]
        found = [stream.result() for stream in streams]

    assert found == [stream.result() for stream in expected]
    assert told.drafts == []


def test_others_join_and_leave_while_a_text_drafts(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has pages for one text and a half: texts are put back."""
    params = SamplingParams(temperature=0)
    prompts = [prompt(9, 20), prompt(10, 90), prompt(11, 30)]
    expected = [plain.submit(ids, params) for ids in prompts]
    told = Told(monkeypatch, whole(expected[0]))

    with engine(model, rows=CONTEXT + 2 * PAGE) as drafting:
        first = drafting.submit(prompts[0], params)
        for _ in range(5):
            next(first)
        others = [drafting.submit(ids, params) for ids in prompts[1:]]
        gone = drafting.submit(prompts[1], params, priority=1)
        next(others[0])
        gone.cancel()
        found = [stream.result() for stream in (first, *others)]
        batcher = drafting._batcher

        assert found == [stream.result() for stream in expected]
        assert batcher.preempted
        assert told.drafts
        assert batcher.prefixes.evictable == batcher.pool.used


def test_texts_that_follow_read_no_row_of_a_wrong_draft(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(12, PAGE - 4)
    expected = plain.submit(ids, GREEDY)
    text = whole(expected)
    monkeypatch.setattr(PromptLookup, "draft", lambda _self, _ids, most: [21] * min(most, 7))

    with engine(model) as drafting:
        drafting.submit(ids, SamplingParams(temperature=0, max_tokens=2)).result()
        found = drafting.submit(text[: PAGE + 8], GREEDY).result()

        assert drafting._batcher.reused > 0
    assert found == plain.submit(text[: PAGE + 8], GREEDY).result()


def test_prepared_engine_plans_nothing_for_drafts(
    model: LanguageModel, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(13, 30)
    Told(monkeypatch, whole(plain.submit(ids, GREEDY)), seed=2)

    with engine(model) as drafting:
        drafting.prepare()
        plans = drafting.plans
        for seed in range(3):
            drafting.submit(ids, SamplingParams(max_tokens=60, seed=seed)).result()

        assert drafting._batcher.drafted
        assert drafting.plans == plans


SCHEMA = {
    "type": "array",
    "items": {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}, "b": {"type": "null"}}},
    "minItems": 3,
}


def allowed(model: LanguageModel, params: SamplingParams, ids: Sequence[int]) -> bool:
    """Whether the grammar of `params` allows each token where it stands."""
    constraint = Grammars(model.tokenizer).constraint(params)
    assert constraint is not None
    for id in ids:
        if not constraint.allowed()[id]:
            return False
        constraint.accept(id)
    return True


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "asked",
    [{"json_schema": SCHEMA}, {"grammar": 'root ::= ("ab" | "ba" | [0-9]){20,50} "."'}],
    ids=["schema", "grammar"],
)
def test_text_of_a_grammar_does_not_depend_on_drafts(
    asked: dict[str, Any],
    seed: int,
    model: LanguageModel,
    plain: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    print("seed", seed)
    params = SamplingParams(temperature=seed / 2, seed=seed, max_tokens=80, **asked)
    ids = prompt(seed, 30)
    expected = plain.submit(ids, params)
    assert len(expected.result()) > 10
    Told(monkeypatch, whole(expected), seed)

    with engine(model) as drafting:
        stream = drafting.submit(ids, params)

        assert ended(stream) == ended(expected)
        assert 0 < drafting._batcher.accepted <= drafting._batcher.drafted
    assert allowed(model, params, stream.ids)


def test_text_that_repeats_itself_by_its_grammar_takes_fewer_passes(
    model: LanguageModel, plain: Engine
) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    params = SamplingParams(temperature=0, max_tokens=150, grammar='root ::= ("again, "){12}')
    ids = prompt(1, 20)

    with engine(model) as drafting:
        found = drafting.submit(ids, params).result()

        assert found == plain.submit(ids, params).result()
        assert drafting._batcher.accepted > len(found) // 2 > 10
    assert allowed(model, params, found)


@pytest.mark.parametrize("waits", [20, 45, pytest.param(55, marks=pytest.mark.slow)])
def test_text_that_drafts_goes_on_where_a_device_dies(
    waits: int,
    model_file: Write,
    walled: Callable[..., Backend],
    cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, ids = model_file(), prompt(14, 20)
    with load_model(path, [cpu]) as model, engine(model, 0) as plain:
        text = whole(plain.submit(ids, GREEDY))
    Told(monkeypatch, text)
    streams = [walled("walled:0"), cpu]
    dying = Dying(monkeypatch, streams[0], waits)

    with (
        load_model(path, streams, layers=[1, 1]) as model,
        Engine(
            model,
            context=CONTEXT,
            kv=tp.F32,
            prompt_lookup=MOST,
            on_failure="replan",
            threaded=False,
        ) as drafting,
    ):
        found = drafting.submit(ids, GREEDY).result()

    assert found == text[20:]
    assert dying.left < 0


def test_models_with_recurrent_layers_refuse_drafts(model_file: Write, cpu: Backend) -> None:
    with (
        load_model(model_file("mamba2"), [cpu]) as model,
        pytest.raises(OptionError, match="prompt_lookup: layers of mamba2 keep a state"),
    ):
        Engine(model, prompt_lookup=4)


@pytest.mark.parametrize("count", [-1, MOST_DRAFTED + 1])
def test_number_of_drafts_is_checked(count: int, model_file: Write, cpu: Backend) -> None:
    with (
        load_model(model_file(), [cpu]) as model,
        pytest.raises(OptionError, match=rf"prompt_lookup is {count}; give .* from 0 to 63"),
    ):
        Engine(model, prompt_lookup=count)


# --- what is drafted ------------------------------------------------------------------------------


def test_draft_is_what_followed_the_last_occurrence_of_the_last_tokens() -> None:
    lookup = PromptLookup((7,))

    assert lookup.draft([1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3], 99) == [
        *(6, 7, 8, 9, 10, 11, 12)
    ]


def test_three_tokens_are_looked_for_before_two() -> None:
    lookup = PromptLookup((1,))

    assert lookup.draft([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 99) == [4]
    assert PromptLookup((1,)).draft([9, 2, 3, 5, 1, 2, 3], 99) == [5]


def test_text_that_repeats_a_few_tokens_is_drafted_beyond_its_end() -> None:
    lookup = PromptLookup((7,))

    assert lookup.draft([5, 1, 2, 3, 1, 2, 3], 99) == [1, 2, 3, 1, 2, 3, 1]


def test_new_tokens_draft_nothing() -> None:
    lookup = PromptLookup(SIZES)

    assert lookup.draft(range(100), 99) == []
    assert lookup.draft([1], 99) == []


def test_drafts_have_few_sizes_and_fit() -> None:
    lookup, ids = PromptLookup(SIZES), [1, 2, 3, 4] * 20
    lookup.judge(15, 15)

    assert [len(lookup.draft(ids, most)) for most in (0, 1, 2, 3, 10, 20)] == [0, 1, 1, 3, 7, 15]


def test_drafts_grow_while_they_are_right_and_shrink_to_what_was_right() -> None:
    lookup, ids = PromptLookup(SIZES), [1, 2, 3, 4] * 20
    lengths = []

    for right in (1, 3, 7, 15, 4, 0, 1):
        lengths.append(len(lookup.draft(ids, 99)))
        lookup.judge(lengths[-1], right)

    assert lengths == [1, 3, 7, 15, 15, 3, 1]


@pytest.mark.parametrize(
    ("most", "sizes"), [(0, ()), (1, (1,)), (2, (1, 2)), (7, (1, 3, 7)), (10, (1, 3, 7, 10))]
)
def test_sizes_of_drafts_double_up_to_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert sizes_up_to(most) == sizes


def test_text_keeps_its_places_as_it_grows() -> None:
    chance, ids = np.random.default_rng(1), [1, 2]
    lookup = PromptLookup(SIZES)

    for _ in range(200):
        ids.append(int(chance.integers(0, 4)))
        assert lookup.draft(ids, 99) == PromptLookup(SIZES).draft(ids, 99)
