"""The processor as a device: facts, options, memory it takes, what it refuses."""

import mmap
import subprocess
import sys

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Capabilities,
    SupportsAbort,
    SupportsHostImport,
    SupportsNuma,
    SupportsReference,
    SupportsThreadPool,
    SupportsThreads,
    place_in,
)
from tensorplug.dtypes import IQ1_S, IQ2_XXS
from tensorplug.graph.tensor import leaf
from tensorplug_cpu import host, plugin
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.kernels import KERNELS
from tensorplug_cpu.threads import available_cores
from tensorplug_testing.null import NullDevice
from tensorplug_testing.running import run

# --- facts ----------------------------------------------------------------------------------


def test_device_is_a_cpu_with_a_model_name(device):
    assert device.type is tp.DeviceType.CPU
    assert device.description.strip()


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_memory_is_known_on_systems_of_the_posix_kind(device, monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)

    memory = device.memory()

    assert 0 < memory.free <= memory.total


def test_processor_has_a_name_even_where_nobody_tells(monkeypatch):
    monkeypatch.setattr(sys, "platform", "unheard-of")

    name = host.processor_name.__wrapped__()

    assert name


def test_abilities_are_those_of_host_threads(device, backend):
    abilities = (SupportsThreads, SupportsAbort, SupportsReference, SupportsThreadPool)

    assert all(isinstance(backend, ability) for ability in abilities)
    assert isinstance(device, SupportsHostImport)
    assert isinstance(device, SupportsNuma)
    assert device.capabilities == Capabilities(
        async_transfer=False,
        async_copy=False,
        events=False,
        host_buffer=False,
        host_import=True,
        mmap=True,
        threads=True,
        abort=True,
    )


# --- plugin ---------------------------------------------------------------------------------


def test_plugin_offers_one_device_and_says_what_numpy_found():
    devices = plugin.tensorplug_devices()

    assert [device.name for device in devices] == ["cpu:0"]
    assert plugin.tensorplug_score() == 1
    assert set(plugin.tensorplug_features()) == {"numpy", "blas", "simd"}


def test_plugin_imports_no_kernels_before_they_are_needed():
    asked = "import sys, tensorplug_cpu.plugin; print('tensorplug_cpu.kernels' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)

    assert answer.stdout.strip() == b"False"


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), [({}, available_cores()), ({"threads": "3"}, 3)])
def test_threads_are_an_option_and_all_cores_without_it(device, given, wanted):
    with device.open(**given) as backend:
        assert backend.threads == wanted


def test_negative_number_of_threads_is_refused(device):
    with pytest.raises(tp.OptionError) as caught:
        device.open(threads=-2)

    assert str(caught.value) == "cpu:0: option threads=-2 is negative; use 0 for all cores"


TOO_MANY = "and at most 4096 can be used; give as many as there are cores"


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (0, "cpu:0: threads=0; at least one thread is needed"),
        (4097, f"cpu:0: threads=4097, {TOO_MANY}"),
        (10**30, f"cpu:0: threads={10**30}, {TOO_MANY}"),
    ],
)
def test_number_of_threads_can_change_but_not_to_none_or_too_many(device, count, sentence):
    with device.open(threads=1) as backend:
        backend.threads = 2

        with pytest.raises(tp.OptionError) as caught:
            backend.threads = count

        assert backend.threads == 2
    assert str(caught.value) == sentence


def test_a_stream_of_too_many_threads_is_refused(device):
    with pytest.raises(tp.OptionError) as caught:
        device.open(threads=100_000)

    assert str(caught.value) == f"cpu:0: threads=100000, {TOO_MANY}"


def test_device_closes_while_the_error_of_a_stream_that_never_came_to_be_is_kept():
    device = CPUDevice("cpu:0")

    with device, pytest.raises(tp.OptionError) as caught:
        device.open(threads=100_000)

    assert device.closed
    assert caught.value.__traceback__ is not None


# --- NUMA -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "wanted"), [(1, False), (2, True)])
def test_machine_with_several_memory_nodes_is_numa(device, monkeypatch, nodes, wanted):
    monkeypatch.setattr(host, "numa_nodes", lambda: nodes)

    assert device.is_numa is wanted


@pytest.mark.parametrize("strategy", ["disabled", "distribute", "isolate", "numactl", "mirror"])
def test_every_numa_strategy_is_fine_where_there_is_one_node(device, monkeypatch, strategy):
    monkeypatch.setattr(host, "numa_nodes", lambda: 1)

    device.init_numa(strategy)


def test_numa_strategy_that_numpy_cannot_follow_is_refused(device, monkeypatch):
    monkeypatch.setattr(host, "numa_nodes", lambda: 2)

    with pytest.raises(tp.Unsupported) as caught:
        device.init_numa("mirror")

    assert str(caught.value) == (
        "cpu:0: NUMA strategy 'mirror' needs threads bound to nodes, which NumPy's BLAS does not "
        "offer; start the program with numactl, or use 'disabled'"
    )


def test_unknown_numa_strategy_is_refused(device):
    with pytest.raises(tp.OptionError) as caught:
        device.init_numa("spread")

    assert str(caught.value) == (
        "cpu:0: unknown NUMA strategy 'spread'; choose from disabled, distribute, isolate, "
        "numactl, mirror"
    )


# --- memory of others -----------------------------------------------------------------------


def test_new_memory_is_zero_where_other_memory_was_freed(device):
    for _ in range(3):
        with device.buffer_type.alloc(5000) as buffer:
            assert not buffer.host().any()
            buffer.fill(0xFF)


def test_any_host_memory_will_do_and_expanded_memory_of_this_device(device):
    with CPUDevice("cpu:1") as other, NullDevice("null:0") as null:
        assert device.supports_buffer_type(other.buffer_type)
        assert device.supports_buffer_type(device.expanded)
        assert not device.supports_buffer_type(other.expanded)
        assert not device.supports_buffer_type(null.buffer_type)


def test_host_memory_is_wrapped_without_a_copy(device):
    numbers = np.arange(8, dtype=np.float32)

    with device.import_host(numbers) as buffer:
        numbers[3] = 30

        assert buffer.type.name == "cpu_mapped"
        assert buffer.size == 32
        assert buffer.host().view(np.float32)[3] == 30


def test_weights_in_a_read_only_mapped_file_are_used_where_they_lie(device, backend, tmp_path):
    weights = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    path = tmp_path / "weights"
    path.write_bytes(weights.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    w = place_in(leaf("w", (3, 4), tp.F32), device.import_host(np.frombuffer(mapped, np.uint8)), 0)
    x = tp.input("x", (1, 4), tp.F32)

    found = run(backend, x @ w.T, {x: np.ones((1, 4), np.float32)})

    np.testing.assert_allclose(found[0], weights.sum(axis=1), rtol=1e-6)


def test_op_that_writes_into_read_only_memory_is_refused_when_planned(device, backend):
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    target = place_in(leaf("fixed", (4,), tp.F32), device.import_host(fixed), 0)
    x = tp.input("x", (4,), tp.F32)
    node = tp.cpy(x, target, name="write")

    with pytest.raises(tp.Unsupported) as caught:
        run(backend, node, {x: np.ones(4, np.float32)})

    assert str(caught.value) == (f"cpu: {node}: writes into read-only memory; copy its root first")


# --- refusals -------------------------------------------------------------------------------

X, IDS = leaf("x", (2, 256), tp.F32), leaf("ids", (2,), tp.I32)
CODED, ODD = leaf("coded", (2, 256), tp.Q4_0), leaf("odd", (2, 256), IQ1_S)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (tp.cast(X, IQ2_XXS), "dup: no encoder for iq2_xxs"),
        (tp.cast(X, IQ1_S), "dup: no encoder for iq1_s"),
    ],
)
def test_op_on_a_type_without_an_encoder_is_refused_with_its_reason(device, node, reason):
    assert device.refuses(node) == tp.Refusal(f"cpu:0: {reason}")


@pytest.mark.parametrize("node", [tp.cont(ODD), tp.cpy(ODD, leaf("y", (2, 256), IQ1_S))])
def test_bytes_of_any_type_can_be_copied(device, node):
    assert device.refuses(node) is None


def test_write_into_expanded_memory_is_refused(device):
    node = tp.set_rows(CODED, X, IDS)

    assert device.refuses(node, {CODED: device.expanded}) == tp.Refusal(
        f"cpu:0: set_rows: cannot write into {CODED}, which is stored expanded to f32"
    )


def test_copy_of_bytes_that_are_stored_expanded_is_refused(device):
    node = tp.dup(CODED)

    assert device.refuses(node, {CODED: device.expanded}) == tp.Refusal(
        f"cpu:0: dup: the q4_0 data of {CODED} is stored expanded to f32"
    )


def test_op_of_another_distribution_is_refused_when_planned(backend, monkeypatch):
    monkeypatch.delitem(KERNELS, "neg")
    x = tp.input("x", (2,), tp.F32)
    node = tp.neg(x)

    with pytest.raises(tp.Unsupported) as caught:
        run(backend, node, {x: np.ones(2, np.float32)})

    assert str(caught.value) == f"{node}: cannot run here: cpu:0: no kernel for neg"
