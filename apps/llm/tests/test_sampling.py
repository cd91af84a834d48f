"""Sampling: rules in their order against plain references, the draw, and what is refused."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tensorplug.errors import OptionError, TensorplugError
from tensorplug_llm.sampling import Sampled, Sampler, SamplingParams, rules
from tensorplug_llm.sampling.rules import Candidates, Logits

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.25, 0.2])
LOGITS = np.log(PROBABILITIES).astype(np.float32)
LARGE = np.random.default_rng(7).normal(0.0, 3.0, 50_000).astype(np.float32)
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""No rule but the draw."""


def sampler(**changes: Any) -> Sampler:
    return Sampler(SamplingParams(**{**NEUTRAL, **changes}))


def drawn(chooser: Sampler, count: int, logits: Logits = LOGITS) -> list[int]:
    return [chooser.next(logits).token for _ in range(count)]


# --- the chain ------------------------------------------------------------------------------------


def test_defaults_are_those_of_llama_cpp() -> None:
    params = SamplingParams()

    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.typical_p, params.repeat_penalty, params.repeat_last_n) == (1.0, 1.0, 64)
    assert (params.presence_penalty, params.frequency_penalty, params.seed) == (0.0, 0.0, None)


def test_temperature_zero_takes_the_most_likely_token() -> None:
    assert drawn(sampler(temperature=0, top_k=3, top_p=0.1, min_p=0.5, seed=1), 3) == [1, 1, 1]


def test_of_equal_logits_the_lowest_id_is_the_most_likely() -> None:
    equal = np.array([0.0, 2.0, 2.0], np.float32)

    assert sampler(temperature=0).next(equal) == Sampled(1)
    assert sampler(top_k=1).next(equal) == Sampled(1)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0, "typical_p": 0.5, "top_k": 20},
        {"top_k": 40, "seed": 3},
        {"top_k": 64, "top_p": 0.9, "min_p": 0.05, "seed": 4},
    ],
)
def test_greatest_logits_in_any_order_give_the_token_that_all_give(
    settings: dict[str, Any],
) -> None:
    few, whole = sampler(**settings), sampler(**settings)
    ids = np.random.default_rng(5).permutation(rules.greatest(LARGE, 64)).astype(np.int32)

    found = [few.choose(ids, LARGE[ids]) for _ in range(5)]

    assert 0 < few.needed <= 64
    assert found == [whole.next(LARGE) for _ in range(5)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 40, "logprobs": 0},
        {"top_k": 40, "logit_bias": {1: 1.0}},
        {"temperature": 0, "repeat_penalty": 1.1},
    ],
)
def test_what_reads_other_logits_needs_all(settings: dict[str, Any]) -> None:
    assert sampler(**settings).needed == 0


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.5}, [1, 3]),
        ({"top_p": 0.7}, [1, 3, 4]),
        ({"top_p": 0.9999}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.45}, [1, 3, 4]),
        ({"min_p": 1.0}, [1]),
        ({"min_p": 0.01}, [0, 1, 2, 3, 4]),
        ({"typical_p": 0.2}, [3]),
        ({"typical_p": 0.3}, [3, 4]),
        ({"typical_p": 0.3, "temperature": 0}, [3]),
        ({"top_k": 2, "top_p": 0.6}, [1]),
        ({"top_k": 3, "top_p": 0.7}, [1, 3]),
        ({"top_p": 0.9, "min_p": 0.6}, [1, 3]),
        ({"top_k": 4, "min_p": 0.45}, [1, 3, 4]),
        ({"logit_bias": {1: -math.inf, 4: -math.inf}}, [0, 2, 3]),
        ({"top_k": 1, "logit_bias": {2: 5.0}}, [2]),
    ],
)
def test_rules_leave_these_tokens(settings: dict[str, Any], ids: list[int]) -> None:
    left, _ = sampler(**settings).distribution(LOGITS)

    assert sorted(left) == ids


def test_probabilities_of_what_is_left_are_those_of_the_model() -> None:
    left, probabilities = sampler(top_k=3).distribution(LOGITS)

    np.testing.assert_allclose(
        probabilities, PROBABILITIES[left] / PROBABILITIES[left].sum(), rtol=1e-6
    )


def test_the_temperature_comes_after_the_filters() -> None:
    left, probabilities = sampler(temperature=0.5, top_p=0.5).distribution(LOGITS)

    assert left == [1, 3]
    squares = np.array([0.4**2, 0.25**2])
    np.testing.assert_allclose(probabilities, squares / squares.sum(), rtol=1e-6)


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_near_zero_takes_the_most_likely_token(temperature: float) -> None:
    assert drawn(sampler(temperature=temperature, seed=1), 5) == [1] * 5


def test_a_huge_temperature_draws_evenly() -> None:
    _, probabilities = sampler(temperature=1e300).distribution(LOGITS)

    np.testing.assert_allclose(probabilities, 0.2)


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = np.where(np.arange(50) == 30, 0.0, -np.inf).astype(np.float32)

    assert drawn(sampler(seed=0), 5, logits) == [30] * 5
    assert drawn(sampler(top_k=9, top_p=0.999, min_p=0.1, seed=0), 5, logits) == [30] * 5


def test_logits_are_left_as_they_are() -> None:
    logits = LOGITS.copy()

    sampler(repeat_penalty=2.0, logit_bias={0: 3.0}, typical_p=0.5).next(logits, [1, 2])

    np.testing.assert_array_equal(logits, LOGITS)


# --- each rule against a plain reference ----------------------------------------------------------


def softmax(logits: Any) -> Any:
    exact = np.asarray(logits, np.float64)
    weights = np.exp(exact - exact.max())
    return weights / weights.sum()


def nucleus(logits: Any, top_p: float) -> list[int]:
    """Sorts everything, then adds up."""
    probabilities, kept, total = softmax(logits), [], 0.0
    for id in np.argsort(-np.asarray(logits), kind="stable").tolist():
        kept.append(id)
        total += probabilities[id]
        if total >= top_p:
            break
    return kept


def typical(logits: Any, typical_p: float) -> list[int]:
    probabilities = softmax(logits)
    information = -np.log(probabilities)
    entropy = (probabilities * information).sum()
    kept, total = [], 0.0
    for id in np.argsort(np.abs(information - entropy), kind="stable").tolist():
        kept.append(id)
        total += probabilities[id]
        if total > typical_p:
            break
    return kept


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999, 0.999999])
def test_the_nucleus_of_a_large_vocabulary_equals_the_sorted_one(top_p: float) -> None:
    left, _ = sampler(top_p=top_p).distribution(LARGE)

    assert left == nucleus(LARGE, top_p)


@pytest.mark.parametrize("typical_p", [0.05, 0.5, 0.95, 0.99999])
def test_typical_tokens_of_a_large_vocabulary_equal_the_sorted_ones(typical_p: float) -> None:
    left, _ = sampler(typical_p=typical_p).distribution(LARGE)

    assert left == typical(LARGE, typical_p)


@pytest.mark.parametrize("seed", range(20))
def test_the_greatest_of_any_values_equal_the_sorted_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 40_000))
    values = random.normal(0, 2, size).astype(np.float32)
    values = values.round(1) if seed % 2 else values  # many ties
    values[random.random(size) < random.choice([0.0, 0.5, 0.999])] = -np.inf
    count = int(random.integers(1, min(size, 6000) + 1))

    found = rules.greatest(values, count)

    expected = np.argsort(-values, kind="stable")[:count]
    assert found.tolist() == [id for id in expected.tolist() if values[id] > -np.inf]


def test_penalties_count_each_occurrence_in_the_recent_text() -> None:
    logits = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
    recent = [0, 1, 1, 3, 0, 1]

    changed = rules.penalise(logits, recent, repeat=1.5, presence=0.25, frequency=0.5)

    expected = logits.tolist()
    for id, count in Counter(recent).items():
        scaled = expected[id] / 1.5 if expected[id] > 0 else expected[id] * 1.5
        expected[id] = scaled - 0.5 * count - 0.25
    np.testing.assert_allclose(changed, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("last", "penalised"), [(0, ()), (1, (3,)), (2, (2, 3)), (64, (1, 2, 3)), (-1, (1, 2, 3))]
)
def test_only_the_last_tokens_are_penalised(last: int, penalised: tuple[int, ...]) -> None:
    even = np.zeros(5, np.float32)

    _, probabilities = sampler(repeat_last_n=last, presence_penalty=1.0).distribution(
        even, [1, 2, 3]
    )

    less = [id for id in range(5) if probabilities[id] < max(probabilities)]
    assert tuple(less) == penalised


def test_min_p_is_a_fraction_of_the_greatest_probability() -> None:
    found = Candidates(np.arange(LARGE.size), LARGE.astype(np.float64))

    kept = rules.keep_min_p(found, 0.05).ids.tolist()

    probabilities = softmax(LARGE)
    assert kept == np.flatnonzero(probabilities >= 0.05 * probabilities.max()).tolist()


# --- the draw -------------------------------------------------------------------------------------


def test_draws_follow_the_probabilities() -> None:
    counts = np.bincount(drawn(sampler(seed=3), 20_000), minlength=5)

    np.testing.assert_allclose(counts / 20_000, PROBABILITIES, atol=0.012)


def test_equal_seeds_draw_equal_tokens_and_others_do_not() -> None:
    settings: dict[str, Any] = {"temperature": 2.0, "top_k": 40, "top_p": 0.95, "min_p": 0.01}

    first = drawn(sampler(**settings, seed=5), 30, LARGE)

    assert first == drawn(sampler(**settings, seed=5), 30, LARGE)
    assert first != drawn(sampler(**settings, seed=6), 30, LARGE)
    assert drawn(sampler(temperature=2.0), 30, LARGE) != drawn(sampler(temperature=2.0), 30, LARGE)


def test_results_of_one_prompt_draw_with_seeds_that_follow_each_other() -> None:
    params = SamplingParams(**{**NEUTRAL, "seed": 5})

    assert drawn(Sampler(params, index=2), 30, LARGE) == drawn(sampler(seed=7), 30, LARGE)


# --- log probabilities ----------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_model() -> None:
    chosen = sampler(logprobs=2, logit_bias={2: 100.0}).next(LOGITS)

    assert chosen.token == 2
    assert chosen.logprob == pytest.approx(math.log(0.05), rel=1e-6)
    assert [id for id, _ in chosen.top_logprobs] == [1, 3]
    assert [p for _, p in chosen.top_logprobs] == pytest.approx(
        [math.log(0.4), math.log(0.25)], rel=1e-6
    )


def test_zero_log_probabilities_are_that_of_the_chosen_token() -> None:
    chosen = sampler(temperature=0, logprobs=0).next(LOGITS)

    assert chosen.logprob == pytest.approx(math.log(0.4), rel=1e-6)
    assert chosen.top_logprobs == ()


def test_without_log_probabilities_none_are_computed() -> None:
    assert sampler(temperature=0).next(LOGITS) == Sampled(1, None, ())


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("temperature", -0.1, "a number of at least 0"),
        ("temperature", float("inf"), "a number of at least 0"),
        ("temperature", float("nan"), "a number of at least 0"),
        ("top_k", -1, "a number of at least 0"),
        ("top_k", 1.5, "a whole number"),
        ("top_p", 1.5, "a number from 0 to 1"),
        ("top_p", -0.5, "a number from 0 to 1"),
        ("min_p", 2, "a number from 0 to 1"),
        ("typical_p", 1.01, "a number from 0 to 1"),
        ("repeat_penalty", 0, "a number from 1e-09 to 1e+09"),
        ("repeat_last_n", -2, "a number of at least -1"),
        ("presence_penalty", float("nan"), "a number from -1e+09 to 1e+09"),
        ("frequency_penalty", 1e300, "a number from -1e+09 to 1e+09"),
        ("seed", -3, "a number of at least 0"),
        ("max_tokens", 0, "a number of at least 1"),
        ("n", 0, "a number of at least 1"),
        ("n", None, "a number of at least 1"),
        ("temperature", 10**400, "a number of at least 0"),
        ("stop", 5, "a text or a list of texts"),
        ("logit_bias", 5, "numbers by token ids"),
        ("logprobs", -1, "a number of at least 0"),
        ("logprobs", 2.5, "a whole number"),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: Any, wanted: str) -> None:
    with pytest.raises(OptionError) as error:
        SamplingParams(**{setting: value})

    assert str(error.value) == f"sampling: {setting} is {value}; give {wanted}"


@pytest.mark.parametrize("stop", [("",), ("a", ""), "", (3,)])
def test_stop_strings_that_are_empty_or_not_texts_are_refused(stop: Any) -> None:
    with pytest.raises(OptionError, match=r"^sampling: stop has .*; give texts that are not empty"):
        SamplingParams(stop=stop)


def test_numbers_of_numpy_are_numbers() -> None:
    bias = {np.int64(3): np.float32(1)}
    found = SamplingParams(max_tokens=np.int64(3), top_p=np.float32(0.5), logit_bias=bias)

    assert repr(found) == "SamplingParams(top_p=0.5, logit_bias={3: 1.0}, max_tokens=3)"


def test_text_of_a_number_is_not_a_number() -> None:
    with pytest.raises(OptionError, match=r"^sampling: temperature is '0\.5'; give a number"):
        SamplingParams(temperature="0.5")  # type: ignore[arg-type]


def test_one_stop_string_needs_no_tuple() -> None:
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)


@pytest.mark.parametrize("bias", [{-1: 1.0}, {"a": 1.0}, {1: "x"}, {1: math.nan}, {1: math.inf}])
def test_bias_that_is_no_number_for_a_token_is_refused(bias: Any) -> None:
    with pytest.raises(OptionError, match=r"^sampling: logit_bias has "):
        SamplingParams(logit_bias=bias)


def test_bias_of_tokens_that_the_vocabulary_lacks_is_refused() -> None:
    with pytest.raises(OptionError) as error:
        sampler(logit_bias={5: 1.0}).next(LOGITS)

    assert str(error.value) == ("sampling: logit_bias names token 5, and this model knows 0 to 4")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_that_forbids_every_token_is_refused(temperature: float) -> None:
    bias = dict.fromkeys(range(5), -math.inf)

    with pytest.raises(TensorplugError, match=r"^sampling: no token is allowed: logit_bias"):
        sampler(temperature=temperature, logit_bias=bias).next(LOGITS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "shape"),
    [
        ([0.0, np.nan, 1.0], "[3]"),
        ([0.0, np.inf], "[2]"),
        ([-np.inf, -np.inf], "[2]"),
        ([], "[0]"),
        ([[1.0, 2.0]], "[1, 2]"),
    ],
)
def test_logits_without_a_greatest_number_are_refused(
    temperature: float, logits: list[Any], shape: str
) -> None:
    with pytest.raises(TensorplugError) as error:
        sampler(temperature=temperature).next(np.array(logits, np.float32))

    assert str(error.value) == (
        f"sampling: logits of shape {shape} have no greatest number; the model file is damaged, or "
        "a device computed wrong: try another --device"
    )


def test_the_repr_names_the_settings_that_differ_from_the_defaults() -> None:
    chooser = Sampler(SamplingParams(temperature=0.5, seed=1), index=1)

    assert repr(chooser) == "<Sampler SamplingParams(temperature=0.5, seed=1), result 1>"
