"""Rows of matrices over two GPUs, or over two parts of one; emulated."""

from collections.abc import Iterator

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import OptionError, place
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.reference import decode, encode
from tensorplug_cuda import plugin
from tensorplug_emulator import missing
from tensorplug_testing.suites.graphs import Trial
from tensorplug_testing.suites.work import Rig

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

split_buffer_type = plugin.tensorplug_extension("ggml_backend_split_buffer_type")
GRAPHS = (
    "product_bias_q4_0_1",
    "product_bias_f16_7",
    "gated_swiglu_6",
    "gated_swiglu_q8_0",
    "permuted_products",
    "cache_then_attention_1",
    "layers_flash_5",
)


@pytest.mark.parametrize(
    ("ratio", "rows"), [((3, 1), [48, 16]), ((1, 0), [64, 0]), (None, [32, 32])]
)
def test_each_gpu_has_its_share_of_the_rows(pair, ratio, rows):
    data = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
    free = [device.memory().free for device in pair]

    kind = split_buffer_type(pair, ratio)
    w = place("w", data, kind, usage=tp.WEIGHTS)

    taken = [before - device.memory().free for before, device in zip(free, pair, strict=True)]
    assert [size // 512 for size in taken] == rows
    assert (transfer.read(w) == data).all()
    w.place.buffer.close()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q8_0, tp.Q4_K], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("tokens", [1, 40])
def test_product_over_two_gpus_is_that_of_one(pair, dtype, tokens):
    random = np.random.default_rng(5)
    stored = encode(dtype, random.standard_normal((70, 256)))
    x = tp.input("x", (tokens, 256), tp.F32)
    values = random.standard_normal((tokens, 256), np.float32)
    kind = split_buffer_type(pair, (2, 1))
    w = place("w", stored, kind, usage=tp.WEIGHTS, dtype=dtype)
    with kind.device as both, both.open() as stream:
        y = tp.mul_mat(w, x)
        with tp.Scheduler([stream]).schedule(y) as run:
            found = run.run({x: values})[y]

    wanted = values.astype(float) @ decode(dtype, stored).reshape(70, 256).T
    assert np.sum((found - wanted) ** 2) < 5e-4 * np.sum(wanted**2)


@pytest.fixture
def trial(request, pair) -> Iterator[Trial]:
    """A graph of the kit on both GPUs."""
    kind = split_buffer_type(pair, (3, 2))
    with kind.device as both, CPUDevice("cpu:kit") as cpu, cpu.open() as fallback:
        work = Rig(both)
        yield Trial(work, fallback, request.param)
        work.close()


@pytest.mark.long
@pytest.mark.parametrize("trial", GRAPHS, indirect=True)
def test_graphs_of_models_over_two_gpus_are_those_of_the_reference(trial):
    trial.check(trial.graph, dict.fromkeys(trial.nodes, trial.backend))


def test_other_symbols_are_unknown():
    assert plugin.tensorplug_extension("ggml_backend_set_n_threads") is None


@pytest.mark.parametrize(
    ("chosen", "ratio", "text"),
    [
        (lambda pair, cpu: [*pair, cpu], None, "cpu:0: no device of cuda; use meta.device"),
        (lambda pair, _: pair, (1, -1), r"proportions \(1, -1\); none may be negative"),
        (lambda pair, _: pair, (1, 1, 1), r"ratio \(1, 1, 1\) for 2 devices"),
    ],
    ids=["another backend's", "negative", "too many"],
)
def test_what_cannot_be_split_is_refused(pair, chosen, ratio, text):
    with CPUDevice("cpu:0") as cpu, pytest.raises(OptionError, match=text):
        split_buffer_type(chosen(pair, cpu), ratio)


@pytest.mark.parametrize("main", [0, 1])
def test_ggmls_main_device_is_refused_with_what_to_give(main):
    with pytest.raises(OptionError) as error:
        split_buffer_type(main, (1, 1))

    assert str(error.value) == (
        f"ggml_backend_split_buffer_type: {main} as the main device; here all GPUs compute, each "
        "its rows: give devices, such as tensorplug.devices_of('cuda'), and schedule on a stream "
        "of the memory's device"
    )


def test_split_weights_without_a_stream_of_their_device_are_warned_of(pair, caplog):
    kind = split_buffer_type(pair, (1, 1))
    w = place("w", np.eye(64, dtype=np.float32), kind, usage=tp.WEIGHTS)
    x = tp.input("x", (1, 64), tp.F32)
    y = tp.mul_mat(w, x)

    with (
        CPUDevice("cpu:0") as cpu,
        cpu.open() as host,
        pair[0].open() as gpu,
        tp.Scheduler([gpu, host]) as scheduler,
        scheduler.schedule(y) as schedule,
    ):
        result = schedule.run({x: np.ones((1, 64), np.float32)})[y]
        home = schedule.device_of(y)

    assert (result == 1).all()
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        f"weights w lie in {kind.name}, where no stream of this scheduler computes: 16.0 KiB are "
        f"copied to {home} in each run; give the scheduler a stream of {kind.device.name}"
    ]
    w.place.buffer.close()
