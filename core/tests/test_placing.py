"""Persistent tensors in memory: one by one, and many at a time in as few buffers as fit."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import HostBuffer, allocate, place, place_in
from tensorplug.device.placing import LinearAllocator, align, buffer_sizes
from tensorplug.errors import BufferTooLarge, Closed
from tensorplug.graph.tensor import leaf
from tensorplug_testing.null import NullBufferType, NullDevice


def f32(n: int, name: str = "t") -> tp.Tensor:
    return leaf(name, (n,), tp.F32)


@pytest.mark.parametrize(("size", "wanted"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_the_alignment(size: int, wanted: int) -> None:
    assert align(size, 64) == wanted


# --- one buffer from front to back -------------------------------------------------------------


def test_tensors_follow_each_other_at_aligned_offsets(null: NullDevice) -> None:
    linear = LinearAllocator(null.buffer_type.alloc(256))

    placed = [linear.place(f32(n)) for n in (1, 16, 17)]

    assert [t.place.offset for t in placed] == [0, 64, 128]
    assert linear.used == 256


def test_full_buffer_names_tensor_and_sizes(null: NullDevice) -> None:
    linear = LinearAllocator(null.buffer_type.alloc(128))
    linear.place(f32(16))

    with pytest.raises(tp.OutOfMemory) as error:
        linear.place(f32(17, "w"))

    assert str(error.value) == (
        "<NullBuffer null:0, ANY 128 B>: no room for <Tensor 'w', none, f32[17]>: 128 bytes "
        "needed, 64 of 128 left; allocate a larger one"
    )
    assert linear.used == 64


def test_only_leafs_without_memory_can_be_placed(null: NullDevice) -> None:
    linear = LinearAllocator(null.buffer_type.alloc(256))
    placed = linear.place(f32(4))

    for tensor in (placed, tp.relu(f32(4)), f32(4)[1:]):
        with pytest.raises(tp.GraphError) as error:
            linear.place(tensor)
        assert str(error.value) == f"{tensor}: only leafs without memory can be placed"


def test_placed_tensor_keeps_name_type_and_flags(null: NullDevice) -> None:
    linear = LinearAllocator(null.buffer_type.alloc(256))

    placed = linear.place(tp.input("x", (4,), tp.F16))

    assert (placed.name, placed.dtype, placed.is_input) == ("x", tp.F16, True)


class Padded(NullBufferType):
    """Memory where each tensor takes 100 bytes more, and no f16."""

    def _alloc_size(self, tensor: tp.Tensor) -> int:
        return tensor.nbytes + 100

    def supports(self, tensor: tp.Tensor) -> bool:
        return tensor.dtype is not tp.F16


@pytest.fixture
def padded(null: NullDevice) -> Padded:
    return Padded(null, is_host=False, max_size=1000)


def test_memory_may_ask_for_more_than_the_tensor_has(padded: Padded) -> None:
    linear = LinearAllocator(padded.alloc(512))

    placed = [linear.place(f32(1)) for _ in range(2)]

    assert [t.place.offset for t in placed] == [0, 128]


def test_memory_may_refuse_a_tensor(padded: Padded) -> None:
    half = leaf("h", (4,), tp.F16)

    with pytest.raises(tp.Unsupported) as error:
        LinearAllocator(padded.alloc(512)).place(half)
    with pytest.raises(tp.Unsupported):
        place_in(half, padded.alloc(512), 0)
    with pytest.raises(tp.Unsupported):
        place("h", np.zeros(4, np.float16), padded)

    assert str(error.value) == "null:0: this memory does not take <Tensor 'h', none, f16[4]>"


@pytest.mark.parametrize("alignment", [0, 48, -64])
def test_alignment_is_a_power_of_two(null: NullDevice, alignment: int) -> None:
    null.buffer_type.alignment = alignment

    with pytest.raises(tp.ShapeError, match=f"alignment {alignment} is not a power of two"):
        LinearAllocator(null.buffer_type.alloc(64))


# --- many at a time ----------------------------------------------------------------------------


def test_tensors_share_one_buffer_where_they_fit(null: NullDevice) -> None:
    tensors = [f32(n, f"t{n}") for n in (1, 16, 17)]

    placed, whole = allocate(tensors, null.buffer_type, usage=tp.WEIGHTS)

    assert [(t.name, t.place.offset) for t in placed] == [("t1", 0), ("t16", 64), ("t17", 128)]
    assert [part.size for part in whole.parts] == [256]
    assert whole.usage is tp.WEIGHTS


def test_new_buffer_starts_where_the_largest_would_be_passed() -> None:
    device = NullDevice(max_size=256)
    tensors = [f32(n) for n in (32, 32, 1, 64, 1)]

    placed, whole = allocate(tensors, device.buffer_type)

    assert [part.size for part in whole.parts] == [256, 64, 256, 64]
    assert [(whole.parts.index(t.place.buffer), t.place.offset) for t in placed] == [
        (0, 0),
        (0, 128),
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    device.close(force=True)


def test_tensor_beyond_the_largest_buffer_is_named_and_nothing_is_allocated() -> None:
    device = NullDevice(max_size=256)

    with pytest.raises(BufferTooLarge) as error:
        allocate([f32(1), f32(65, "w")], device.buffer_type)

    assert str(error.value) == (
        "null:0: <Tensor 'w', none, f32[65]>: a buffer of 320 bytes exceeds the largest single "
        "buffer, 256 bytes; split it, or allocate tensors one by one"
    )
    assert device.log == []


def test_sizes_are_told_without_allocating() -> None:
    device = NullDevice(max_size=256)
    tensors = [f32(n) for n in (32, 32, 1, 64, 1)]

    assert buffer_sizes(tensors, device.buffer_type) == [256, 64, 256, 64]
    assert device.log == []


def test_failed_allocation_frees_what_came_before() -> None:
    device = NullDevice(max_size=256)
    device.fail("alloc", at=3)

    with pytest.raises(tp.OutOfMemory):
        allocate([f32(64) for _ in range(4)], device.buffer_type)

    assert device.live_buffers == 0


def test_refused_tensor_frees_what_came_before(null: NullDevice, padded: Padded) -> None:
    with pytest.raises(tp.Unsupported):
        allocate([f32(4), leaf("h", (4,), tp.F16)], padded)

    assert null.live_buffers == 0


def test_tensors_with_memory_keep_it_and_take_none(null: NullDevice) -> None:
    (first,), _first = allocate([f32(4)], null.buffer_type)

    placed, whole = allocate([f32(4), first], null.buffer_type)

    assert placed[1] is first
    assert whole.size == 64


def test_tensor_given_twice_is_placed_once(null: NullDevice) -> None:
    x = f32(4)

    placed, whole = allocate([x, x], null.buffer_type)

    assert placed[0] is placed[1]
    assert whole.size == 64


def test_nothing_to_place_gives_an_empty_buffer(null: NullDevice) -> None:
    placed, whole = allocate([], null.buffer_type)

    assert placed == []
    assert len(whole.parts) == 1


@given(
    sizes=st.lists(st.integers(0, 64), min_size=1, max_size=20),
    max_size=st.sampled_from([256, 320, 1024]),
)
def test_placed_tensors_never_overlap(sizes: list[int], max_size: int) -> None:
    with NullDevice(max_size=max_size) as device:
        placed, whole = allocate([f32(n) for n in sizes], device.buffer_type)

        for part in whole.parts:
            spans = sorted(
                (t.place.offset, t.place.offset + t.nbytes)
                for t in placed
                if t.place.buffer is part and t.nbytes
            )
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            assert all(start % 64 == 0 and end <= part.size for start, end in spans)
            assert part.size <= max_size


# --- one with its data -------------------------------------------------------------------------


def test_placed_data_is_copied(null: NullDevice) -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)

    w = place("w", data, null.buffer_type, usage=tp.WEIGHTS)
    data[...] = 0

    assert (w.name, w.shape, w.dtype) == ("w", (2, 3), tp.F32)
    assert w.place.buffer.usage is tp.WEIGHTS
    np.testing.assert_array_equal(transfer.read(w), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (np.float32(3), tp.F32),
        ([1.0, 2.0], tp.F64),
        ([[1, 2], [3, 4]], tp.I64),
        (np.zeros((0, 4), np.int32), tp.I32),
        (np.arange(12, dtype=np.float16).reshape(3, 4).T, tp.F16),
    ],
)
def test_data_keeps_type_and_shape(null: NullDevice, data, dtype: tp.DType) -> None:
    w = place("w", data, null.buffer_type)

    assert w.dtype is dtype
    assert w.shape == np.shape(data)
    np.testing.assert_array_equal(transfer.read(w), data)


def test_failed_upload_frees_the_buffer(null: NullDevice) -> None:
    null.fail("write")

    with pytest.raises(tp.DeviceError):
        place("w", np.ones(4, np.float32), null.buffer_type)

    assert null.live_buffers == 0


@pytest.mark.parametrize("data", [np.array(["a"]), np.ones(3, np.complex64), np.ones(3, bool)])
def test_data_without_a_tensor_type_is_refused_before_memory_is_taken(
    null: NullDevice, data
) -> None:
    with pytest.raises(tp.DTypeError, match="has no tensor type"):
        place("w", data, null.buffer_type)

    assert null.log == []


# --- at an offset of one's own -----------------------------------------------------------------


def test_tensor_lies_where_it_is_put(null: NullDevice) -> None:
    buffer = null.buffer_type.alloc(256)

    placed = place_in(f32(4), buffer, 128)

    assert placed.place == tp.Place(buffer, 128)


@pytest.mark.parametrize("offset", [-64, 32, 192, 256])
def test_offset_off_the_alignment_or_out_of_bounds_is_refused(null, offset: int) -> None:
    buffer = null.buffer_type.alloc(256)

    with pytest.raises(tp.ShapeError) as error:
        place_in(f32(17, "w"), buffer, offset)

    assert str(error.value) == (
        f"<NullBuffer null:0, ANY 256 B>: <Tensor 'w', none, f32[17]> cannot lie at byte {offset}: "
        "needs 68 bytes at a multiple of 64, the buffer has 256"
    )


def test_only_leafs_without_memory_are_put_anywhere(null: NullDevice) -> None:
    buffer = null.buffer_type.alloc(256)

    with pytest.raises(tp.GraphError):
        place_in(tp.relu(f32(4)), buffer, 0)


def test_buffer_is_told_of_each_tensor_and_may_run_out(null: NullDevice) -> None:
    told: list[tuple[str, int]] = []

    class Curious(HostBuffer):
        def init_tensor(self, tensor: tp.Tensor, offset: int) -> None:
            if len(told) == 2:
                raise tp.OutOfMemory("no room for a descriptor")
            told.append((tensor.name, offset))

    linear = LinearAllocator(Curious(null.buffer_type, np.zeros(256, np.uint8)))
    linear.place(f32(4, "a"))
    linear.place(f32(4, "b"))

    with pytest.raises(tp.OutOfMemory, match="no room for a descriptor"):
        linear.place(f32(4, "c"))

    assert told == [("a", 0), ("b", 64)]


def test_placed_data_is_stored_in_the_type_asked_for() -> None:
    with NullDevice(host=True).open() as backend:
        placed = backend.place("w", [[1.5, 2.5]], dtype=tp.F16)

        assert (placed.dtype, placed.numpy().tolist()) == (tp.F16, [[1.5, 2.5]])


def test_blocks_are_placed_from_their_stored_bytes() -> None:
    rows = np.arange(2 * 34, dtype=np.uint8).reshape(2, 34)

    with NullDevice(host=True).open() as backend:
        placed = backend.place("w", rows, dtype="q8_0")

        assert placed.shape == (2, 32)
        np.testing.assert_array_equal(placed.numpy(), rows)


def test_half_a_block_is_refused(null: NullDevice) -> None:
    with pytest.raises(tp.ShapeError) as error:
        place("w", np.zeros(33, np.uint8), null.buffer_type, dtype="q8_0")

    assert str(error.value) == (
        "w: rows of q8_0 are whole blocks of 34 bytes, got rows of 33 bytes"
    )


def test_rows_of_several_lengths_are_refused(null: NullDevice) -> None:
    with pytest.raises(tp.ShapeError, match=r"^data of list is not an array of one shape: "):
        place("w", [[1, 2], [3]], null.buffer_type)


def test_closed_stream_places_nothing(null: NullDevice) -> None:
    backend = null.open()
    backend.close()

    with pytest.raises(Closed, match="is closed"):
        backend.place("w", [1.0])

    assert null.live_buffers == 0
