"""Runs tensor graphs on all the hardware a machine has, through separately installed backends."""

import builtins
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorplug import ops
from tensorplug.device import transfer
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import Buffer, BufferUsage
from tensorplug.device.device import Device, DeviceType
from tensorplug.device.importing import from_dlpack
from tensorplug.device.observing import MAKERS
from tensorplug.device.part import Part
from tensorplug.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_K,
    Q6_K,
    Q8_0,
    DType,
    dtype,
)
from tensorplug.errors import (
    BackendNotFound,
    BackendUnavailable,
    DeviceError,
    DeviceLost,
    DTypeError,
    FormatError,
    GraphError,
    OptionError,
    OutOfMemory,
    Refusal,
    ShapeError,
    TensorplugError,
    Unsupported,
)
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.graph.tensor import input as input
from tensorplug.ops import *  # noqa: F403 - every op; the list is tensorplug.ops.__all__

if TYPE_CHECKING:
    from tensorplug.inspect.trace import Trace
    from tensorplug.registry.hooks import hookimpl
    from tensorplug.registry.registry import (
        Registry,
        backends,
        devices,
        devices_of,
        features,
        load,
        load_all,
        load_all_from_path,
        refresh,
        unload,
    )
    from tensorplug.registry.registry import open as open
    from tensorplug.running import Explanation, Results, Schedule, Scheduler

_REGISTRY = "tensorplug.registry.registry"
_LATER = {
    "Registry": _REGISTRY,
    "backends": _REGISTRY,
    "devices": _REGISTRY,
    "devices_of": _REGISTRY,
    "features": _REGISTRY,
    "hookimpl": "tensorplug.registry.hooks",
    "load": _REGISTRY,
    "load_all": _REGISTRY,
    "load_all_from_path": _REGISTRY,
    "open": _REGISTRY,
    "refresh": _REGISTRY,
    "unload": _REGISTRY,
    "Results": "tensorplug.running",
    "Schedule": "tensorplug.running",
    "Scheduler": "tensorplug.running",
    "Trace": "tensorplug.inspect.trace",
}
"""Names that are imported at their first use, so that `import tensorplug` stays fast."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        text = f"module 'tensorplug' has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python suggests a name
    return getattr(import_module(_LATER[name]), name)


def device(spec: str) -> Device:
    """The device that `spec` names: `Registry.device` of the process.

    A function and not a name imported later, because the package `tensorplug.device` has its name.

    >>> tp.device("cpu:0").type.value
    'cpu'
    """
    return import_module(_REGISTRY).device(spec)  # type: ignore[no-any-return]


def _trace(path: str) -> "Trace":
    return import_module("tensorplug.inspect.trace").of_process(path)  # type: ignore[no-any-return]


def _sanitizer(*streams: Backend) -> Any:
    return import_module("tensorplug.inspect.sanitizer").Sanitizer(*streams)


def _page(explanation: "Explanation", title: str) -> str:
    return import_module("tensorplug.inspect.page").page(explanation, title)  # type: ignore[no-any-return]


# Schedulers know what observes them by these makers only: their room is above `inspect`.
MAKERS.process_trace, MAKERS.sanitizer, MAKERS.page = _trace, _sanitizer, _page

ANY = BufferUsage.ANY
WEIGHTS = BufferUsage.WEIGHTS
COMPUTE = BufferUsage.COMPUTE

__all__ = [
    "ANY",
    "BF16",
    "COMPUTE",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "Q4_0",
    "Q4_K",
    "Q6_K",
    "Q8_0",
    "WEIGHTS",
    "Backend",
    "BackendNotFound",
    "BackendUnavailable",
    "Bindings",
    "Buffer",
    "DType",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceLost",
    "DeviceType",
    "FormatError",
    "Graph",
    "GraphError",
    "OptionError",
    "OutOfMemory",
    "Part",
    "Place",
    "Refusal",
    "Registry",
    "Results",
    "Schedule",
    "Scheduler",
    "ShapeError",
    "Tensor",
    "TensorplugError",
    "Trace",
    "Unsupported",
    "backends",
    "device",
    "devices",
    "devices_of",
    "dtype",
    "features",
    "from_dlpack",
    "hookimpl",
    "load",
    "load_all",
    "load_all_from_path",
    "refresh",
    "transfer",
    "unload",
]
# `from tensorplug import *` replaces no builtin: `input`, `open`, `sum` and others need `tp.`.
__all__ += [name for name in ops.__all__ if not hasattr(builtins, name)]
