"""Weights of a model: the tensors that its architecture needs, and where their table lies twice."""

from collections.abc import Iterable, Sequence

import tensorplug as tp
from tensorplug import Device
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor, ModelFile, Weights, load_weights
from tensorplug_llm.arch import Expected

TABLE = "token_embd.weight"
"""The embedding table."""
OUTPUT = "output.weight"
"""The matrix that gives logits."""


def check_tensors(file: ModelFile, expected: Iterable[Expected]) -> list[FileTensor]:
    """The tensors of the file that the model needs. Raises FormatError for the first wrong one."""
    wanted = {e.name: e for e in expected}
    for name, entry in wanted.items():
        found, called = file.tensors.get(name), file.called(name)
        if found is None:
            if not entry.optional:
                raise FormatError(
                    f"{file.path}: tensor {called!r} {_sizes(entry.ne)} is missing; the model is "
                    "incomplete: fetch the file again"
                )
        elif found.ne[: found.rank] != entry.ne:
            raise FormatError(
                f"{file.path}: tensor {called!r} is {_sizes(found.ne[: found.rank])}, and "
                f"{_sizes(entry.ne)} was expected; its metadata and its tensors contradict each "
                "other: fetch or convert the model again"
            )
        elif not entry.is_matrix and found.dtype is not tp.F32:
            raise FormatError(
                f"{file.path}: tensor {called!r} is {found.dtype.name}, and vectors must be f32; "
                "convert the model again"
            )
        elif found.dtype.is_integer or found.dtype is tp.F64:
            raise FormatError(
                f"{file.path}: tensor {called!r} is {found.dtype.name}, which no device multiplies "
                "with; convert the model to f16 or a block type"
            )
    for name in file.tensors:
        if name not in wanted:
            raise FormatError(
                f"{file.path}: tensor {file.called(name)!r} has no place in this architecture, and "
                "leaving it out would give wrong answers; use a newer tensorplug-llm"
            )
    return [file.tensors[name] for name in wanted if name in file.tensors]


def _sizes(ne: Sequence[int]) -> str:
    return " x ".join(map(str, ne))


def add_output(file: ModelFile, weights: Weights, device: Device) -> None:
    """Place the embedding table once more, on `device`, as the output matrix."""
    table = load_weights(file, {TABLE: device})
    weights.adopt(table, {TABLE: OUTPUT})
