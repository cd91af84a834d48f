"""Traces of work for Xcode."""

from pathlib import Path
from types import TracebackType
from typing import Any

import Foundation
import Metal

from tensorplug.device import Unsupported
from tensorplug_metal.errors import words


class Capture:
    """Inside `with`, what a command queue is given is written to a `.gputrace`."""

    def __init__(self, queue: Any, path: str) -> None:
        self._manager = Metal.MTLCaptureManager.sharedCaptureManager()
        self._path = str(Path(path).absolute())
        document = Metal.MTLCaptureDestinationGPUTraceDocument
        if not self._manager.supportsDestination_(document):
            raise Unsupported(
                "Metal captures nothing here; set METAL_CAPTURE_ENABLED=1 before Python starts"
            )
        if Path(self._path).exists():
            raise Unsupported(f"{path}: exists, and Metal overwrites no trace; remove it")
        self._wanted = Metal.MTLCaptureDescriptor.alloc().init()
        self._wanted.setCaptureObject_(queue)
        self._wanted.setDestination_(document)
        self._wanted.setOutputURL_(Foundation.NSURL.fileURLWithPath_(self._path))

    def __enter__(self) -> "Capture":
        begun, error = self._manager.startCaptureWithDescriptor_error_(self._wanted, None)
        if not begun:
            raise Unsupported(f"{self._path}: cannot be captured: {words(error)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._manager.stopCapture()
