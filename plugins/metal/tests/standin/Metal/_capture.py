"""Traces for Xcode."""

from typing import Any

from Foundation import NSURL

from Metal._machine import NSError, machine, need


class MTLCaptureDescriptor:
    """MTLCaptureDescriptor."""

    @classmethod
    def alloc(cls) -> "MTLCaptureDescriptor":
        return cls.__new__(cls)

    def init(self) -> "MTLCaptureDescriptor":
        self.subject: Any = None
        self.destination = 1
        self.url: NSURL | None = None
        return self

    def setCaptureObject_(self, subject: Any) -> None:
        self.subject = subject

    def setDestination_(self, destination: int) -> None:
        self.destination = destination

    def setOutputURL_(self, url: NSURL) -> None:
        need(isinstance(url, NSURL), f"{url!r} is not an NSURL")
        self.url = url


class MTLCaptureManager:
    """MTLCaptureManager."""

    @classmethod
    def sharedCaptureManager(cls) -> "MTLCaptureManager":
        return cls()

    def supportsDestination_(self, destination: int) -> bool:
        return machine.captures.supported

    def startCaptureWithDescriptor_error_(
        self, wanted: MTLCaptureDescriptor, error: None
    ) -> tuple[bool, NSError | None]:
        if machine.captures.running is not None or not machine.captures.supported:
            return False, NSError("MTLCaptureError", 1, "capturing is not supported here")
        need(wanted.url is not None and wanted.subject is not None, "a capture of nothing")
        machine.captures.running = wanted
        return True, None

    def isCapturing(self) -> bool:
        return machine.captures.running is not None

    def stopCapture(self) -> None:
        need(machine.captures.running is not None, "no capture has begun")
        machine.captures.made.append(machine.captures.running)
        machine.captures.running = None
