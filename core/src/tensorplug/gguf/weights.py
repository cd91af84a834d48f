"""`load_weights`: tensors of a file on devices, mapped, packed, expanded or copied."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device.abilities import SupportsHostImport
from tensorplug.device.buffer import Buffer, BufferType, BufferUsage, Layout, MultiBuffer
from tensorplug.device.device import Device
from tensorplug.device.lifetime import Resource
from tensorplug.device.placing import allocate, buffer_sizes, place_in
from tensorplug.dtypes import F32
from tensorplug.errors import OptionError
from tensorplug.gguf.strings import Bytes
from tensorplug.gguf.tensorfile import FileTensor, TensorFile
from tensorplug.graph.tensor import Tensor, leaf

Progress = Callable[[int, int], None]
"""Called after each copied tensor with the bytes copied so far and the bytes of all copies."""

SLAB_ROWS = 256
"""Rows are written by multiples of this number, which every packed layout keeps together."""
SLAB = 8 << 20
"""Bytes of a matrix that are brought into memory at once while it is packed."""


class WeightMode(enum.StrEnum):
    """How weights lie in memory on devices that can choose."""

    AUTO = "auto"
    """Expanded to f32 where the device has a layout for it and half of its free memory is enough;
    else packed where the device reads packed weights fastest; else mapped."""
    F32 = "f32"
    PACKED = "packed"
    MAPPED = "mapped"


class Weights(Resource):
    """Tensors with places, by name, and the buffers that hold them."""

    def __init__(
        self, tensors: Mapping[str, Tensor], buffers: Sequence[Buffer | MultiBuffer]
    ) -> None:
        super().__init__()
        self.tensors = dict(tensors)
        self.buffers = tuple(buffers)

    def adopt(self, other: "Weights", names: Mapping[str, str]) -> None:
        """Take over the buffers of `other` and those of its tensors that `names` renames.

        `other` is empty afterwards.
        """
        self.tensors |= {new: other.tensors[old] for old, new in names.items()}
        self.buffers = (*self.buffers, *other.buffers)
        other.tensors, other.buffers = {}, ()

    def _close(self) -> None:
        for buffer in self.buffers:
            buffer.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.tensors)} tensors"
        return f"<Weights {state}>"


def load_weights(
    file: TensorFile,
    homes: Mapping[str, Device],
    *,
    mode: WeightMode | str = WeightMode.AUTO,
    looked_up: Iterable[str] = (),
    progress: Progress | None = None,
) -> Weights:
    """Place the tensors named in `homes` on their devices.

    A mapped tensor uses the memory of the file, which must stay as it is; all others are copies.
    A device made of several stores what its policy gives to each. Tensors in `looked_up` are only
    read row by row: they are never expanded or packed. Raises FormatError, OutOfMemory,
    OptionError.
    """
    groups = _groups(file, homes, mode, looked_up)
    loading = _Loading(file, groups, progress)
    try:
        for group in groups:
            (loading.map if group.mapped else loading.copy)(group)
        file.check_size()
    except BaseException:
        for buffer in loading.buffers:
            buffer.close()
        raise
    return Weights(loading.placed, loading.buffers)


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """Tensors that `load_weights` would bring to one kind of memory of a device."""

    memory: BufferType
    tensors: tuple[Tensor, ...]
    size: int
    """Bytes: of the buffers that it would allocate, or of the file where it maps."""
    mapped: bool


def weight_memory(
    file: TensorFile,
    homes: Mapping[str, Device],
    *,
    mode: WeightMode | str = WeightMode.AUTO,
    looked_up: Iterable[str] = (),
) -> list[WeightMemory]:
    """What `load_weights` would do with the same arguments; nothing is allocated.

    Raises OptionError.
    """
    found = []
    for group in _groups(file, homes, mode, looked_up):
        specs = tuple(_spec(t) for t in group.tensors)
        sizes = [t.nbytes for t in group.tensors]
        size = sum(sizes if group.mapped else buffer_sizes(specs, group.memory))
        found.append(WeightMemory(group.memory, specs, size, group.mapped))
    return found


# --- which memory --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that are brought to one kind of memory in one way."""

    device: Device
    memory: BufferType
    tensors: Sequence[FileTensor]
    mapped: bool = False


def _groups(
    file: TensorFile,
    homes: Mapping[str, Device],
    mode: WeightMode | str,
    looked_up: Iterable[str],
) -> list[_Group]:
    devices = list(dict.fromkeys(homes.values()))
    for device in devices:
        if not isinstance(device, Device):
            raise OptionError(f"homes has {device!r}; give devices, as of tensorplug.device()")
    wanted = _checked(mode, devices)
    few_rows = frozenset(looked_up)
    groups = []
    for device in devices:
        tensors = [file.find(name) for name, home in homes.items() if home is device]
        groups += _group(file, device, tensors, wanted, few_rows)
    return groups


def _checked(mode: WeightMode | str, devices: Sequence[Device]) -> WeightMode:
    """Return `mode` if one of the devices can do it. Raises OptionError."""
    names = ", ".join(device.name for device in devices)
    if mode not in list(WeightMode):
        raise OptionError(f"weights: {mode!r} is unknown; choose {', '.join(WeightMode)}")
    for wish, layout, what in (
        (WeightMode.F32, Layout.EXPANDED, "store weights expanded to f32"),
        (WeightMode.PACKED, Layout.PACKED, "pack weights"),
    ):
        if mode == wish and not any(_memory_of(device, layout) for device in devices):
            raise OptionError(f"weights: {names} cannot {what}; leave the option out")
    if mode == WeightMode.MAPPED and not any(isinstance(d, SupportsHostImport) for d in devices):
        raise OptionError(
            f"weights: {names} cannot use the file where it is mapped; leave the option out"
        )
    return WeightMode(mode)


def _group(
    file: TensorFile,
    device: Device,
    tensors: Sequence[FileTensor],
    mode: WeightMode,
    looked_up: frozenset[str],
) -> list[_Group]:
    """Decide for each tensor of one device: expanded, packed, mapped or copied."""
    mappable = device.buffer_type.is_host and isinstance(device, SupportsHostImport)
    computed = [t for t in tensors if t.name not in looked_up]
    wide, packed = _memory_of(device, Layout.EXPANDED), _memory_of(device, Layout.PACKED)
    groups: list[_Group] = []
    if wide is not None and mode in (WeightMode.AUTO, WeightMode.F32):
        expanded = [t for t in computed if t.dtype is not F32 and wide.supports(_spec(t))]
        needed = sum(wide.alloc_size(_spec(t)) for t in expanded)
        if mode is WeightMode.F32 or needed <= device.memory().free // 2:
            groups.append(_Group(device, wide, expanded))
    if packed is not None and mode in (WeightMode.AUTO, WeightMode.PACKED):
        choose = packed.prefers if mode is WeightMode.AUTO else packed.supports
        if chosen := [t for t in computed if choose(_spec(t))]:
            groups.append(_Group(device, packed, chosen))
            # Vectors lie all over the file: mapped, they would keep much of it in memory.
            groups.append(_Group(device, device.buffer_type, [t for t in computed if t.rank == 1]))
    moved = {t.name for group in groups for t in group.tensors}
    rest = [t for t in tensors if t.name not in moved]
    there = [t for t in rest if mappable and file.memory_of(t.name) is not None]
    groups.append(_Group(device, device.buffer_type, there, mapped=True))
    groups.append(_Group(device, device.buffer_type, [t for t in rest if t not in there]))
    return [group for group in groups if group.tensors]


def _memory_of(device: Device, layout: Layout) -> BufferType | None:
    return next((kind for kind in device.extra_buffer_types if kind.layout is layout), None)


def _spec(tensor: FileTensor) -> Tensor:
    return leaf(tensor.name, tensor.shape, tensor.dtype)


# --- bringing it there ---------------------------------------------------------------------------


class _Loading:
    """Tensors placed so far, the buffers made for them, and how much is copied."""

    def __init__(
        self, file: TensorFile, groups: Sequence[_Group], progress: Progress | None
    ) -> None:
        self.placed: dict[str, Tensor] = {}
        self.buffers: list[Buffer | MultiBuffer] = []
        self._file = file
        self._progress = progress
        self._total = sum(t.nbytes for group in groups if not group.mapped for t in group.tensors)
        self._done = 0

    def map(self, group: _Group) -> None:
        """Use the memory of files; tensors that do not lie as the device needs them are copied."""
        misaligned = []
        for memory, tensors in self._by_file(group.tensors):
            device = group.device
            assert isinstance(device, SupportsHostImport)
            largest = max(t.nbytes for t in tensors)
            buffer = device.import_host(memory, largest_tensor=largest)
            buffer.usage = BufferUsage.WEIGHTS
            self.buffers.append(buffer)
            for tensor in tensors:
                if tensor.offset % buffer.type.alignment:
                    misaligned.append(tensor)
                else:
                    self.placed[tensor.name] = place_in(_spec(tensor), buffer, tensor.offset)
        if misaligned:
            self._total += sum(t.nbytes for t in misaligned)
            self.copy(_Group(group.device, group.device.buffer_type, misaligned))

    def _by_file(self, tensors: Iterable[FileTensor]) -> list[tuple[Bytes, list[FileTensor]]]:
        """Tensors with the memory of the file that each lies in."""
        found: dict[int, tuple[Bytes, list[FileTensor]]] = {}
        for tensor in tensors:
            memory = self._file.memory_of(tensor.name)
            assert memory is not None
            found.setdefault(id(memory), (memory, []))[1].append(tensor)
        return list(found.values())

    def copy(self, group: _Group) -> None:
        """Write the tensors into memory of their own; the file's pages are released."""
        specs = [_spec(t) for t in group.tensors]
        with_memory, buffer = allocate(specs, group.memory, usage=BufferUsage.WEIGHTS)
        self.buffers.append(buffer)
        for entry, tensor in zip(group.tensors, with_memory, strict=True):
            if group.device.remote and self._read_there(entry, tensor):
                self._report(entry.nbytes)
            elif group.memory.layout is Layout.PACKED and entry.rank == 2:
                self._write_in_slabs(entry, tensor)
            else:
                self._write(entry, tensor)
            self.placed[entry.name] = tensor
        # Small tensors leave the pages in memory that they lie in, and those next to them.
        self._file.release()

    def _read_there(self, entry: FileTensor, tensor: Tensor) -> bool:
        """Let the device read the tensor from its own machine's copy of the file, if it has one."""
        home = tensor.place
        assert home is not None
        where = self._file.range_of(entry.name)
        return where is not None and home.buffer.read_file(tensor, home.offset, where)

    def _write(self, entry: FileTensor, tensor: Tensor) -> None:
        home = tensor.place
        assert home is not None
        home.buffer.write_tensor(tensor, home.offset, self._file.tensor_bytes(entry.name).data)
        self._file.release(entry.name, 0, entry.nbytes)
        self._report(entry.nbytes)

    def _write_in_slabs(self, entry: FileTensor, tensor: Tensor) -> None:
        """Write a matrix some rows at a time, so that file and copy are never both in memory."""
        home = tensor.place
        assert home is not None
        rows, width = entry.shape
        size = entry.dtype.row_size(width)
        step = max(SLAB // size // SLAB_ROWS, 1) * SLAB_ROWS
        for first in range(0, rows, step):
            count = min(step, rows - first)
            start, stop = first * size, (first + count) * size
            self._file.check_size()
            slab = leaf(entry.name, (count, width), entry.dtype)
            data = self._file.part_of(entry.name, start, stop - start).data
            home.buffer.write_tensor(slab, home.offset + start, data)
            self._file.release(entry.name, start, stop - start)
            self._report(stop - start)

    def _report(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)
