"""Data of tensors: conversions, parts, rows, and copies between any two kinds of memory."""

import itertools

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import BufferType, BufferUsage, Layout, order_after, place_in
from tensorplug.device.moving import copy_bytes, queue_copy, queue_read, queue_write
from tensorplug.errors import NotAllocated
from tensorplug.graph.tensor import Place, leaf
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice
from tensorplug_testing.timeline import Timeline


class Mirrored(NullBuffer):
    """Memory with a layout of its own: every tensor lies in it backwards."""

    def write_tensor(self, tensor: tp.Tensor, offset: int, data: memoryview) -> None:
        self.write(offset, bytes(data)[::-1])

    def read_tensor(self, tensor: tp.Tensor, offset: int, out: memoryview) -> None:
        out[:] = self.read(offset, out.nbytes).tobytes()[::-1]


class MirroredType(NullBufferType):
    layout = Layout.PACKED

    def _alloc(self, size: int, usage: BufferUsage) -> tp.Buffer:
        self.device.take(size)
        return Mirrored(self, size, usage)


@pytest.fixture
def mirrored(null: NullDevice) -> MirroredType:
    return MirroredType(null, is_host=False, max_size=1 << 20)


@pytest.fixture(params=["private", "host", "mirrored"])
def memory(request, null: NullDevice, host: NullDevice, mirrored: MirroredType) -> BufferType:
    return {"private": null.buffer_type, "host": host.buffer_type, "mirrored": mirrored}[
        request.param
    ]


def placed(
    shape: tuple[int, ...], memory: BufferType, dtype: tp.DType = tp.F32, *, fill: int = 0
) -> tp.Tensor:
    buffer = memory.alloc(1024)
    buffer.fill(fill)
    return place_in(leaf("x", shape, dtype), buffer, 0)


# --- what hosts may give -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "data", "stored"),
    [
        (tp.F32, np.array([1.5, 2]), np.array([1.5, 2], np.float32)),
        (tp.F32, np.array([1, 2], np.int64), np.array([1, 2], np.float32)),
        (tp.F16, np.array([1.5, 2], np.float32), np.array([1.5, 2], np.float16)),
        (tp.F32, [1, 2], np.array([1, 2], np.float32)),
        (tp.F32, np.array([1, 2], ">f4"), np.array([1, 2], np.float32)),
        (tp.I32, np.array([1, -2], np.int64), np.array([1, -2], np.int32)),
        (tp.I8, np.array([1, 127], np.uint8), np.array([1, 127], np.int8)),
        (tp.I64, np.array([True, False]), np.array([1, 0], np.int64)),
        (tp.BF16, np.array([0x3F80, 0], np.uint16), np.array([0x3F80, 0], np.uint16)),
    ],
)
def test_numbers_are_converted_within_their_kind(dtype, data, stored) -> None:
    found = transfer.host_data(leaf("x", (2,), dtype), data)

    assert found.dtype == stored.dtype
    np.testing.assert_array_equal(found, stored)


@pytest.mark.parametrize(
    ("dtype", "data", "message"),
    [
        (
            tp.I32,
            np.array([0.5, 1]),
            "takes int32 data, got float64; convert it with .astype('int32')",
        ),
        (
            tp.F32,
            np.array([1j, 2]),
            "takes float32 data, got complex128; convert it with .astype('float32')",
        ),
        (tp.I32, np.array([0, 1 << 40]), "values from 0 to 1099511627776 do not fit int32"),
        (tp.I8, np.array([0, 200], np.uint8), "values from 0 to 200 do not fit int8"),
        (
            tp.BF16,
            np.array([1, 2], np.float32),
            "takes the stored bits of bf16 as uint16, got float32; encode the values first, or "
            "cast() them in a graph",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype, data, message: str) -> None:
    tensor = leaf("x", (2,), dtype)

    with pytest.raises(tp.DTypeError) as error:
        transfer.host_data(tensor, data)

    assert str(error.value) == f"{tensor}: {message}"


def test_values_in_place_of_stored_blocks_are_refused(null: NullDevice) -> None:
    with null.open() as backend, pytest.raises(tp.DTypeError) as error:
        backend.place("w", np.zeros((2, 64), np.float32), dtype="q4_0")

    assert str(error.value) == (
        "w: takes the stored blocks of q4_0 as uint8, got float32; encode the values first, or "
        "cast() them in a graph"
    )


def test_block_types_take_rows_of_stored_bytes() -> None:
    tensor = leaf("w", (3, 64), tp.Q4_0)
    rows = np.zeros((3, 36), np.uint8)

    assert transfer.host_data(tensor, rows) is not None
    with pytest.raises(tp.ShapeError) as error:
        transfer.host_data(tensor, np.zeros((3, 64), np.float32))

    assert str(error.value) == (
        "<Tensor 'w', none, q4_0[3, 64]>: takes data of shape (3, 36), got (3, 64)"
    )


@pytest.mark.parametrize(("shape", "given"), [((2,), (3,)), ((), (1,)), ((2, 1), (2,))])
def test_data_of_another_shape_is_refused(shape, given) -> None:
    with pytest.raises(tp.ShapeError, match="takes data of shape"):
        transfer.host_data(leaf("x", shape, tp.F32), np.zeros(given, np.float32))


def test_scalars_stay_scalars() -> None:
    assert transfer.host_data(leaf("x", (), tp.F32), 3).shape == ()


def test_data_with_gaps_becomes_contiguous() -> None:
    found = transfer.host_data(leaf("x", (2, 2), tp.F32), np.zeros((2, 4), np.float32)[:, ::2])

    assert found.flags.c_contiguous


# --- whole tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4, 5), (0, 4)])
def test_what_is_written_is_read(memory: BufferType, shape) -> None:
    x = placed(shape, memory)
    data = np.random.default_rng(0).standard_normal(shape, np.float32)

    transfer.write(x, data)

    np.testing.assert_array_equal(transfer.read(x), data)


def test_block_types_are_written_and_read_as_bytes(memory: BufferType) -> None:
    w = placed((3, 64), memory, tp.Q4_0)
    rows = np.arange(108, dtype=np.uint8).reshape(3, 36)

    transfer.write(w, rows)

    np.testing.assert_array_equal(transfer.read(w), rows)


def test_read_gives_a_copy(host: NullDevice) -> None:
    x = placed((4,), host.buffer_type)

    transfer.read(x)[...] = 7

    assert not x.numpy().any()


VIEWS = {
    "row": lambda x: x[1],
    "rows": lambda x: x[1:],
    "every other row": lambda x: x[::2],
    "columns": lambda x: x[:, 1:3],
    "box": lambda x: x.reshape(2, 2, 2, 4)[1:, :, 1:, 1:3],
    "matrices": lambda x: x.reshape(2, 2, 2, 4)[:, 1, :, :3],
    "nothing": lambda x: x[:0, 1:],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["private", "host"])
def test_part_is_written_and_what_lies_between_is_left(null, host, kind: str, view: str) -> None:
    memory = {"private": null, "host": host}[kind].buffer_type
    x, wanted = placed((8, 4), memory), np.zeros((8, 4), np.float32)
    data = np.random.default_rng(0).standard_normal(VIEWS[view](wanted).shape, np.float32)
    VIEWS[view](wanted)[...] = data

    transfer.write(VIEWS[view](x), data)

    np.testing.assert_array_equal(transfer.read(x), wanted)
    np.testing.assert_array_equal(transfer.read(VIEWS[view](x)), data)


@pytest.mark.parametrize(
    "view", [lambda x: x.T, lambda x: x[:, 1], lambda x: x[:, ::2], lambda x: x.T[1:]]
)
def test_rows_with_gaps_are_read_anywhere_but_written_only_where_the_host_sees(
    null: NullDevice, host: NullDevice, view
) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    here, there = placed((3, 4), host.buffer_type), placed((3, 4), null.buffer_type)
    transfer.write(there, data)

    transfer.write(view(here), view(data))

    np.testing.assert_array_equal(transfer.read(view(here)), view(data))
    np.testing.assert_array_equal(transfer.read(view(there)), view(data))
    with pytest.raises(tp.ShapeError) as error:
        transfer.write(view(there), view(data))
    assert str(error.value).endswith(
        ": its rows have gaps in null:0 memory; write the tensor it is a view of"
    )


def test_rows_are_written_in_one_call_each_matrix(null: NullDevice) -> None:
    x = placed((8, 4), null.buffer_type)
    null.log.clear()

    transfer.write(x[:, 1:3], np.ones((8, 2), np.float32))

    assert [e for e in null.log if e.what == "write"] == [("write", 8)] * 8


def test_fill_sets_every_byte_of_a_tensor_and_no_other(null: NullDevice) -> None:
    x = placed((3, 4), null.buffer_type, tp.I8)

    transfer.fill(x[1], 3)

    assert transfer.read(x).tolist() == [[0] * 4, [3] * 4, [0] * 4]


def test_fill_spares_what_lies_between(null: NullDevice) -> None:
    x = placed((3, 4), null.buffer_type)
    column = x[:, 1]

    with pytest.raises(tp.ShapeError) as error:
        transfer.fill(column, 0)

    assert str(error.value) == f"{column}: has gaps, which belong to other tensors; write() it"


def test_tensor_without_memory_is_refused() -> None:
    x = tp.input("x", (4,), tp.F32)

    for use in (
        lambda: transfer.write(x, np.zeros(4)),
        lambda: transfer.read(x),
        lambda: transfer.fill(x, 0),
        lambda: transfer.copy(x, x[:]),
        lambda: transfer.write_bytes(x, b"abcd"),
    ):
        with pytest.raises(NotAllocated):
            use()


# --- bytes of tensors --------------------------------------------------------------------------


def test_bytes_are_written_and_read_at_an_offset_into_the_tensor(null: NullDevice) -> None:
    buffer = null.buffer_type.alloc(256)
    buffer.fill(0)
    x = place_in(leaf("x", (4,), tp.F32), buffer, 64)

    transfer.write_bytes(x, np.float32([5, 6]), 4)

    assert transfer.read(x).tolist() == [0, 5, 6, 0]
    assert transfer.read_bytes(x, 4, 4).view(np.float32).tolist() == [5]
    assert transfer.read_bytes(x, 16, 0).size == 0


@pytest.mark.parametrize(
    ("use", "doing", "start", "end"),
    [
        (lambda x: transfer.write_bytes(x, bytes(4), 13), "write", 13, 17),
        (lambda x: transfer.write_bytes(x, bytes(4), -1), "write", -1, 3),
        (lambda x: transfer.read_bytes(x, 16, 1), "read", 16, 17),
        (lambda x: transfer.read_bytes(x, 0, -1), "read", 0, -1),
    ],
)
def test_bytes_outside_the_tensor_are_refused(null, use, doing, start, end) -> None:
    x = placed((4,), null.buffer_type)

    with pytest.raises(tp.ShapeError) as error:
        use(x)

    assert str(error.value) == (
        f"{x}: {doing} of bytes {start} to {end} is out of bounds; it has 16"
    )


def test_bytes_mean_nothing_in_a_layout_of_its_own(mirrored: MirroredType) -> None:
    x = placed((4,), mirrored)

    with pytest.raises(tp.Unsupported) as error:
        transfer.read_bytes(x, 0, 4)

    assert str(error.value) == (f"{x}: null:0 keeps it in a layout of its own; read all of it")


# --- copies ------------------------------------------------------------------------------------


KINDS = ["null", "same", "other", "host", "mirrored"]


@pytest.fixture
def memories(null: NullDevice, host: NullDevice, mirrored: MirroredType):
    with NullDevice("other:0") as other:
        yield {
            "null": null.buffer_type,
            "same": null.buffer_type,
            "other": other.buffer_type,
            "host": host.buffer_type,
            "mirrored": mirrored,
        }


@pytest.mark.parametrize(("from_", "to"), list(itertools.product(KINDS, KINDS)))
def test_tensors_are_copied_between_any_two_kinds_of_memory(memories, from_, to) -> None:
    source, target = placed((3, 4), memories[from_]), placed((3, 4), memories[to])
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    transfer.write(source, data)

    transfer.copy(source, target)

    np.testing.assert_array_equal(transfer.read(target), data)


def test_copy_on_one_device_does_not_pass_the_host(null: NullDevice) -> None:
    source, target = placed((4,), null.buffer_type), placed((4,), null.buffer_type)
    null.log.clear()

    transfer.copy(source, target)

    assert null.log == [("copy", 16)]


def test_copy_to_itself_does_nothing(null: NullDevice) -> None:
    x = placed((4,), null.buffer_type)
    null.log.clear()

    transfer.copy(x, x)
    transfer.copy(x, x[:])

    assert null.log == []


@pytest.mark.parametrize("kind", ["null", "other", "host"])
def test_copy_of_a_part_spares_what_lies_between(memories, kind: str) -> None:
    source, target = placed((3, 4), memories["null"], fill=1), placed((3, 4), memories[kind])
    one = np.frombuffer(b"\1\1\1\1", np.float32)[0]

    transfer.copy(source[:, 1:3], target[:, 1:3])

    np.testing.assert_array_equal(transfer.read(target), [[0, one, one, 0]] * 3)


def test_copy_of_transposed_memory_is_a_copy_of_its_bytes(memories) -> None:
    source, target = placed((3, 4), memories["null"]), placed((3, 4), memories["other"])
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    transfer.write(source, data)

    transfer.copy(source.T, target.T)

    np.testing.assert_array_equal(transfer.read(target), data)


@pytest.mark.parametrize(
    "other",
    [lambda x: x.T, lambda x: x.reshape(12), lambda x: leaf("y", (3, 4), tp.F16)],
)
def test_copy_between_layouts_points_to_cpy(null: NullDevice, other) -> None:
    x = placed((3, 4), null.buffer_type)
    target = other(x)

    with pytest.raises(tp.ShapeError) as error:
        transfer.copy(x, target)

    assert str(error.value) == (
        f"copy: {x} and {target} differ in type, sizes or strides; use cpy() in a graph"
    )


def test_bytes_are_copied_within_one_buffer_even_where_they_overlap(memories) -> None:
    for kind in ("null", "host"):
        buffer = memories[kind].alloc(16)
        buffer.write(0, np.arange(16, dtype=np.uint8))

        copy_bytes(Place(buffer, 0), Place(buffer, 4), 8)

        assert buffer.read(0, 16).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]


@pytest.mark.parametrize(("start", "end", "size"), [(60, 0, 8), (0, 60, 8), (-1, 0, 1), (0, 0, -1)])
def test_bytes_are_copied_within_bounds(null: NullDevice, start, end, size) -> None:
    a, b = null.buffer_type.alloc(64), null.buffer_type.alloc(64)

    with pytest.raises(tp.ShapeError, match="is out of bounds; the buffer has 64 bytes"):
        copy_bytes(Place(a, start), Place(b, end), size)


def test_failed_copy_is_raised(null: NullDevice) -> None:
    source, target = placed((4,), null.buffer_type), placed((4,), null.buffer_type)
    null.fail("copy")

    with pytest.raises(tp.DeviceError, match="null:0: copy failed as the test planned"):
        transfer.copy(source, target)


# --- in order with queued work -----------------------------------------------------------------

ABILITIES = list(itertools.product([False, True], repeat=3))


def late(name: str, timeline: Timeline, abilities: tuple[bool, bool, bool]) -> NullDevice:
    events, async_transfer, async_copy = abilities
    return NullDevice(
        name,
        asynchronous=True,
        timeline=timeline,
        events=events,
        async_transfer=async_transfer,
        async_copy=async_copy,
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target_has", ABILITIES, ids=str)
@pytest.mark.parametrize("source_has", ABILITIES, ids=str)
def test_copy_starts_after_the_source_s_work_and_before_the_target_s(
    source_has, target_has, seed: int
) -> None:
    timeline = Timeline(seed)
    devices = [late("late:0", timeline, source_has), late("late:1", timeline, target_has)]
    first, second = (device.open() for device in devices)
    a, b = (device.buffer_type.alloc(4) for device in devices)
    seen = np.zeros(4, np.uint8)

    queue_write(first, Place(a, 0), b"data")
    queue_copy(first, second, Place(a, 0), Place(b, 0), 4)
    queue_read(second, Place(b, 0), seen)
    second.synchronize()

    assert seen.tobytes() == b"data"
    for device in devices:
        device.close(force=True)


@pytest.mark.parametrize("target_has", ABILITIES, ids=str)
def test_copy_leaves_alone_what_the_target_still_reads(target_has) -> None:
    nothing = (False, False, False)
    devices = [late("late:0", Timeline(), nothing), late("odd:0", Timeline(), target_has)]
    first, second = (device.open() for device in devices)
    a, b = (device.buffer_type.alloc(16) for device in devices)
    x = place_in(leaf("x", (4,), tp.F32), b, 0)
    y = tp.scale(x, 1.0)
    result = devices[1].buffer_type.alloc(16)
    transfer.write(x, np.ones(4))
    a.fill(0)
    plan = second.plan(tp.Part.of(tp.Graph(y), tp.Bindings({y: Place(result, 0)})))

    plan.run()
    queue_copy(first, second, Place(a, 0), Place(b, 0), 16)
    second.synchronize()

    assert result.read(0, 16).view(np.float32).tolist() == [1] * 4
    assert transfer.read(x).tolist() == [0] * 4
    for device in devices:
        device.close(force=True)


@pytest.mark.parametrize(
    ("source", "target", "staged", "reader"),
    [
        ({"name": "late:0"}, {"name": "late:1"}, False, "target"),
        ({"name": "host:0", "host": True, "events": False}, {"name": "late:0"}, False, "target"),
        (
            {"name": "late:0"},
            {"name": "host:0", "host": True, "async_transfer": False},
            False,
            "source",
        ),
        ({"name": "late:0"}, {"name": "odd:0"}, True, "source"),
        ({"name": "late:0"}, {"name": "odd:0"}, False, None),
    ],
    ids=["taken", "from the host", "to the host", "through the host", "at once"],
)
def test_copy_says_who_still_reads_the_source(source, target, staged: bool, reader) -> None:
    devices = [NullDevice(asynchronous=True, **options) for options in (source, target)]
    first, second = (device.open() for device in devices)
    a, b = (device.buffer_type.alloc(4) for device in devices)
    a.write(0, b"data")
    memory = [np.empty(4, np.uint8)]

    found = queue_copy(
        first, second, Place(a, 0), Place(b, 0), 4, (lambda _: memory[0]) if staged else None
    )
    second.synchronize()

    assert found is {"source": first, "target": second, None: None}[reader]
    assert b.read(0, 4).tobytes() == b"data"
    for device in devices:
        device.close(force=True)


def test_copy_out_of_bounds_between_devices_is_refused(late, host) -> None:
    with late.open() as target, host.open() as source:
        a, b = (d.buffer_type.alloc(4) for d in (host, late))

        with pytest.raises(tp.ShapeError, match="copy of bytes 2 to 6 is out of bounds"):
            queue_copy(source, target, Place(a, 2), Place(b, 0), 4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("names", [("late:0", "late:1"), ("late:0", "odd:0")], ids=str)
@pytest.mark.parametrize("abilities", [(True, True, True), (False, True, True)], ids=str)
def test_order_after_holds_with_and_without_events(names, abilities, seed: int) -> None:
    timeline = Timeline(seed)
    devices = [late(name, timeline, abilities) for name in names]
    first, second = (device.open() for device in devices)
    shared = devices[0].buffer_type.alloc(4)
    seen = np.zeros(4, np.uint8)
    first.write_async(shared, 0, memoryview(b"data"))

    order_after(first, second)
    second.read_async(shared, 0, seen.data)
    second.synchronize()

    assert seen.tobytes() == b"data"
    for device in devices:
        device.close(force=True)


def test_order_after_itself_needs_nothing() -> None:
    device = NullDevice(asynchronous=True)
    backend = device.open()
    buffer = device.buffer_type.alloc(4)
    backend.write_async(buffer, 0, memoryview(b"data"))

    order_after(backend, backend)

    assert ("write", 4) not in device.log
    device.close(force=True)


def test_order_after_with_events_does_not_hold_up_the_host() -> None:
    device = NullDevice(asynchronous=True)
    first, second = device.open(), device.open()
    buffer = device.buffer_type.alloc(4)
    first.write_async(buffer, 0, memoryview(b"data"))

    order_after(first, second)

    assert ("write", 4) not in device.log
    device.close(force=True)


def test_transfers_of_a_stream_without_the_ability_wait_for_its_work() -> None:
    device = late("late:0", Timeline(), (False, False, False))
    backend = device.open()
    x = backend.place("x", np.ones(4, np.float32))
    y = tp.in_place(tp.scale(x, 3.0))
    plan = backend.plan(tp.Part.of(tp.Graph(y), tp.Bindings()))
    seen = np.zeros(4, np.float32)

    plan.run()
    queue_read(backend, x.place, seen)
    plan.run()
    queue_write(backend, x.place, np.zeros(4, np.float32))

    assert seen.tolist() == [3, 3, 3, 3]
    assert transfer.read(x).tolist() == [0, 0, 0, 0]
    device.close(force=True)


@pytest.mark.parametrize("way", ["copy", "copy_async"])
def test_copies_through_the_host_are_said_once_for_each_two_kinds_of_memory(way, caplog) -> None:
    caplog.set_level("INFO", "tensorplug.transfer")
    with NullDevice("a:0") as one, NullDevice("b:0") as two, NullDevice("h:0", host=True) as host:
        a, b, c = (d.open() for d in (one, two, host))
        for source, target in ((a, b), (a, b), (b, a), (a, c), (c, b), (a, a)):
            x, y = (s.place("x", np.ones(4, np.float32)) for s in (source, target))
            if way == "copy":
                transfer.copy(x, y)
            else:
                transfer.copy_async(source, target, x, y)
        for each in (one, two, host):
            each.close(force=True)

    assert caplog.messages == [
        "copies from a:0 to b:0 go through the host's memory: two transfers for each",
        "copies from b:0 to a:0 go through the host's memory: two transfers for each",
    ]
