"""Runs tensor graphs on all the hardware a machine has, through separately installed backends."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorplug import ops
from tensorplug.device import transfer
from tensorplug.device.backend import (
    Backend,
    Event,
    Plan,
    SupportsAbort,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsCollectives,
    SupportsEvents,
    SupportsOptimize,
    SupportsProfiling,
    SupportsReference,
    SupportsThreadPool,
    SupportsThreads,
)
from tensorplug.device.buffer import Buffer, BufferType, BufferUsage, HostBuffer, MultiBuffer
from tensorplug.device.device import (
    Capabilities,
    Device,
    DeviceInfo,
    DeviceType,
    Memory,
    Option,
    SupportsFusion,
    SupportsHostImport,
    SupportsNuma,
)
from tensorplug.device.observing import MAKERS
from tensorplug.device.part import Part
from tensorplug.dtypes import (
    BF16,
    DTYPES,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Q8_1,
    Q8_K,
    TQ1_0,
    TQ2_0,
    DType,
    dtype,
)
from tensorplug.errors import (
    Aborted,
    BackendNotFound,
    BackendUnavailable,
    BufferTooLarge,
    Closed,
    ConcurrentUse,
    DeviceError,
    DeviceHung,
    DeviceLost,
    DTypeError,
    FormatError,
    GraphError,
    HazardError,
    LiveChildren,
    NotAllocated,
    OptionError,
    OutOfMemory,
    Refusal,
    RunFailed,
    RunState,
    SchedulerBusy,
    ShapeError,
    StaleResult,
    StateError,
    TensorplugError,
    Unsupported,
    map_driver_errors,
)
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Flags, Place, Tensor, input
from tensorplug.ops import *  # noqa: F403 - every op; the list is tensorplug.ops.__all__
from tensorplug.registry.registry import (
    Registry,
    backends,
    device,
    devices,
    devices_of,
    features,
    get_proc_address,
    hardware,
    init_backend_from_str,
    load,
    load_all,
    load_all_from_path,
    observe,
    open,
    open_best,
    open_by_type,
    refresh,
    register,
    register_device,
    unload,
)

if TYPE_CHECKING:
    from tensorplug.inspect.trace import Trace
    from tensorplug.registry.candidate import Candidate, State
    from tensorplug.registry.hooks import hookimpl
    from tensorplug.registry.report import Report
    from tensorplug.running import (
        Explanation,
        InFlight,
        Observer,
        Results,
        Schedule,
        Scheduler,
    )

_LATER = {
    "Candidate": "tensorplug.registry.candidate",
    "State": "tensorplug.registry.candidate",
    "Report": "tensorplug.registry.report",
    "hookimpl": "tensorplug.registry.hooks",
    "Explanation": "tensorplug.running",
    "InFlight": "tensorplug.running",
    "Observer": "tensorplug.running",
    "Results": "tensorplug.running",
    "Schedule": "tensorplug.running",
    "Scheduler": "tensorplug.running",
    "Trace": "tensorplug.inspect.trace",
}
"""Names that are imported at their first use, so that `import tensorplug` stays fast."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'tensorplug' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


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
    "DTYPES",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "Q8_1",
    "Q8_K",
    "TQ1_0",
    "TQ2_0",
    "WEIGHTS",
    "Aborted",
    "Backend",
    "BackendNotFound",
    "BackendUnavailable",
    "Bindings",
    "Buffer",
    "BufferTooLarge",
    "BufferType",
    "BufferUsage",
    "Candidate",
    "Capabilities",
    "Closed",
    "ConcurrentUse",
    "DType",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceHung",
    "DeviceInfo",
    "DeviceLost",
    "DeviceType",
    "Event",
    "Explanation",
    "Flags",
    "FormatError",
    "Graph",
    "GraphError",
    "HazardError",
    "HostBuffer",
    "InFlight",
    "LiveChildren",
    "Memory",
    "MultiBuffer",
    "NotAllocated",
    "Observer",
    "Option",
    "OptionError",
    "OutOfMemory",
    "Part",
    "Place",
    "Plan",
    "Refusal",
    "Registry",
    "Report",
    "Results",
    "RunFailed",
    "RunState",
    "Schedule",
    "Scheduler",
    "SchedulerBusy",
    "ShapeError",
    "StaleResult",
    "State",
    "StateError",
    "SupportsAbort",
    "SupportsAsyncCopy",
    "SupportsAsyncTransfer",
    "SupportsCollectives",
    "SupportsEvents",
    "SupportsFusion",
    "SupportsHostImport",
    "SupportsNuma",
    "SupportsOptimize",
    "SupportsProfiling",
    "SupportsReference",
    "SupportsThreadPool",
    "SupportsThreads",
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
    "get_proc_address",
    "hardware",
    "hookimpl",
    "init_backend_from_str",
    "input",
    "load",
    "load_all",
    "load_all_from_path",
    "map_driver_errors",
    "observe",
    "open",
    "open_best",
    "open_by_type",
    "refresh",
    "register",
    "register_device",
    "transfer",
    "unload",
]
__all__ += ops.__all__
