"""`QueuedTests`: tensors written, read and copied in order with the work of a stream."""

from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Array, BufferType, BufferUsage, Device, Tensor, leaf, transfer
from tensorplug.device.placing import LinearAllocator, align
from tensorplug.dtypes import DTYPES
from tensorplug.errors import Unsupported
from tensorplug_testing.suites.work import UNTOUCHED, Rig, Suite, numbers

PARTS = [(0, 48), (4, 8), (1, 3), (47, 1), (48, 0), (0, 0)]
"""Offset and size of transfers to a tensor of 48 bytes."""
OUTSIDE = [(0, 52), (0, 240), (44, 8), (-4, 4), (-4, 8), (48, 4), (96, 4)]
"""Offset and size of transfers outside a tensor of 48 bytes, where its neighbours lie."""
WRONG: dict[str, Array] = {
    "i32": np.zeros(3, np.int32),
    "f64": np.zeros(3, np.float64),
    "f16": np.zeros(3, np.float16),
    "bool": np.zeros(3, np.bool_),
    "big-endian": np.zeros(3, ">f4"),
}
"""Host memory of other types than f32."""


class QueuedTests(Suite):
    """Queued transfers check bounds, types and layouts of tensors, in all memory of the device."""

    @pytest.fixture(params=["own", "pinned"])
    def plain(self, request: pytest.FixtureRequest, device: Device) -> BufferType:
        """Memory with the standard layout."""
        kind = device.buffer_type if request.param == "own" else device.host_buffer_type
        if kind is None:
            pytest.skip(f"{device.name} has no host buffers")
        return kind

    @pytest.mark.parametrize(("offset", "size"), PARTS)
    def test_part_of_a_tensor_is_written_in_order_and_its_neighbours_are_left(
        self, work: Rig, plain: BufferType, offset: int, size: int
    ) -> None:
        stream, (before, tensor, after) = work.open(), _three(work, plain)
        data = numbers(12).view(np.uint8)[offset : offset + size]
        wanted = np.full(48, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data

        transfer.write_async(stream, tensor, data, offset)
        stream.synchronize()

        assert transfer.read_bytes(tensor, 0, 48).tolist() == wanted.tolist()
        assert _untouched(before, after)

    @pytest.mark.parametrize(("offset", "size"), PARTS)
    def test_part_of_a_tensor_is_read_in_order(
        self, work: Rig, plain: BufferType, offset: int, size: int
    ) -> None:
        stream, (_, tensor, _) = work.open(), _three(work, plain)
        data, seen = numbers(12), np.zeros(size + 2, np.uint8)

        transfer.write_async(stream, tensor, data)
        transfer.read_async(stream, tensor, seen[1 : 1 + size], offset)
        stream.synchronize()

        assert seen[1 : 1 + size].tolist() == data.view(np.uint8)[offset : offset + size].tolist()
        assert not seen[0]
        assert not seen[-1]

    def test_elements_of_the_type_of_a_tensor_are_written_and_read(
        self, work: Rig, plain: BufferType
    ) -> None:
        stream, (_, tensor, _) = work.open(), _three(work, plain)
        data, seen = numbers(2), np.zeros(2, np.float32)

        transfer.write_async(stream, tensor, data, 16)
        transfer.read_async(stream, tensor, seen, 16)
        stream.synchronize()

        np.testing.assert_array_equal(seen, data)

    @pytest.mark.parametrize("doing", ["write", "read"])
    @pytest.mark.parametrize(("offset", "size"), OUTSIDE)
    def test_transfer_beyond_a_tensor_is_refused_and_changes_nothing(
        self, work: Rig, plain: BufferType, doing: str, offset: int, size: int
    ) -> None:
        stream, tensors = work.open(), _three(work, plain)
        host = np.zeros(size, np.uint8)

        with pytest.raises(tp.ShapeError) as error:
            _doing(doing)(stream, tensors[1], host, offset)

        stream.synchronize()
        assert str(error.value) == (
            f"{tensors[1]}: {doing} of bytes {offset} to {offset + size} is out of bounds; "
            "it has 48"
        )
        assert _untouched(*tensors)
        assert not host.any()

    @pytest.mark.parametrize("doing", ["write", "read"])
    @pytest.mark.parametrize("kind", WRONG)
    def test_host_memory_of_another_type_is_refused(
        self, work: Rig, plain: BufferType, doing: str, kind: str
    ) -> None:
        stream, tensors = work.open(), _three(work, plain)

        with pytest.raises(tp.DTypeError) as error:
            _doing(doing)(stream, tensors[1], WRONG[kind].copy(), 0)

        stream.synchronize()
        assert str(error.value) == (
            f"{tensors[1]}: {doing} of {WRONG[kind].dtype} data; give float32, or uint8 for stored "
            "bytes"
        )
        assert _untouched(*tensors)

    def test_nothing_is_read_into_memory_that_is_read_only(
        self, work: Rig, plain: BufferType
    ) -> None:
        stream, (_, tensor, _) = work.open(), _three(work, plain)
        out = bytes(8)

        with pytest.raises(tp.DTypeError) as error:
            transfer.read_async(stream, tensor, memoryview(out))

        assert "cannot read into read-only memory" in str(error.value)
        assert out == bytes(8)

    def test_elements_for_a_tensor_with_gaps_are_refused(
        self, work: Rig, plain: BufferType
    ) -> None:
        stream, tensor = work.open(), work.place(np.zeros((4, 4), np.float32), plain)
        view = tensor[:, 1:3]

        with pytest.raises(tp.ShapeError) as error:
            transfer.write_async(stream, view, numbers(4, 2))

        assert str(error.value) == (
            f"{view}: has gaps, but the elements given do not; give stored bytes as uint8, or "
            "write() it after synchronize()"
        )
        stream.synchronize()
        assert not transfer.read(tensor).any()

    # --- copies ----------------------------------------------------------------------------

    def test_tensor_is_copied_in_order_and_its_neighbours_are_left(
        self, work: Rig, plain: BufferType
    ) -> None:
        first, second = work.open(), work.open()
        (_, source, _), (before, target, after) = _three(work, plain), _three(work, plain)
        data = numbers(12)

        transfer.write_async(first, source, data)
        transfer.copy_async(first, second, source, target)
        second.synchronize()

        np.testing.assert_array_equal(transfer.read(target), data)
        assert _untouched(before, after)

    @pytest.mark.parametrize("shape", [(3,), (12, 1), (4, 3), (13,)], ids=str)
    @pytest.mark.parametrize("kind", ["float32", "int32"])
    def test_copy_to_a_tensor_of_another_type_or_shape_is_refused(
        self, work: Rig, plain: BufferType, kind: str, shape: tuple[int, ...]
    ) -> None:
        stream, (_, source, _) = work.open(), _three(work, plain)
        target = work.place(np.zeros(shape, kind), plain)

        with pytest.raises(tp.ShapeError) as error:
            transfer.copy_async(stream, stream, source, target)

        stream.synchronize()
        assert str(error.value) == (
            f"copy: {source} and {target} differ in type, sizes or strides; use cpy() in a graph"
        )
        assert not transfer.read(target).any()

    def test_copy_of_a_tensor_to_itself_changes_nothing(self, work: Rig, plain: BufferType) -> None:
        stream, (_, tensor, _) = work.open(), _three(work, plain)

        assert transfer.copy_async(stream, stream, tensor, tensor) is None

        stream.synchronize()
        assert _untouched(tensor)

    # --- memory with layouts of its own ----------------------------------------------------

    @pytest.fixture
    def weights(self, work: Rig, device: Device) -> list[tuple[Tensor, Tensor]]:
        """For each type that extra memory accepts, a tensor there and one in plain memory."""
        made = []
        for kind in device.extra_buffer_types:
            for dtype in DTYPES:
                spec = leaf("w", (64, 256 if dtype.is_block else 8), dtype)
                if kind.supports(spec):
                    made.append((_alone(work, spec, kind), _alone(work, spec, device.buffer_type)))
        if not made:
            pytest.skip(f"{device.name} has no extra memory")
        return made

    def test_extra_memory_takes_on_a_stream_what_it_takes_at_once(
        self, work: Rig, device: Device, weights: list[tuple[Tensor, Tensor]]
    ) -> None:
        stream = work.open()

        for tensor, plain in weights:
            data = _stored(plain)
            transfer.write(tensor, data)
            wanted = _raw(tensor)
            transfer.fill(tensor, 0)
            transfer.write_async(stream, tensor, data)
            stream.synchronize()
            _check(tensor, wanted)
            transfer.fill(tensor, 0)
            transfer.write_async(stream, plain, data)
            transfer.copy_async(stream, stream, plain, tensor)
            stream.synchronize()
            _check(tensor, wanted)

    def test_extra_memory_gives_on_a_stream_what_it_gives_at_once(
        self, work: Rig, weights: list[tuple[Tensor, Tensor]]
    ) -> None:
        stream = work.open()

        for tensor, plain in weights:
            transfer.write(tensor, _stored(plain))
            seen = np.zeros(tensor.nbytes, np.uint8)
            try:
                wanted = transfer.read(tensor).tobytes()
            except Unsupported:
                with pytest.raises(Unsupported):
                    transfer.read_async(stream, tensor, seen)
                continue
            transfer.read_async(stream, tensor, seen)
            transfer.copy_async(stream, stream, tensor, plain)
            stream.synchronize()
            assert seen.tobytes() == wanted, f"{tensor}"
            assert transfer.read(plain).tobytes() == wanted, f"{tensor}"

    @pytest.mark.parametrize("doing", ["write", "read"])
    def test_part_of_a_tensor_in_a_layout_of_its_own_is_refused(
        self, work: Rig, weights: list[tuple[Tensor, Tensor]], doing: str
    ) -> None:
        stream = work.open()

        for tensor, plain in weights:
            if tensor.place is None or tensor.place.buffer.type.standard_layout:
                continue
            transfer.write(tensor, _stored(plain))
            wanted = _raw(tensor)
            with pytest.raises(Unsupported) as error:
                _doing(doing)(stream, tensor, np.zeros(4, np.uint8), 0)
            assert str(error.value) == (
                f"{tensor}: {tensor.place.buffer.type.name} keeps it in a layout of its own; "
                f"{doing} all of it"
            )
            _check(tensor, wanted)


def _three(work: Rig, kind: BufferType) -> list[Tensor]:
    """Three vectors of 12 floats in one buffer, next to each other, full of UNTOUCHED."""
    spec = leaf("x", (12,), tp.F32)
    size = align(kind.alloc_size(spec), kind.alignment)
    linear = LinearAllocator(work.alloc(3 * size, kind))
    placed = [linear.place(spec) for _ in range(3)]
    for tensor in placed:
        # Memory of a meta device allocates slices for each tensor when the tensor is placed.
        transfer.fill(tensor, UNTOUCHED)
    return placed


def _alone(work: Rig, spec: Tensor, kind: BufferType) -> Tensor:
    size = align(kind.alloc_size(spec), kind.alignment)
    buffer = work.keep(kind.alloc(size, BufferUsage.WEIGHTS, tensors=[spec]))
    return LinearAllocator(buffer).place(spec)


def _untouched(*tensors: Tensor) -> bool:
    return all(set(transfer.read_bytes(t, 0, 48).tolist()) == {UNTOUCHED} for t in tensors)


def _doing(doing: str) -> Any:
    return transfer.write_async if doing == "write" else transfer.read_async


def _stored(tensor: Tensor) -> Array:
    """Stored data for `tensor`: bytes of blocks, or small numbers."""
    if tensor.dtype.is_block:
        row = tensor.dtype.row_size(tensor.ne[0])
        return np.random.default_rng(0).integers(0, 64, (tensor.ne[1], row), np.uint8)
    return numbers(tensor.ne[1], tensor.ne[0]).astype(tensor.dtype.storage)


def _raw(tensor: Tensor) -> Array:
    """The stored bytes of `tensor`."""
    home = tensor.place
    assert home is not None
    return home.buffer.read(home.offset, home.buffer.type.alloc_size(tensor))


def _check(tensor: Tensor, wanted: Array) -> None:
    np.testing.assert_array_equal(_raw(tensor), wanted, err_msg=f"{tensor}")
