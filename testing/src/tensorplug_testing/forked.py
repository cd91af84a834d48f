"""What a forked child of a process says about a device that the process uses."""

import os
import warnings
from collections.abc import Callable


def error_in_child(use: Callable[[], object]) -> str:
    """The type and text of the error that `use` raises in a forked child; "" where it raises none.

    Raises RuntimeError where the child ends in another way.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks of processes with threads
        child = os.fork()
    if child == 0:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - the parent judges it
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
