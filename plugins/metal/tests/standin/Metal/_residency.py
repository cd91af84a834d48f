"""Residency sets: memory that stays where the GPU reaches it."""

from typing import Any

from Metal._machine import Gpu, need


class MTLResidencySetDescriptor:
    """MTLResidencySetDescriptor."""

    @classmethod
    def alloc(cls) -> "MTLResidencySetDescriptor":
        return cls.__new__(cls)

    def init(self) -> "MTLResidencySetDescriptor":
        self.label, self.capacity = "", 0
        return self

    def setLabel_(self, label: str) -> None:
        self.label = label

    def setInitialCapacity_(self, capacity: int) -> None:
        self.capacity = capacity


class ResidencySet:
    """MTLResidencySet: what is added or removed counts from the next commit on."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.wanted: list[Any] = []
        self.resident: list[Any] = []
        self.requests = 0

    def addAllocation_(self, buffer: Any) -> None:
        need(buffer.gpu is self.gpu, "a buffer of another device")
        self.wanted.append(buffer)

    def removeAllocation_(self, buffer: Any) -> None:
        need(buffer in self.wanted, "a buffer that was never added")
        self.wanted.remove(buffer)

    def commit(self) -> None:
        self.resident = list(self.wanted)

    def requestResidency(self) -> None:
        self.requests += 1

    def endResidency(self) -> None:
        self.requests -= 1
