"""Facts, options and abilities of devices, and the fake device that most tests use."""

import dataclasses
import itertools

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Backend,
    DeviceInfo,
    Option,
    SupportsAbort,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsEvents,
    SupportsThreads,
)
from tensorplug.device.abilities import has_ability
from tensorplug_testing.null import FAULTS, NullBackend, NullDevice

ABILITIES = list(itertools.product([False, True], repeat=3))


class Tuned(NullDevice):
    """A device with one option of each kind."""

    options = (
        Option("threads", int, 4, "a number of threads"),
        Option("scale", float, 1.0, "a factor"),
        Option("fast", bool, False, "on or off"),
        Option("mode", str, "auto", "how to run", choices=("auto", "safe")),
    )

    def _open(self, options):
        backend = super()._open(options)
        backend.seen = options
        return backend


@pytest.fixture
def tuned():
    with Tuned() as device:
        yield device


# --- options -----------------------------------------------------------------------------------


def test_options_not_given_have_their_defaults(tuned: Tuned) -> None:
    assert tuned.open().seen == {"threads": 4, "scale": 1.0, "fast": False, "mode": "auto"}


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ({"threads": "2"}, {"threads": 2}),
        ({"threads": 2}, {"threads": 2}),
        ({"scale": "0.5"}, {"scale": 0.5}),
        ({"fast": "yes"}, {"fast": True}),
        ({"fast": "OFF"}, {"fast": False}),
        ({"fast": "1"}, {"fast": True}),
        ({"fast": 0}, {"fast": False}),
        ({"fast": True}, {"fast": True}),
        ({"mode": "safe", "threads": "8"}, {"mode": "safe", "threads": 8}),
    ],
)
def test_options_come_as_text_or_as_values(tuned: Tuned, given, parsed) -> None:
    assert tuned.open(**given).seen.items() >= parsed.items()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"thread": 2},
            "null:0: unknown option 'thread'; known options: threads, scale, fast, mode",
        ),
        ({"threads": "two"}, "null:0: option threads='two' must be int; a number of threads"),
        ({"threads": "2.5"}, "null:0: option threads='2.5' must be int; a number of threads"),
        ({"threads": None}, "null:0: option threads=None must be int; a number of threads"),
        ({"scale": ""}, "null:0: option scale='' must be float; a factor"),
        ({"fast": "maybe"}, "null:0: option fast='maybe' must be bool; on or off"),
        ({"mode": "wild"}, "null:0: option mode='wild'; choose from auto, safe"),
    ],
)
def test_options_that_mean_nothing_are_refused(tuned: Tuned, given, message: str) -> None:
    with pytest.raises(tp.OptionError) as error:
        tuned.open(**given)

    assert str(error.value) == message
    assert tuned.children == []


def test_option_checked_by_a_function_is_refused_with_its_text() -> None:
    def even(value: str) -> int:
        if int(value) % 2:
            raise ValueError(f"{value} is odd")
        return int(value)

    with pytest.raises(
        tp.OptionError, match=r"^acme:0: option lanes='3': 3 is odd; lanes of a card$"
    ):
        Option("lanes", even, 2, "lanes of a card").parse("3", "acme:0")


def test_device_without_options_says_so(null: NullDevice) -> None:
    with pytest.raises(tp.OptionError) as error:
        null.open(threads=2)

    assert str(error.value) == "null:0: unknown option 'threads'; known options: none"


# --- abilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "transfer", "copy"), ABILITIES)
def test_capabilities_are_those_of_the_streams_that_open(events, transfer, copy) -> None:
    with NullDevice(events=events, async_transfer=transfer, async_copy=copy) as device:
        found, backend = device.capabilities, device.open()

        assert (found.events, found.async_transfer, found.async_copy) == (events, transfer, copy)
        assert isinstance(backend, SupportsEvents) == events
        assert isinstance(backend, SupportsAsyncTransfer) == transfer
        assert isinstance(backend, SupportsAsyncCopy) == copy


def test_abilities_come_with_asynchronous_work_unless_told_otherwise() -> None:
    plain, late = NullDevice().capabilities, NullDevice(asynchronous=True).capabilities
    mixed = NullDevice(asynchronous=True, events=False).capabilities

    assert (plain.events, plain.async_transfer, plain.async_copy) == (False, False, False)
    assert (late.events, late.async_transfer, late.async_copy) == (True, True, True)
    assert (mixed.events, mixed.async_transfer, mixed.async_copy) == (False, True, True)


def test_ability_of_data_is_seen_where_the_class_declares_or_its_init_assigns_it() -> None:
    class Declared(NullBackend):
        threads: int

    class Assigned(NullBackend):
        def __init__(self, device) -> None:
            super().__init__(device)
            self.threads = 2

    class Inherited(Assigned):
        pass

    class Quiet(NullBackend):
        def __init__(self, device) -> None:
            super().__init__(device)
            self.seen = device.threads if False else None

    device = NullDevice()
    device.backend_class = Assigned

    assert has_ability(Declared, SupportsThreads)
    assert has_ability(Assigned, SupportsThreads)
    assert has_ability(Inherited, SupportsThreads)
    assert not has_ability(Quiet, SupportsThreads)
    assert device.capabilities.threads == isinstance(Assigned(device), SupportsThreads)


def test_ability_by_property_or_method_is_seen() -> None:
    class Abortable(Backend):
        @property
        def abort_callback(self):
            return None

        def _compute(self, node, bindings) -> None: ...

    assert has_ability(Abortable, SupportsAbort)


def test_host_memory_and_import_are_seen() -> None:
    class Importing(NullDevice):
        @property
        def host_buffer_type(self):
            return self.buffer_type

        @property
        def mmap(self) -> bool:
            return False

        def import_host(self, memory, *, largest_tensor=0): ...

    found, plain = Importing().capabilities, NullDevice().capabilities

    assert (found.host_buffer, found.host_import, found.mmap) == (True, True, False)
    assert (plain.host_buffer, plain.host_import, plain.mmap) == (False, False, True)


# --- facts -------------------------------------------------------------------------------------


def test_info_holds_all_facts_of_the_moment() -> None:
    device = NullDevice("gpu:1", device_type=tp.DeviceType.IGPU, memory=1000)
    buffer = device.buffer_type.alloc(300)

    info = device.info
    buffer.close()

    assert info == DeviceInfo(
        name="gpu:1",
        description="a fake device for tests",
        type=tp.DeviceType.IGPU,
        memory_free=700,
        memory_total=1000,
        hardware_id="",
        capabilities=device.capabilities,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.name = "other"


def test_device_types_come_in_order_of_preference() -> None:
    assert [kind.value for kind in tp.DeviceType] == ["gpu", "igpu", "accel", "cpu", "meta"]


def test_defaults_of_a_device_are_modest(null: NullDevice) -> None:
    assert null.host_buffer_type is None
    assert null.extra_buffer_types == ()
    assert null.hardware_id == ""
    assert not null.offload(tp.relu(tp.input("x", (4,), tp.F32)))


# --- support -----------------------------------------------------------------------------------


def test_leafs_and_views_are_supported_everywhere() -> None:
    x = tp.input("x", (4, 4), tp.F32)

    with NullDevice(ops=()) as device:
        assert not any(device.refuses(t) for t in (x, x[1], x.T, x.reshape(16)))


@pytest.mark.parametrize(
    ("make", "facts", "reason"),
    [
        (tp.rms_norm, {}, "null:0: no kernel for rms_norm"),
        (
            lambda x: x @ tp.input("w", (3, 64), tp.Q4_0).T,
            {},
            "null:0: no kernel for mul_mat with q4_0",
        ),
        (
            lambda x: tp.soft_max(x, tp.input("m", (4, 64), tp.F32)),
            {},
            "null:0: no kernel for soft_max with a mask",
        ),
        (tp.relu, {"ops": ["add"]}, "null:0: does not do relu"),
    ],
)
def test_refusal_carries_the_reason(make, facts, reason: str) -> None:
    node = make(tp.input("x", (4, 64), tp.F32))

    with NullDevice(**facts) as device:
        answer = device.refuses(node)

    assert answer == tp.Refusal(reason)


def test_named_ops_are_supported_and_others_not() -> None:
    x = tp.input("x", (4,), tp.F32)

    with NullDevice(ops=["rms_norm"], offloads=["rms_norm"]) as device:
        assert device.refuses(tp.rms_norm(x)) is None
        assert device.refuses(tp.relu(x))
        assert device.offload(tp.rms_norm(x))
        assert not device.offload(tp.relu(x))


def test_memory_of_its_own_is_supported_and_host_memory_by_those_in_it(
    null: NullDevice, host: NullDevice
) -> None:
    with NullDevice("host:1", host=True) as other:
        assert null.supports_buffer_type(null.buffer_type)
        assert not null.supports_buffer_type(host.buffer_type)
        assert not host.supports_buffer_type(null.buffer_type)
        assert host.supports_buffer_type(other.buffer_type)


# --- the fake device ---------------------------------------------------------------------------


def test_fresh_memory_is_no_number(null: NullDevice) -> None:
    buffer = null.buffer_type.alloc(8)

    assert np.isnan(buffer.read(0, 8).view(np.float32)).all()


def test_kernels_of_a_test_come_before_those_built_in() -> None:
    def ones(_node, out, _x) -> None:
        out[...] = 1

    with NullDevice(kernels={"relu": ones}) as device, device.open() as backend:
        x = backend.place("x", np.zeros(4, np.float32))
        backend.compute(tp.Part.of(tp.Graph(tp.in_place(tp.relu(x))), tp.Bindings()))

        assert tp.transfer.read(x).tolist() == [1] * 4


def test_op_claimed_without_a_kernel_fails_when_it_runs() -> None:
    with NullDevice(ops=["rms_norm"]) as device, device.open() as backend:
        x = backend.place("x", np.zeros(4, np.float32))
        node = tp.in_place(tp.rms_norm(x))

        with pytest.raises(tp.Unsupported) as error:
            backend.compute(tp.Part.of(tp.Graph(node), tp.Bindings()))

    assert str(error.value) == f"null:0: no kernel for {node}"


@pytest.mark.parametrize("what", FAULTS)
def test_each_kind_of_call_can_fail(what: str) -> None:
    null = NullDevice(events=True)
    backend = null.open()
    assert isinstance(backend, SupportsEvents)
    a, b = (backend.place(name, np.zeros(4, np.float32)) for name in "ab")
    graph = tp.Part.of(tp.Graph(tp.in_place(tp.relu(a))), tp.Bindings())
    uses = {
        "alloc": lambda: null.buffer_type.alloc(1),
        "write": lambda: tp.transfer.write(a, np.ones(4)),
        "read": lambda: tp.transfer.read(a),
        "copy": lambda: tp.transfer.copy(a, b),
        "compute": lambda: backend.compute(graph),
        "plan": lambda: backend.compute(graph),
        "queue": lambda: backend.compute(graph),
        "event": backend.record,
        "wait": backend.synchronize,
    }
    mine = tp.DeviceError("mine")
    null.fail(what, at=2, error=mine)

    uses[what]()
    with pytest.raises(tp.DeviceError) as error:
        uses[what]()
    uses[what]()

    assert error.value is mine


def test_fault_of_an_unknown_kind_is_refused(null: NullDevice) -> None:
    with pytest.raises(ValueError, match="'think' is none of alloc, write, read, copy, compute"):
        null.fail("think")


def test_row_numbers_outside_a_table_are_named() -> None:
    with NullDevice() as device, device.open() as backend:
        table = backend.place("t", np.zeros((3, 4), np.float32))
        ids = backend.place("ids", np.array([0, 3], np.int32))
        out = device.buffer_type.alloc(32)
        node = tp.get_rows(table, ids)

        with pytest.raises(tp.GraphError) as error:
            backend.compute(tp.Part.of(tp.Graph(node), tp.Bindings({node: tp.Place(out, 0)})))

    assert str(error.value) == (
        f"{node}: ids {ids} holds 3 at [1], which names no row; rows are 0 to 2, and -1 stands for "
        "none"
    )


def test_rows_are_gathered_and_scattered_by_number(evaluate) -> None:
    table, rows = tp.input("t", (2, 5, 3), tp.F32), tp.input("r", (2, 2, 3), tp.F32)
    ids = tp.input("i", (2, 2), tp.I32)
    data = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
    new = -np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    wanted = data.copy()
    wanted[0, [4, 0]], wanted[1, [1, 2]] = new

    gathered = evaluate(tp.get_rows(table, ids), {table: data, ids: [[4, 0], [1, 2]]})
    scattered = evaluate(
        tp.set_rows(table, rows, ids), {table: data, rows: new, ids: [[4, 0], [1, 2]]}
    )

    np.testing.assert_array_equal(gathered, [data[0, [4, 0]], data[1, [1, 2]]])
    np.testing.assert_array_equal(scattered, wanted)


def test_weights_repeat_in_groups_over_the_heads(evaluate) -> None:
    w, x = tp.input("w", (2, 3, 4), tp.F32), tp.input("x", (6, 5, 4), tp.F32)
    rng = np.random.default_rng(0)
    vw, vx = rng.standard_normal((2, 3, 4), np.float32), rng.standard_normal((6, 5, 4), np.float32)

    found = evaluate(tp.mul_mat(w, x), {w: vw, x: vx})

    # Heads 0, 1 and 2 of x use head 0 of w; 3, 4 and 5 use head 1.
    wanted = vx @ np.repeat(vw, 3, axis=0).swapaxes(1, 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
