"""The new file: metadata as it was, without empty lists, then tensor after tensor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tensorplug.device import Array, TensorplugError
from tensorplug.dtypes import DType
from tensorplug.errors import FormatError
from tensorplug.gguf import GGUFFile, ModelFile
from tensorplug.system.wholefile import whole_file
from tensorplug_cpu.quantize.choice import Choice
from tensorplug_cpu.quantize.rows import converted, installed_encoder

COUNTS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
"""What the package `gguf` gives as metadata and a file has before these."""
REPLACED = frozenset(
    {"general.architecture", "general.alignment", "general.file_type"}
    | {"general.quantization_version"}
)


def write(
    file: ModelFile,
    target: Path,
    dtype: DType,
    choices: Sequence[Choice],
    importance: Mapping[str, Array],
    *,
    threads: int,
    strict: bool,
    done: Callable[[Choice, int], None],
) -> dict[str, int]:
    """Write `target` with the tensors of `file` in the types of `choices`.

    `done` hears how many elements of a tensor were encoded. A file that fails half-way leaves
    nothing behind, and a file that was there before stays. Returns how many values are not finite
    any more, by the names of their tensors; with `strict` they are an error. Raises FormatError,
    TensorplugError.
    """
    _check_known(choices)
    encode = installed_encoder()
    lost: dict[str, int] = {}
    with _temporary(target) as place, ThreadPoolExecutor(threads) as pool:
        architecture = _architecture(file)
        writer = gguf.GGUFWriter(place, architecture)
        try:
            if not architecture:  # which the package leaves out
                writer.add_key_value("general.architecture", "", gguf.GGUFValueType.STRING)
            _describe(writer, file, dtype)
            for choice in choices:
                _announce(writer, choice)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for choice in choices:
                weights = importance.get(choice.tensor.name)

                def count(elements: int, choice: Choice = choice) -> None:
                    done(choice, elements)

                data, not_finite = converted(file, choice, weights, encode, pool, count)
                if not_finite:
                    lost[choice.tensor.name] = not_finite
                    if strict:
                        raise TensorplugError(f"quantize: {loss_of(choice, not_finite)}")
                writer.write_tensor_data(data)
        finally:
            writer.close()
    return lost


def _architecture(file: ModelFile) -> str:
    name: str = file.require("general.architecture", str)
    if not name.isprintable():
        raise FormatError(f"{file.path}: general.architecture is {name!r}; convert the model again")
    return name


def empty_lists(file: ModelFile) -> list[str]:
    """The keys of a GGUF file that `write` leaves out, since the package cannot write them."""
    values = file.metadata.items() if isinstance(file, GGUFFile) else ()
    return [key for key, value in values if isinstance(value, list | np.ndarray) and not len(value)]


def _check_known(choices: Sequence[Choice]) -> None:
    """Raise TensorplugError for a type that is newer than the package that writes files."""
    known = {int(kind) for kind in gguf.GGMLQuantizationType}
    for choice in choices:
        if choice.dtype.id not in known:
            raise TensorplugError(
                f"quantize: the installed package gguf does not know the type {choice.dtype.name}; "
                "pip install --upgrade gguf"
            )


def loss_of(choice: Choice, lost: int) -> str:
    """What is wrong with a tensor of which `lost` values are not finite any more."""
    values = "1 value is" if lost == 1 else f"{lost} values are"
    return (
        f"tensor {choice.tensor.name!r}: {values} infinite or not a number in {choice.dtype.name}: "
        "they need scales beyond 65504, the largest number of f16; choose bf16 for this model"
    )


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A file that becomes `target` when all went well."""
    try:
        with whole_file(target) as place:
            yield place
    except OSError as error:
        raise TensorplugError(f"quantize: cannot write {target}: {error}") from error


def _describe(writer: gguf.GGUFWriter, file: ModelFile, dtype: DType) -> None:
    """Copy metadata; say what the file is now."""
    if isinstance(file, GGUFFile):
        _copy_fields(writer, file)
    else:
        _write_values(writer, file)
    writer.add_file_type(file_type(dtype))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _write_values(writer: gguf.GGUFWriter, file: ModelFile) -> None:
    """Write metadata that is in no GGUF file yet, in the types that llama.cpp reads."""
    kinds = gguf.GGUFValueType
    arrays = {"b": kinds.BOOL, "f": kinds.FLOAT32, "i": kinds.INT32}
    scalars = {bool: kinds.BOOL, float: kinds.FLOAT32, int: kinds.UINT32, str: kinds.STRING}
    for key, value in file.metadata.items():
        if key in REPLACED:
            continue
        if isinstance(value, np.ndarray):
            writer.add_key_value(key, value.tolist(), kinds.ARRAY, arrays[value.dtype.kind])
        elif isinstance(value, list):
            if value:  # the package cannot write an empty array
                writer.add_key_value(key, value, kinds.ARRAY, kinds.STRING)
        else:
            writer.add_key_value(key, value, scalars[type(value)])


def _copy_fields(writer: gguf.GGUFWriter, file: GGUFFile) -> None:
    """Copy metadata with the types that it has."""
    try:
        fields = gguf.GGUFReader(file.path).fields
    except (KeyError, ValueError) as error:
        raise FormatError(
            f"{file.path}: the package gguf, which copies metadata, cannot read it: {error}; "
            "convert the model again"
        ) from error
    for key, field in fields.items():
        if key in REPLACED or key in COUNTS:
            continue
        value = _value(field)
        if value != []:  # the package cannot write an empty array
            writer.add_key_value(key, value, field.types[0], field.types[-1])
    if file.alignment != gguf.GGUF_DEFAULT_ALIGNMENT:
        writer.add_custom_alignment(file.alignment)


def _value(field: gguf.ReaderField) -> Any:
    """A value to be written; strings as bytes, for not all are UTF-8."""
    kinds = gguf.GGUFValueType
    if field.types[-1] is not kinds.STRING:
        return field.contents()
    if field.types[0] is kinds.STRING:
        return field.parts[-1].tobytes()
    return [field.parts[place].tobytes() for place in field.data]


def file_type(dtype: DType) -> int:
    """The number that says of which type most weights of a file are."""
    known = gguf.LlamaFileType.__members__
    name = dtype.name.upper()
    for key in (f"ALL_{name}", f"MOSTLY_{name}", f"MOSTLY_{name}_S", f"MOSTLY_{name}_MOE"):
        if key in known:
            return int(known[key])
    return int(gguf.LlamaFileType.GUESSED)


def _announce(writer: gguf.GGUFWriter, choice: Choice) -> None:
    tensor = choice.tensor
    writer.add_tensor_info(
        tensor.name,
        tensor.ne[: tensor.rank][::-1],
        np.dtype(np.float32),  # the shape is in elements
        choice.nbytes,
        gguf.GGMLQuantizationType(choice.dtype.id),
    )


def check_source(file: ModelFile, *, requantize: bool) -> None:
    """Raise FormatError for a part of a model, and for a file that was quantised before."""
    parts = file.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise FormatError(f"{file.path}: is one of {parts} parts of a model; merge them first")
    blocks = sorted({t.dtype.name for t in file.tensors.values() if t.dtype.is_block})
    if blocks and isinstance(file, GGUFFile) and not requantize:
        raise FormatError(
            f"{file.path}: has weights in {', '.join(blocks)}, and to encode them once more loses "
            "twice; start from f32, f16 or bf16, or give --requantize"
        )
