"""Which device holds which layer: by free memory, or as the user says."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tensorplug import Backend
from tensorplug.errors import OptionError
from tensorplug_llm import load_model
from tensorplug_llm.fit import fit
from tensorplug_llm.placement import check_counts, distribute

from .gguf_files import VOCABULARY, random_tensors

Open = Callable[..., Backend]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "layers", "counts"),
    [
        ((8, 8), 10, (5, 5, 0)),
        ((2, 6), 8, (1, 5, 2)),
        ((2, 2), 8, (1, 1, 6)),
        ((0, 0), 7, (4, 3, 0)),
        ((0, 4), 8, (5, 3, 0)),
    ],
)
def test_accelerators_take_layers_by_free_memory_and_the_processor_the_rest(
    free: tuple[int, int], layers: int, counts: tuple[int, ...], walled: Open, cpu: Backend
) -> None:
    backends = [walled(f"walled:{i}", free=n * GIB) for i, n in enumerate(free)]

    assert distribute([GIB] * layers, [*backends, cpu]) == counts


def test_accelerators_alone_take_everything(walled: Open) -> None:
    backends = [walled("walled:0", free=GIB), walled("walled:1", free=GIB)]

    assert distribute([GIB] * 9, backends) == (4, 5)


def test_processor_alone_takes_everything(cpu: Backend) -> None:
    assert distribute([GIB] * 9, [cpu]) == (9,)


@pytest.mark.parametrize(
    ("given", "full"), [([2, 3], [2, 3]), ([4], [4, 1]), ([0, 5], [0, 5]), ([5], [5, 0])]
)
def test_missing_count_takes_the_rest(
    given: Sequence[int], full: list[int], walled: Open, cpu: Backend
) -> None:
    assert check_counts(given, 5, [walled(), cpu]) == full


@pytest.mark.parametrize("given", [[6], [-1], [1, 2, 2]])
def test_counts_that_cannot_be_are_refused(
    given: Sequence[int], walled: Open, cpu: Backend
) -> None:
    with pytest.raises(OptionError) as caught:
        check_counts(given, 5, [walled(), cpu])

    assert str(caught.value) == (
        f"layers: {', '.join(map(str, given))} do not distribute 5 layers over walled:0, cpu:0; "
        "give at most one number for each device, none negative"
    )


def test_counts_that_leave_layers_over_are_refused(walled: Open, cpu: Backend) -> None:
    with pytest.raises(OptionError) as caught:
        check_counts([1, 2], 5, [walled(), cpu])

    assert str(caught.value) == (
        "layers: 1, 2 make 3 of 5 layers; give them all, or leave out the number for cpu:0"
    )


def test_tied_embedding_lies_once_with_the_last_layer(
    model_file: Callable[..., Path], walled: Open
) -> None:
    first, last = walled("walled:0"), walled("walled:1")

    with load_model(model_file(), [first, last], layers=[1, 1]) as model:
        assert model.placement.layers == (first, last)
        assert model.placement.embedding is model.placement.output is last
        assert model.placement.counts == {"walled:0": 1, "walled:1": 1}


def test_tied_embedding_of_devices_of_other_processes_lies_on_the_host_too(
    model_file: Callable[..., Path], walled: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, streams = model_file(), [walled("walled:0"), walled("walled:1")]
    here = weights_by_device(path, streams)
    for stream in streams:
        monkeypatch.setattr(stream.device, "remote", True)

    with load_model(path, streams, layers=[1, 1]) as model:
        assert model.placement.embedding.name == "cpu:0"
        output = model.weights.tensors["output.weight"]
        assert output.place is not None
        assert output.place.buffer.type.device is streams[1].device
    there = weights_by_device(path, streams)
    assert there.pop("cpu:0")
    assert not here.pop("cpu:0", 0)
    assert there == here


def weights_by_device(path: Path, streams: Sequence[Backend]) -> dict[str, int]:
    """Bytes of weights, those that stay in the file too, that `fit` finds for each device."""
    needs = fit(path, streams, layers=[1, 1]).devices
    return {need.device: need.weights + need.mapped for need in needs}


def test_untied_embedding_is_looked_up_by_the_host(
    model_file: Callable[..., Path], walled: Open
) -> None:
    table = random_tensors("llama", 1)["token_embd.weight"]
    assert table.shape == (VOCABULARY, 32)
    gpu = walled()

    with load_model(model_file(tensors={"output.weight": table}), [gpu]) as model:
        assert model.placement.embedding.name == "cpu:0"
        assert model.placement.output is gpu
        assert [backend.name for backend in model.backends] == ["walled:0", "cpu:0"]
