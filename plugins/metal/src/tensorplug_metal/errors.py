"""What Metal's errors are here."""

from typing import Any

import Metal

from tensorplug.device import DeviceError, DeviceLost, OutOfMemory, TensorplugError

KINDS: dict[int, type[TensorplugError]] = {4: DeviceLost, 8: OutOfMemory, 11: DeviceLost}
"""By the code of a command buffer's error: access revoked, out of memory, device removed."""


def made(answer: "tuple[Any, Any]", doing: str) -> Any:
    """The object of an answer of an object and an error. Raises DeviceError."""
    thing, error = answer
    if thing is None:
        raise DeviceError(f"{doing}: {words(error)}")
    return thing


def given(thing: Any, doing: str) -> Any:
    """An object that Metal makes where it has memory for it. Raises OutOfMemory."""
    if thing is None:
        raise OutOfMemory(f"{doing}: Metal has no memory for it")
    return thing


def failure(commands: Any, doing: str) -> TensorplugError | None:
    """What went wrong with a command buffer that is done; None where nothing did."""
    if commands.status() != Metal.MTLCommandBufferStatusError:
        return None
    error = commands.error()
    code = error.code() if error is not None else 0
    return KINDS.get(code, DeviceError)(f"{doing}: {words(error)}")


def words(error: Any) -> str:
    """An error as people read it."""
    return str(error.localizedDescription()) if error is not None else "Metal does not say why"
