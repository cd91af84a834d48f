"""`Limit`: a time limit for calls of devices."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from tensorplug.device.device import Device
from tensorplug.errors import DeviceHung

T = TypeVar("T")
Job = tuple[Callable[[], Any], "Future[Any]"]


class Worker:
    """A thread that makes calls for another thread, which may give up waiting for one."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._held: list[object] = []
        threading.Thread(target=self._work, name="tensorplug call", daemon=True).start()

    def put(self, call: Callable[[], T]) -> "Future[T]":
        """Make a call after those before it."""
        future: Future[T] = Future()
        self._jobs.put((call, future))
        return future

    def hold(self, things: list[object]) -> None:
        """Keep what the call in progress may still use until it returns, and take no more."""
        self._held.extend(things)
        self._jobs.put(None)

    def close(self) -> None:
        """Take no more calls."""
        self._jobs.put(None)

    def _work(self) -> None:
        while self._step():
            pass
        self._held.clear()

    def _step(self) -> bool:
        # A frame of its own: a thread that waits must not keep alive what its last call used.
        job = self._jobs.get()
        if job is None:
            return False
        call, future = job
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was wanted
            future.set_exception(error)
        return True


class Limit:
    """Makes calls, each in another thread if there is a limit; None waits as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.stuck: list[Worker] = []
        """Threads that were left behind and hold nothing yet."""
        self._worker: Worker | None = None

    def call(self, what: Callable[[], T], device: Device) -> T:
        """Return what the call returns. Raises DeviceHung, and what the call raises."""
        if self.seconds is None:
            return what()
        worker = self._worker = self._worker or Worker()
        future = worker.put(what)
        try:
            return future.result(self.seconds)
        except TimeoutError:
            if future.done():
                return future.result()
        self._worker = None
        self.stuck.append(worker)
        error = DeviceHung(
            f"{device.name}: hangs: no answer within {self.seconds:g} s; it gets no more calls; "
            "the memory it may still use stays reserved"
        )
        error.devices = (device,)
        raise error

    def hold(self, things: list[object]) -> None:
        """Keep `things` until all calls that hang have returned."""
        for worker in self.stuck:
            worker.hold(things)
        self.stuck = []

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
