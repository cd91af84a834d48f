"""Generation: one id after another until there is a reason to stop."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorplug import Backend
from tensorplug_llm import LanguageModel, Session, load_model
from tensorplug_llm.generation import generate
from tensorplug_llm.sampling import Sampler, SamplingParams

PROMPT = [40, 41, 42, 43, 44]


@pytest.fixture
def session(model_file: Callable[..., Path], cpu: Backend) -> Iterator[Session]:
    with load_model(model_file(), [cpu]) as model, model.session(64) as session:
        yield session


def ends_with(model: LanguageModel, id: int) -> None:
    """Let `id` end a text."""
    model.tokenizer.end_of_generation = frozenset({id})


def test_each_id_is_the_likeliest_after_those_before(session: Session) -> None:
    ids = list(generate(session, PROMPT, tokens=5))

    for n, id in enumerate(ids):
        session.rewind()
        assert id == np.argmax(session.prefill([*PROMPT, *ids[:n]])[:258])


def test_equal_seeds_give_equal_texts_and_others_do_not(session: Session) -> None:
    texts = []
    for seed in (1, 1, 2):
        session.rewind()
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        texts.append(list(generate(session, PROMPT, tokens=20, sampler=sampler)))

    assert texts[0] == texts[1] != texts[2]


def test_generation_ends_after_the_tokens_asked_for(session: Session) -> None:
    assert len(list(generate(session, PROMPT, tokens=7))) == 7
    assert session.position == len(PROMPT) + 6  # nobody needs the logits after the last


def test_generation_ends_before_the_token_that_ends_the_text(session: Session) -> None:
    params = SamplingParams(temperature=1.0, seed=1)
    ids = list(generate(session, PROMPT, tokens=10, sampler=Sampler(params)))
    first = next(i for i in range(1, 10) if ids[i] not in ids[:i])
    ends_with(session.model, ids[first])
    session.rewind()

    assert list(generate(session, PROMPT, tokens=10, sampler=Sampler(params))) == ids[:first]


def test_generation_ends_where_the_context_is_full(session: Session) -> None:
    found = list(generate(session, PROMPT * 12, tokens=50))

    assert len(found) == 5  # four are read again, the fifth finds no room


def test_generation_continues_what_the_session_has_read(session: Session) -> None:
    expected = list(generate(session, PROMPT, tokens=5))
    session.rewind()
    session.prefill(PROMPT[:3])

    assert list(generate(session, PROMPT[3:], tokens=5)) == expected


def test_spare_rows_of_the_embedding_table_are_never_chosen(session: Session) -> None:
    tokens = session.model.tokenizer.vocab_size
    sampler = Sampler(SamplingParams(temperature=100.0, seed=3))

    ids = list(generate(session, PROMPT, tokens=50, sampler=sampler))

    assert session.model.hparams.vocabulary > tokens > max(ids)
