"""ggml's function names for `get_proc_address`, mapped to the `Supports*` protocols."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tensorplug.device.abilities import (
    SupportsAbort,
    SupportsNuma,
    SupportsReference,
    SupportsThreadPool,
    SupportsThreads,
    has_ability,
)
from tensorplug.device.device import Device
from tensorplug.errors import OptionError

logger = logging.getLogger("tensorplug.registry")

Abort = Callable[[Any], bool] | None
FEATURES = "ggml_backend_get_features"

INSTEAD: Mapping[str, str] = {
    "ggml_backend_split_buffer_type": 'meta.device(devices, "rows", ratio=...).buffer_type',
    "ggml_backend_comm_init": "meta.device(devices), whose streams sum over its devices",
    "ggml_backend_comm_free": "close() of the device that meta.device() made",
    "ggml_backend_comm_allreduce_tensor": (
        "all_reduce(backends, places, node) of a device with SupportsCollectives"
    ),
    "ggml_backend_register_host_buffer": (
        "register_host(array) of a device that has it, or import_host(array)"
    ),
    "ggml_backend_unregister_host_buffer": "close() of what register_host() returned",
}
"""ggml's names without a function here, and what to call instead."""


class Feature(NamedTuple):
    """A build option or detected feature: ggml's `struct ggml_backend_feature`."""

    name: str
    value: str


def features_of(backend: str, features: Callable[[], Mapping[str, str]]) -> Callable[..., Any]:
    """ggml's function `get_features` for the backend called `backend`."""
    return partial(_get_features, backend, features)


def _get_features(
    backend: str, features: Callable[[], Mapping[str, str]], reg: object
) -> list[Feature]:
    asked = getattr(reg, "name", reg)
    if not isinstance(asked, str) or asked.lower() != backend:
        raise OptionError(
            f"{FEATURES}: {reg!r} is not {backend}, whose function this is; give {backend!r} or "
            "its Candidate, or call tensorplug.features(name)"
        )
    return [Feature(name, value) for name, value in features().items()]


def _set_n_threads(backend: SupportsThreads, count: int) -> None:
    backend.threads = count


def _set_abort_callback(backend: SupportsAbort, callback: Abort, data: object) -> None:
    backend.abort_callback = None if callback is None else partial(callback, data)


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
"""ggml's name -> the ability that a stream must have, and the function to call with the stream."""


def shared_symbol(symbol: str, devices: Sequence[Device]) -> Callable[..., Any] | None:
    """Return the function that ggml calls `symbol`, if the devices have the ability it needs.

    The function takes ggml's arguments. For a name in INSTEAD the result is None, and a warning in
    the log says what to call.
    """
    if symbol == "ggml_backend_dev_get_extra_bufts":
        return lambda device: list(device.extra_buffer_types)
    numa = next((device for device in devices if isinstance(device, SupportsNuma)), None)
    if numa is not None and symbol == "ggml_backend_cpu_numa_init":
        return numa.init_numa
    if numa is not None and symbol == "ggml_backend_cpu_is_numa":
        return lambda: numa.is_numa
    if symbol in INSTEAD:
        logger.warning("get_proc_address: no function %s; call %s", symbol, INSTEAD[symbol])
    if symbol not in OF_BACKENDS:
        return None
    ability, function = OF_BACKENDS[symbol]
    able = any(has_ability(device.backend_class, ability) for device in devices)
    return function if able else None
