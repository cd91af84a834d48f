"""Tensors of a file in the memory of devices: copied, packed or cut, whatever the file's format."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta, transfer
from tensorplug.device import FileRange, Layout
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import FileTensor, TensorFile, load_weights, map_file, weight_memory
from tensorplug.gguf.weights import SLAB_ROWS
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice

WIDE = np.arange(1024 * 4096, dtype=np.float32).reshape(1024, 4096)
ARRAYS = {
    "table": np.arange(12, dtype=np.float32).reshape(3, 4),
    "halves": np.arange(8, dtype=np.float16).reshape(2, 2, 2),
    "bias": np.arange(5, dtype=np.float32),
}

MakeFile = Callable[[Mapping[str, np.ndarray[Any, Any]]], TensorFile]


@pytest.fixture
def stored(tmp_path: Path) -> MakeFile:
    """Writes arrays one after the other, a format of its own, and opens the file."""

    def make(arrays: Mapping[str, np.ndarray[Any, Any]]) -> TensorFile:
        path = tmp_path / "weights.raw"
        raw, tensors = b"", {}
        for name, array in arrays.items():
            spec = tp.input(name, array.shape, array.dtype)
            tensors[name] = FileTensor(name, spec.dtype, spec.ne, spec.rank, len(raw), array.nbytes)
            raw += array.tobytes() + bytes(-array.nbytes % 64)
        path.write_bytes(raw)
        file = TensorFile(*map_file(path, "raw"))
        file.tensors = tensors
        return file

    return make


class PackedBuffer(NullBuffer):
    """Memory that notes which rows are packed, and stores them as they are."""

    def write_tensor(self, tensor: tp.Tensor, offset: int, data: memoryview) -> None:
        assert isinstance(self.type, PackedType)
        self.type.slabs.append((tensor.name, tensor.shape))
        super().write_tensor(tensor, offset, data)


class PackedType(NullBufferType):
    layout = Layout.PACKED
    buffer_class = PackedBuffer

    def __init__(self, device: NullDevice) -> None:
        super().__init__(device, is_host=False, max_size=1 << 40, name=f"{device.name} packed")
        self.slabs: list[tuple[str, tuple[int, ...]]] = []

    def supports(self, tensor: tp.Tensor) -> bool:
        return tensor.rank > 1

    def prefers(self, weights: tp.Tensor) -> bool:
        return self.supports(weights)


class PackingDevice(NullDevice):
    """A fake device that reads packed weights fastest."""

    def __init__(self) -> None:
        super().__init__("packing:0")
        self.packed = PackedType(self)

    @property
    def extra_buffer_types(self) -> tuple[PackedType]:
        return (self.packed,)


def values(tensor: tp.Tensor) -> list[Any]:
    found: list[Any] = transfer.read(tensor).tolist()
    return found


def test_tensors_of_any_format_are_placed_by_name(stored: MakeFile, null: NullDevice) -> None:
    with stored(ARRAYS) as file, load_weights(file, dict.fromkeys(ARRAYS, null)) as weights:
        found = {name: values(tensor) for name, tensor in weights.tensors.items()}

    assert found == {name: array.tolist() for name, array in ARRAYS.items()}
    assert null.live_buffers == 0


def test_each_tensor_lies_on_its_own_device(stored: MakeFile, null: NullDevice) -> None:
    with NullDevice("null:1") as other, stored(ARRAYS) as file:
        homes = {"table": null, "bias": other}

        with load_weights(file, homes) as weights:
            assert {
                name: tensor.place.buffer.type.device
                for name, tensor in weights.tensors.items()
                if tensor.place is not None
            } == homes


def test_matrix_is_packed_some_rows_at_a_time(stored: MakeFile) -> None:
    done: list[tuple[int, int]] = []

    with PackingDevice() as device, stored({"wide": WIDE}) as file:
        weights = load_weights(file, {"wide": device}, progress=lambda *s: done.append(s))

        assert np.array_equal(transfer.read(weights.tensors["wide"]), WIDE)
        weights.close()

    rows = [shape[0] for name, shape in device.packed.slabs]
    assert len(rows) > 1
    assert sum(rows) == len(WIDE)
    assert all(count % SLAB_ROWS == 0 for count in rows)
    assert done[-1] == (WIDE.nbytes, WIDE.nbytes)


@pytest.mark.skipif(sys.platform != "linux", reason="the pages of a process are Linux's to tell")
def test_pages_of_a_tensor_are_given_back_once_it_is_copied(
    stored: MakeFile, null: NullDevice
) -> None:
    names = "abcd"
    seen: list[int] = []

    with stored(dict.fromkeys(names, WIDE)) as file:
        before = pages_of_files()
        homes = dict.fromkeys(names, null)
        with load_weights(file, homes, progress=lambda *_: seen.append(pages_of_files() - before)):
            assert len(seen) == len(names)

    assert max(seen) < WIDE.nbytes


def pages_of_files() -> int:
    """Bytes of mapped files that are in the memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("RssFile"))
    return int(line.split()[1]) << 10


def test_tensor_of_three_dimensions_is_packed_at_once(stored: MakeFile) -> None:
    with PackingDevice() as device, stored(ARRAYS) as file:
        weights = load_weights(file, dict.fromkeys(ARRAYS, device))
        found = {name: values(tensor) for name, tensor in weights.tensors.items()}
        weights.close()

    assert found == {name: array.tolist() for name, array in ARRAYS.items()}
    assert ("halves", (2, 2, 2)) in device.packed.slabs


def test_tensors_that_are_looked_up_are_not_packed(stored: MakeFile) -> None:
    with PackingDevice() as device, stored(ARRAYS) as file:
        load_weights(file, dict.fromkeys(ARRAYS, device), looked_up=["table"]).close()

    assert [name for name, _ in device.packed.slabs] == ["halves"]


def test_device_made_of_several_gets_a_part_for_each(stored: MakeFile, null: NullDevice) -> None:
    with (
        NullDevice("null:1") as other,
        meta.device([null, other], "rows", ratio=[1, 2]) as both,
        stored(ARRAYS) as file,
        load_weights(file, {"table": both}) as weights,
    ):
        whole = values(weights.tensors["table"])
        parts = null.used, other.used

    assert whole == ARRAYS["table"].tolist()
    assert all(part < ARRAYS["table"].nbytes + 64 for part in parts)
    assert min(parts) > 0


def test_table_that_is_also_the_output_is_adopted_under_both_names(
    stored: MakeFile, null: NullDevice
) -> None:
    with stored(ARRAYS) as file, load_weights(file, {"table": null}) as weights:
        again = load_weights(file, {"table": null})

        weights.adopt(again, {"table": "output"})
        again.close()

        assert values(weights.tensors["output"]) == values(weights.tensors["table"])
        assert null.live_buffers == 2


def test_failed_load_gives_all_memory_back(stored: MakeFile, null: NullDevice) -> None:
    with NullDevice("null:1") as other, stored(ARRAYS) as file:
        other.fail("alloc")

        with pytest.raises(tp.OutOfMemory):
            load_weights(file, {"table": null, "bias": other})

    assert null.live_buffers == 0


def test_tensor_that_the_file_lacks_is_named(stored: MakeFile, null: NullDevice) -> None:
    with stored(ARRAYS) as file, pytest.raises(FormatError, match="there is no tensor 'ghost'"):
        load_weights(file, {"ghost": null})


def test_unknown_mode_lists_the_known_ones(stored: MakeFile, null: NullDevice) -> None:
    with stored(ARRAYS) as file, pytest.raises(OptionError) as caught:
        load_weights(file, {"table": null}, mode="small")

    assert str(caught.value) == "weights: 'small' is unknown; choose auto, f32, packed, mapped"


def test_name_in_place_of_a_device_is_refused(stored: MakeFile) -> None:
    with stored(ARRAYS) as file, pytest.raises(OptionError) as caught:
        load_weights(file, {"table": "cpu"})

    assert str(caught.value) == "homes has 'cpu'; give devices, as of tensorplug.device()"


def test_remote_device_reads_weights_from_its_own_file(stored: MakeFile) -> None:
    seen: list[tuple[str, int, int]] = []

    class FarBuffer(NullBuffer):
        def read_file(self, tensor: tp.Tensor, offset: int, source: FileRange) -> bool:
            seen.append((tensor.name, source.offset, source.size))
            return tensor.name != "bias"

    class FarType(NullBufferType):
        buffer_class = FarBuffer

    class FarDevice(NullDevice):
        buffer_type_class = FarType
        remote = True

    device = FarDevice("far:0")
    file = stored(ARRAYS)
    with load_weights(file, dict.fromkeys(ARRAYS, device)) as weights:
        bias = transfer.read(weights.tensors["bias"])

    assert seen == [(name, file.find(name).offset, file.find(name).nbytes) for name in ARRAYS]
    assert bias.tolist() == ARRAYS["bias"].tolist()


class Parts(TensorFile):
    """Tensors of several files under one roof; those of `made` are made when they are read."""

    def __init__(self, files: list[TensorFile], made: frozenset[str] = frozenset()) -> None:
        super().__init__(np.empty(0, np.uint8), files[0].path)
        self.files = {name: file for file in files for name in file.tensors}
        self.tensors = {name: file.tensors[name] for name, file in self.files.items()}
        self.made = made

    def memory_of(self, name: str) -> np.ndarray[Any, Any] | None:
        return None if name in self.made else self.files[name].memory

    def tensor_bytes(self, name: str) -> np.ndarray[Any, Any]:
        return self.files[name].tensor_bytes(name)

    def release(self, name: str | None = None, start: int = 0, size: int = 0) -> None:
        for file in self.files.values():
            file.release()


def test_tensors_of_several_files_are_mapped_from_each(stored: MakeFile, tmp_path: Path) -> None:
    one = stored({"table": ARRAYS["table"]})
    one.path.rename(tmp_path / "one.raw")
    other = stored({"halves": ARRAYS["halves"], "bias": ARRAYS["bias"]})
    cpu = tp.device("cpu")

    with load_weights(Parts([one, other]), dict.fromkeys(ARRAYS, cpu), mode="mapped") as weights:
        assert len(weights.buffers) == 2
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(transfer.read(weights.tensors[name]), array)
            place = weights.tensors[name].place
            assert place is not None
            source = (one if name == "table" else other).memory
            assert place.buffer.size == source.size


def test_tensor_that_no_file_holds_as_it_is_is_copied_and_counted_so(stored: MakeFile) -> None:
    file = Parts([stored(ARRAYS)], made=frozenset({"table"}))
    homes = dict.fromkeys(ARRAYS, tp.device("cpu"))

    planned = weight_memory(file, homes, mode="mapped")

    assert [(group.mapped, [t.name for t in group.tensors]) for group in planned] == [
        (True, ["halves", "bias"]),
        (False, ["table"]),
    ]
    with load_weights(file, homes, mode="mapped") as weights:
        np.testing.assert_array_equal(transfer.read(weights.tensors["table"]), ARRAYS["table"])


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (16, 8), (24, None), (0, 21), (4, -8)])
def test_bytes_beyond_a_tensor_are_not_those_of_the_next(
    stored: MakeFile, start: int, size: int | None
) -> None:
    with stored(ARRAYS) as file, pytest.raises(tp.FormatError, match="'bias' were asked for, and"):
        file.read_tensor("bias", start, size)
