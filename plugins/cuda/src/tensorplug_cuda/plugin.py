"""The entry point. Looks for CuPy and a driver without importing the one or starting the other."""

from collections.abc import Mapping, Sequence

import tensorplug
from tensorplug.device import Device, Refusal

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score() -> int | Refusal:
    """Works where CuPy is installed, a driver that it can use, and a GPU."""
    from tensorplug_cuda import drivers

    reason = drivers.missing()
    return Refusal(reason) if reason else 1


@tensorplug.hookimpl
def tensorplug_devices() -> Sequence[Device]:
    """Every GPU that a few bytes can be allocated on."""
    from tensorplug_cuda.enumeration import devices

    return devices()


@tensorplug.hookimpl
def tensorplug_features() -> Mapping[str, str]:
    """Versions of CuPy, of CUDA and of the driver, and what each GPU is."""
    from tensorplug_cuda.enumeration import features

    return features()


@tensorplug.hookimpl
def tensorplug_extension(name: str) -> object | None:
    """`ggml_backend_split_buffer_type`: memory for rows of matrices over several GPUs."""
    from tensorplug_cuda import splitting

    return splitting.split_buffer_type if name == splitting.SYMBOL else None
