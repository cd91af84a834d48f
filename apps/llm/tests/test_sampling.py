"""The sampler: filters in their order, the draw, and what is refused."""

from typing import Any

import numpy as np
import pytest

from tensorplug.errors import OptionError, TensorplugError
from tensorplug_llm.sampling import Sampler

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.25, 0.2])
LOGITS = np.log(PROBABILITIES)
LARGE = np.random.default_rng(7).normal(0.0, 3.0, 50_000).astype(np.float32)


def drawn(sampler: Sampler, count: int, logits: np.ndarray[Any, Any] = LOGITS) -> list[int]:
    return [sampler.sample(logits) for _ in range(count)]


def test_temperature_zero_takes_the_likeliest_token_whatever_the_filters() -> None:
    assert drawn(Sampler(top_k=3, top_p=0.1, min_p=0.5, seed=1), 3) == [1, 1, 1]


def test_of_equal_logits_the_lowest_id_is_the_likeliest() -> None:
    assert Sampler().sample(np.array([0.0, 2.0, 2.0])) == 1
    assert Sampler(1.0, top_k=1).sample(np.array([0.0, 2.0, 2.0])) == 1


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
        ({"top_k": 2, "top_p": 0.6}, [1]),
        ({"top_k": 3, "top_p": 0.7}, [1, 3]),
        ({"top_p": 0.9, "min_p": 0.6}, [1, 3]),
        ({"top_k": 4, "min_p": 0.45}, [1, 3, 4]),
    ],
)
def test_filters_leave_the_likeliest(settings: dict[str, Any], ids: list[int]) -> None:
    left, probabilities = Sampler(1.0, **settings).distribution(LOGITS)

    assert sorted(left.tolist()) == ids
    np.testing.assert_allclose(probabilities, PROBABILITIES[left] / PROBABILITIES[ids].sum())


def test_the_temperature_comes_after_the_filters() -> None:
    left, probabilities = Sampler(0.5, top_p=0.5).distribution(LOGITS)

    assert left.tolist() == [1, 3]
    np.testing.assert_allclose(probabilities, np.array([0.4**2, 0.25**2]) / (0.4**2 + 0.25**2))


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_near_zero_takes_the_likeliest_token(temperature: float) -> None:
    assert drawn(Sampler(temperature, seed=1), 5) == [1] * 5


def test_a_huge_temperature_draws_evenly() -> None:
    _, probabilities = Sampler(1e300).distribution(LOGITS)

    np.testing.assert_allclose(probabilities, 0.2)


def test_draws_follow_the_probabilities() -> None:
    counts = np.bincount(drawn(Sampler(1.0, seed=3), 20_000), minlength=5)

    np.testing.assert_allclose(counts / 20_000, PROBABILITIES, atol=0.012)


def test_equal_seeds_draw_equal_tokens_and_others_do_not() -> None:
    settings: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.01}

    first = drawn(Sampler(2.0, **settings, seed=5), 30, LARGE)

    assert first == drawn(Sampler(2.0, **settings, seed=5), 30, LARGE)
    assert first != drawn(Sampler(2.0, **settings, seed=6), 30, LARGE)
    assert drawn(Sampler(2.0), 30, LARGE) != drawn(Sampler(2.0), 30, LARGE)


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999, 0.999999])
def test_the_nucleus_of_a_large_vocabulary_equals_the_sorted_one(top_p: float) -> None:
    exact = LARGE.astype(np.float64)
    probabilities = np.exp(exact) / np.exp(exact).sum()
    order = np.argsort(-exact, kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1

    left, _ = Sampler(1.0, top_p=top_p).distribution(LARGE)

    assert left.tolist() == order[:count].tolist()


def test_a_large_vocabulary_is_cut_to_the_top_k_in_order() -> None:
    left, _ = Sampler(1.0, top_k=40).distribution(LARGE)

    assert left.tolist() == np.argsort(-LARGE, kind="stable")[:40].tolist()


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = np.where(np.arange(50) == 30, 0.0, -np.inf)

    assert drawn(Sampler(1.0, seed=0), 5, logits) == [30] * 5
    assert drawn(Sampler(1.0, top_k=9, top_p=0.999, min_p=0.1, seed=0), 5, logits) == [30] * 5


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("temperature", -0.1, "of at least 0"),
        ("temperature", float("inf"), "of at least 0"),
        ("temperature", float("nan"), "of at least 0"),
        ("top_k", -1, "of at least 0"),
        ("top_p", 1.5, "from 0 to 1"),
        ("top_p", -0.5, "from 0 to 1"),
        ("min_p", 2, "from 0 to 1"),
        ("seed", -3, "of at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: float, wanted: str) -> None:
    with pytest.raises(OptionError) as error:
        Sampler(**{setting: value})  # type: ignore[arg-type]  # any setting, any number

    assert str(error.value) == f"sampling: {setting} is {value}; give a number {wanted}"


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
        Sampler(temperature).sample(logits)

    assert str(error.value) == (
        f"sampling: logits of shape {shape} have no greatest number; the model file is damaged, or "
        "a device computed wrong: try another --device"
    )


def test_the_repr_names_the_settings() -> None:
    assert repr(Sampler(0.8, 40, 0.95, 0.05, 1)) == (
        "<Sampler temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, seed 1>"
    )
