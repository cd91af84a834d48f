"""The registry of backends: finds installed plugins, loads them, and opens their devices.

Functions with the names of methods of `Registry` use the registry of the process.
"""

from tensorplug.registry.registry import (
    SELECTORS,
    Registry,
    get_proc_address,
    hardware,
    init_backend_from_str,
    observe,
    open_best,
    open_by_type,
    register,
    register_device,
    replace_device,
)

__all__ = [
    "SELECTORS",
    "Registry",
    "get_proc_address",
    "hardware",
    "init_backend_from_str",
    "observe",
    "open_best",
    "open_by_type",
    "register",
    "register_device",
    "replace_device",
]
