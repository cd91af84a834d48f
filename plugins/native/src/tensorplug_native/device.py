"""`NativeDevice`: the processor and the host's memory, with compiled kernels."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tensorplug.device import (
    Array,
    Backend,
    BufferType,
    Group,
    Option,
    OptionError,
    Refusal,
    Rounding,
    Tensor,
)
from tensorplug.dtypes import DType
from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.memory import ExpandedBufferType
from tensorplug_cpu.threads import available_cores
from tensorplug_native import panels, rows
from tensorplug_native.backend import NativeBackend
from tensorplug_native.fusions import PATTERNS, refusal
from tensorplug_native.layouts import packs
from tensorplug_native.library import AUTO, library
from tensorplug_native.panels import PanelBufferType
from tensorplug_native.pool import parse_processors
from tensorplug_native.rules import READABLE
from tensorplug_native.rules.products import INT8_LEVELS, rounding

VARIABLE = "TENSORPLUG_NATIVE_ACTIVATIONS"
"""The option `activations` of streams that are opened without it."""
ACTIVATIONS = ("int8", "f32")


class UnreadBufferType(ExpandedBufferType):
    """Weights expanded to f32, only of types that the kernels cannot read as they are."""

    def supports(self, tensor: Tensor) -> bool:
        return tensor.dtype not in READABLE and super().supports(tensor)


class NativeDevice(CPUDevice):
    """The device of tensorplug-cpu with its memory and kernels, and faster ones for many ops."""

    backend_class: type[CPUBackend] = NativeBackend
    options: ClassVar[tuple[Option, ...]] = (
        *CPUDevice.options,
        Option(
            *("level", str, AUTO),
            "instruction set of the kernels: baseline; avx2, avx512, avx512_bf16, amx; neon, "
            "neon_dot",
        ),
        Option(
            *("affinity", str, ""),
            "processors that the threads stay on, such as 0,2 or 4-7; empty for any",
        ),
        Option(
            *("activations", str, AUTO, "what products may round x to where that is faster"),
            (AUTO, *ACTIVATIONS),
        ),
    )

    fusions = PATTERNS

    def __init__(self, name: str = "cpu:0") -> None:
        super().__init__(name)
        self.expanded = UnreadBufferType(self, self._workers)
        self.panels = PanelBufferType(self, self._workers, _packed_by_default)

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return (*super().extra_buffer_types, self.panels)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self.panels or super().supports_buffer_type(buffer_type)

    def rounding(self, node: Tensor) -> Rounding:
        return rounding(node, library().level(AUTO).name, _activations(AUTO))

    def encode_rows(
        self, dtype: DType, values: Array, out: Array, importance: Array | None = None
    ) -> None:
        rows.encode_rows(library().level(AUTO), dtype, values, out, importance)

    def _open(self, options: dict[str, Any]) -> Backend:
        threads = options["threads"]
        if threads < 0:
            raise OptionError(
                f"{self.name}: option threads={threads} is negative; use 0 for all cores"
            )
        level = library().level(options["level"])
        activations = _activations(options["activations"])
        processors = parse_processors(options["affinity"])
        count = threads or available_cores()
        return NativeBackend(self, count, level, activations, processors)

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        reason = panels.refusal(node, source_types)
        return Refusal(reason) if reason else super()._refuses(node, source_types)

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        return refusal(group)


def _packed_by_default(weights: Tensor) -> bool:
    """Whether streams opened without options read `weights` faster in panels."""
    level = library().level(AUTO).name
    rounds = _activations(AUTO) == "int8" and level in INT8_LEVELS
    return rounds and packs(level, weights.dtype, weights.ne[0])


def _activations(wanted: str) -> str:
    chosen = os.environ.get(VARIABLE) or ACTIVATIONS[0] if wanted == AUTO else wanted
    if chosen not in ACTIVATIONS:
        raise OptionError(
            f"tensorplug-native: {VARIABLE}={chosen}; choose from {', '.join(ACTIVATIONS)}"
        )
    return chosen
