"""The entry point: what core asks before anything is used. Imports no kernels."""

from collections.abc import Mapping, Sequence

import numpy as np

import tensorplug
from tensorplug.device import Device

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int:
    """Works wherever NumPy works; a compiled variant of this backend scores higher."""
    return 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """One device: all cores of the process."""
    from tensorplug_cpu.device import CPUDevice  # kernels load on first use

    return [CPUDevice("cpu:0")]


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """The NumPy in use, its BLAS, and the vector instructions it found."""
    config = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    found = config.get("SIMD Extensions", {}).get("found", [])
    return {
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "simd": " ".join(found),
    }
