"""The rows of one tensor in another type, by several threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import numpy as np

import tensorplug
from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import DType
from tensorplug.errors import BackendNotFound, FormatError
from tensorplug.gguf import ModelFile
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.quantize.choice import Choice

Encode = Callable[[DType, Array, Array, Array | None], None]
"""`encode_rows` of a device."""

SLAB = 1 << 18
"""Elements that one thread takes at a time."""
MOST_F16 = 65504.0
"""The largest number that f16 holds."""


def installed_encoder() -> Encode:
    """The encoder of the device `cpu`; a faster variant of this backend may have its own."""
    try:
        device = tensorplug.device("cpu")
    except BackendNotFound:  # ruled out by a variable
        return encode_rows
    return device.encode_rows if isinstance(device, CPUDevice) else encode_rows


def converted(
    file: ModelFile,
    choice: Choice,
    importance: Array | None,
    encode: Encode,
    pool: Executor,
    done: Callable[[int], None],
) -> tuple[Array, int]:
    """The bytes of a tensor in its new type, uint8, and how many values are not finite in it.

    `done` hears of elements as they are encoded.

    `importance` is f32 [matrices, columns]; one matrix stands for all. Raises FormatError for
    importance of other sizes, and for values that are not finite.
    """
    tensor = choice.tensor
    if choice.dtype is tensor.dtype:
        raw = file.read_tensor(tensor.name)
        done(int(np.prod(tensor.ne)))
        return raw, 0
    columns, rows, *matrices = tensor.ne
    _check_importance(choice, importance)
    stored = tensor.dtype.row_size(columns)
    out = np.empty((rows * matrices[0] * matrices[1], choice.row_size), np.uint8)

    def convert(part: slice) -> tuple[int, int]:
        count = part.stop - part.start
        # Read, not mapped: if the file is shortened meanwhile, a read fails; a mapping would crash.
        raw = file.read_tensor(tensor.name, part.start * stored, count * stored)
        values = np.empty((count, columns), np.float32)
        decode_rows(tensor.dtype, raw.reshape(count, stored), values)
        if not np.isfinite(values).all():
            raise FormatError(
                f"{file.path}: tensor {tensor.name!r} holds values that are infinite or not a "
                "number; convert the model again"
            )
        weights = None
        if importance is not None:
            weights = importance[part.start // rows % len(importance)]
        with np.errstate(over="ignore"):  # what f16 cannot hold becomes infinite
            encode(choice.dtype, values, out[part], weights)
        return int(values.size), _not_finite(choice.dtype, values, out[part])

    lost = 0
    for count, more in pool.map(convert, _parts(columns, rows, matrices[0] * matrices[1])):
        done(count)
        lost += more
    return out, lost


def _not_finite(dtype: DType, values: Array, encoded: Array) -> int:
    """How many finite `values` are infinite or not a number when they are decoded again."""
    if np.abs(values).max(initial=0.0) <= MOST_F16:
        return 0  # no scale in f16 can be infinite
    decoded = np.empty_like(values)
    with np.errstate(all="ignore"):
        decode_rows(dtype, encoded, decoded)
    return int(np.count_nonzero(~np.isfinite(decoded)))


def _check_importance(choice: Choice, importance: Array | None) -> None:
    ne = choice.tensor.ne
    if importance is None or importance.shape in ((1, ne[0]), (ne[2], ne[0])):
        return
    raise FormatError(
        f"quantize: importance of {importance.shape[0]} x {importance.shape[1]} values for "
        f"{ne[2]} matrices with {ne[0]} columns, tensor {choice.tensor.name!r}; it is of another "
        "model"
    )


def _parts(columns: int, rows: int, matrices: int) -> Iterator[slice]:
    """Rows of one matrix each, about `SLAB` elements."""
    high = max(1, SLAB // columns)
    for first in range(0, rows * matrices, rows):
        for row in range(first, first + rows, high):
            yield slice(row, min(row + high, first + rows))
