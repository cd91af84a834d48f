"""`ForkTests`: a device that does not work in a forked child raises an error there."""

import os
import warnings
from collections.abc import Callable

import pytest

from tensorplug.device import Backend

USES: dict[str, Callable[[Backend], object]] = {
    "wait": lambda stream: stream.synchronize(),
    "stream": lambda stream: stream.device.open(),
    "memory": lambda stream: stream.device.buffer_type.alloc(64),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
class ForkTests:
    """For a device whose driver does not work in forked children; needs a fixture `stream`."""

    @pytest.mark.parametrize("use", USES.values(), ids=USES)
    def test_use_in_a_forked_child_raises_with_the_remedy(
        self, stream: Backend, use: Callable[[Backend], object]
    ) -> None:
        said = error_in_child(lambda: use(stream))

        assert said.startswith("DeviceError: ")
        assert "start processes by spawn or forkserver" in said


def error_in_child(use: Callable[[], object]) -> str:
    """The type and text of the error that `use` raises in a forked child; empty without an error.

    Raises RuntimeError if the child ends in another way.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns if a process with threads forks
        child = os.fork()
    if child == 0:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - the parent checks it
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the forked child ended with status {status}")
    return said
