"""Names that ggml's backends share, for code that asks `get_proc_address`; ours are protocols."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorplug.backend import (
    SupportsAbort,
    SupportsReference,
    SupportsThreadPool,
    SupportsThreads,
)
from tensorplug.device import Device, SupportsNuma, has_ability

Abort = Callable[[], bool] | None


def _set_n_threads(backend: SupportsThreads, count: int) -> None:
    backend.threads = count


def _set_abort_callback(backend: SupportsAbort, callback: Abort) -> None:
    backend.abort_callback = callback


def _set_use_ref(backend: SupportsReference, use: bool) -> None:  # noqa: FBT001 - ggml's signature
    backend.use_reference = use


def _set_threadpool(backend: SupportsThreadPool, pool: object | None) -> None:
    backend.set_thread_pool(pool)


OF_BACKENDS: Mapping[str, tuple[type, Callable[..., Any]]] = {
    "ggml_backend_set_n_threads": (SupportsThreads, _set_n_threads),
    "ggml_backend_set_abort_callback": (SupportsAbort, _set_abort_callback),
    "ggml_backend_cpu_set_use_ref": (SupportsReference, _set_use_ref),
    "ggml_backend_cpu_set_threadpool": (SupportsThreadPool, _set_threadpool),
}
"""By name: the ability that the streams must have, and what to call with a stream."""


def shared_symbol(symbol: str, devices: Sequence[Device]) -> Callable[..., Any] | None:
    """The function called `symbol`, if the devices have the ability it stands for."""
    if symbol == "ggml_backend_dev_get_extra_bufts":
        return lambda device: list(device.extra_buffer_types)
    numa = next((device for device in devices if isinstance(device, SupportsNuma)), None)
    if numa is not None and symbol == "ggml_backend_cpu_numa_init":
        return numa.init_numa
    if numa is not None and symbol == "ggml_backend_cpu_is_numa":
        return lambda: numa.is_numa
    if symbol not in OF_BACKENDS:
        return None
    ability, function = OF_BACKENDS[symbol]
    able = any(has_ability(device.backend_class, ability) for device in devices)
    return function if able else None
