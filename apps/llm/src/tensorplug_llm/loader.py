"""Weights: checked against what the architecture expects, then mapped, packed or uploaded."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import tensorplug as tp
from tensorplug import Buffer, BufferType, Device, MultiBuffer, SupportsHostImport, Tensor
from tensorplug.device import Layout, Resource, allocate, place_in
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import GGUFFile, GGUFTensor
from tensorplug.graph.tensor import Storage, leaf
from tensorplug_llm.arch import Expected

Progress = Callable[[int, int], None]
"""Told after each tensor how many bytes are done, of how many."""

SLAB_ROWS = 256
"""Rows are written by multiples of these, which all layouts of packed weights keep together."""
SLAB = 8 << 20
"""Bytes of a file that are brought into memory of its own at once."""


class WeightMode(enum.StrEnum):
    """How weights lie in the memory of devices that can use the file where it is."""

    AUTO = "auto"
    """Expanded to f32 where that is read faster and fits in half of the free memory; in a layout of
    the device's own where it has one and that is read faster; else mapped."""
    F32 = "f32"
    PACKED = "packed"
    MAPPED = "mapped"


class Weights(Resource):
    """The weights of a model by name, and the buffers that hold them."""

    def __init__(
        self, tensors: Mapping[str, Tensor], buffers: Sequence[Buffer | MultiBuffer]
    ) -> None:
        super().__init__()
        self.tensors = dict(tensors)
        self.buffers = tuple(buffers)

    def _close(self) -> None:
        for buffer in self.buffers:
            buffer.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.tensors)} tensors"
        return f"<Weights {state}>"


def check_tensors(file: GGUFFile, expected: Iterable[Expected]) -> list[GGUFTensor]:
    """The tensors of the file that the model needs. Raises FormatError for the first wrong one."""
    wanted = {e.name: e for e in expected}
    for name, entry in wanted.items():
        found = file.tensors.get(name)
        if found is None:
            if not entry.optional:
                raise FormatError(
                    f"{file.path}: tensor {name!r} {_sizes(entry.ne)} is missing; the model is "
                    "incomplete: fetch the file again"
                )
        elif found.ne[: found.rank] != entry.ne:
            raise FormatError(
                f"{file.path}: tensor {name!r} is {_sizes(found.ne[: found.rank])}, and "
                f"{_sizes(entry.ne)} was expected; its metadata and its tensors contradict each "
                "other: fetch or convert the model again"
            )
        elif len(entry.ne) == 1 and found.dtype is not tp.F32:
            raise FormatError(
                f"{file.path}: tensor {name!r} is {found.dtype.name}, and vectors must be f32; "
                "convert the model again"
            )
        elif found.dtype.is_integer or found.dtype is tp.F64:
            raise FormatError(
                f"{file.path}: tensor {name!r} is {found.dtype.name}, which no device multiplies "
                "with; convert the model to f16 or a block type"
            )
    for name in file.tensors:
        if name not in wanted:
            raise FormatError(
                f"{file.path}: tensor {name!r} has no place in this architecture, and leaving it "
                "out would give wrong answers; use a newer tensorplug-llm"
            )
    return [file.tensors[name] for name in wanted if name in file.tensors]


def _sizes(ne: Sequence[int]) -> str:
    return " x ".join(map(str, ne))


def load_weights(
    file: GGUFFile,
    homes: Mapping[str, Device],
    *,
    mode: WeightMode = WeightMode.AUTO,
    looked_up: Iterable[str] = (),
    progress: Progress | None = None,
) -> Weights:
    """Place the tensors named in `homes` on their devices.

    Tensors in `looked_up` are only read row by row: they are never expanded. Raises OutOfMemory,
    OptionError.
    """
    devices = list(dict.fromkeys(homes.values()))
    _check_mode(mode, devices)
    few_rows = frozenset(looked_up)
    groups = [
        group
        for device in devices
        for group in _group(
            device, [file.tensors[n] for n, d in homes.items() if d is device], mode, few_rows
        )
    ]
    total = sum(t.nbytes for group in groups if not group.mapped for t in group.tensors)
    report = _Report(total, progress)
    placed: dict[str, Tensor] = {}
    buffers: list[Buffer | MultiBuffer] = []
    try:
        for group in groups:
            place = _map if group.mapped else _copy
            place(file, group, placed, buffers, report)
        file.check_size()
    except BaseException:
        for buffer in buffers:
            buffer.close()
        raise
    return Weights(placed, buffers)


def add_output(file: GGUFFile, weights: Weights, device: Device) -> None:
    """Place the embedding table once more, on `device`, as the output matrix."""
    more = load_weights(file, {"token_embd.weight": device})
    weights.tensors["output.weight"] = more.tensors["token_embd.weight"]
    weights.buffers, more.buffers = (*weights.buffers, *more.buffers), ()


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that are brought to one kind of memory in one way."""

    device: Device
    memory: BufferType
    tensors: Sequence[GGUFTensor]
    mapped: bool = False


class _Report:
    """Adds up what is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def _group(
    device: Device,
    tensors: Sequence[GGUFTensor],
    mode: WeightMode,
    looked_up: frozenset[str],
) -> list[_Group]:
    """Decide for each tensor of one device: expanded, packed, mapped or uploaded."""
    mappable = device.buffer_type.is_host and isinstance(device, SupportsHostImport)
    computed = [t for t in tensors if t.name not in looked_up]
    wide, packed = _extra(device, Layout.EXPANDED), _extra(device, Layout.PACKED)
    groups: list[_Group] = []
    if wide is not None and mode in (WeightMode.AUTO, WeightMode.F32):
        expanded = [t for t in computed if t.dtype is not tp.F32 and wide.supports(_spec(t))]
        needed = sum(wide.alloc_size(_spec(t)) for t in expanded)
        if mode is WeightMode.F32 or needed <= device.memory().free // 2:
            groups.append(_Group(device, wide, expanded))
    wanted = mode is WeightMode.PACKED or (mode is WeightMode.AUTO and _is_preferred(packed))
    if packed is not None and wanted:
        groups.append(_Group(device, packed, [t for t in computed if packed.supports(_spec(t))]))
        # Vectors lie all over the file: mapped, they would keep much of it in memory.
        groups.append(_Group(device, device.buffer_type, [t for t in computed if t.rank == 1]))
    moved = {t.name for group in groups for t in group.tensors}
    rest = [t for t in tensors if t.name not in moved]
    groups.append(_Group(device, device.buffer_type, rest, mapped=mappable))
    return [group for group in groups if group.tensors]


def _extra(device: Device, layout: Layout) -> BufferType | None:
    return next((k for k in device.extra_buffer_types if k.layout is layout), None)


def _is_preferred(memory: BufferType | None) -> bool:
    return memory is not None and memory.for_weights


def _check_mode(mode: WeightMode, devices: Sequence[Device]) -> None:
    names = ", ".join(device.name for device in devices)
    for wanted, layout, what in (
        (WeightMode.F32, Layout.EXPANDED, "store weights expanded to f32"),
        (WeightMode.PACKED, Layout.PACKED, "pack weights"),
    ):
        if mode is wanted and not any(_extra(device, layout) for device in devices):
            raise OptionError(f"weights: {names} cannot {what}; leave the option out")
    if mode is WeightMode.MAPPED and not any(isinstance(d, SupportsHostImport) for d in devices):
        raise OptionError(
            f"weights: {names} cannot use the file where it is mapped; leave the option out"
        )


def _spec(tensor: GGUFTensor) -> Tensor:
    return leaf(tensor.name, tensor.ne[: tensor.rank][::-1], tensor.dtype)


def _map(
    file: GGUFFile,
    group: _Group,
    placed: dict[str, Tensor],
    buffers: list[Buffer | MultiBuffer],
    report: _Report,
) -> None:
    """Use the file's memory; tensors that do not lie as the device needs them are copied."""
    device = group.device
    assert isinstance(device, SupportsHostImport)
    largest = max(t.nbytes for t in group.tensors)
    buffer = device.import_host(file.memory, largest_tensor=largest)
    buffer.usage = tp.WEIGHTS
    buffers.append(buffer)
    crooked = [t for t in group.tensors if t.offset % buffer.type.alignment]
    for tensor in group.tensors:
        if tensor not in crooked:
            placed[tensor.name] = place_in(_spec(tensor), buffer, tensor.offset)
    if crooked:
        copied = _Group(device, device.buffer_type, crooked)
        _copy(file, copied, placed, buffers, report)


def _copy(
    file: GGUFFile,
    group: _Group,
    placed: dict[str, Tensor],
    buffers: list[Buffer | MultiBuffer],
    report: _Report,
) -> None:
    specs = [_spec(t) for t in group.tensors]
    with_memory, buffer = allocate(specs, group.memory, usage=tp.WEIGHTS)
    buffers.append(buffer)
    for entry, tensor in zip(group.tensors, with_memory, strict=True):
        home = tensor.storage
        assert home is not None
        if group.memory.layout is Layout.PACKED:
            _write_in_slabs(file, entry, home, report)
        else:
            home.buffer.write_tensor(tensor, home.offset, file.tensor_bytes(entry.name).data)
            report.add(entry.nbytes)
        placed[entry.name] = tensor
    # Small tensors leave the pages in memory that they lie in, and those beside them.
    file.release(0, file.memory.size)


def _write_in_slabs(file: GGUFFile, entry: GGUFTensor, home: Storage, report: _Report) -> None:
    """Write a matrix some rows at a time, so that the file and its copy are not both in memory."""
    data = file.tensor_bytes(entry.name).data
    width, rows = entry.ne[0], entry.ne[1]
    size = entry.dtype.row_size(width)
    step = max(SLAB // size // SLAB_ROWS, 1) * SLAB_ROWS
    for first in range(0, rows, step):
        count = min(step, rows - first)
        start, stop = first * size, (first + count) * size
        file.check_size()
        slab = leaf(entry.name, (count, width), entry.dtype)
        home.buffer.write_tensor(slab, home.offset + start, data[start:stop])
        file.release(entry.offset + start, stop - start)
        report.add(stop - start)
