"""The child process of a probe: loads one plugin, lists its devices, and tries each of them.

The child writes each step to the answer file before the step starts, so that the parent knows in
which step a crash or a hang happened.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug.device.device import Device, DeviceInfo
from tensorplug.device.part import Part
from tensorplug.errors import DeviceError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place
from tensorplug.ops import add
from tensorplug.registry import Registry
from tensorplug.registry.candidate import State, describe
from tensorplug.registry.guard import Failure, attempt

Say = Callable[[dict[str, Any]], None]
SIZE = 1 << 20
"""Bytes that the memory check writes and reads back."""


def main() -> None:
    """Probe the candidate that the JSON in `sys.argv[1]` names; write the answer as JSON lines."""
    request = json.loads(sys.argv[1])
    with Path(request["answer"]).open("a", encoding="utf-8") as answer:

        def say(line: dict[str, Any]) -> None:
            answer.write(json.dumps(line) + "\n")
            answer.flush()

        devices, only = list_devices(request["spec"], say), request["device"]
        if request["work"]:
            for device in devices:
                if only in (None, device.name.lower()):
                    try_out(device, say)
        say({"done": True})
    # `_exit`: threads that a plugin left running must not keep the process alive.
    os._exit(0)


def list_devices(spec: str, say: Say) -> tuple[Device, ...]:
    """Load only the candidate `spec`, and write its state and its devices to the answer."""
    registry = Registry()
    say({"step": "it was imported and asked for its score"})
    loaded = attempt(lambda: registry.load(spec))
    say({"step": "it listed its devices"})
    devices = attempt(lambda: registry.devices_of(spec))
    found = () if isinstance(devices, Failure) else devices
    candidate = next(c for c in registry.scan().candidates if c.name and c.spec == spec)
    if candidate.state is State.FOUND:
        why = describe(loaded.error) if isinstance(loaded, Failure) else "nothing says why"
        candidate = candidate.refuse(State.FAILED, f"it cannot be loaded by its name: {why}")
    say({"candidate": candidate.to_json()})
    for device in found:
        say({"step": f"{device.name} told its facts"})
        facts = attempt(partial(facts_of, device))
        if isinstance(facts, Failure):
            say({"check": [device.name, "facts", describe(facts.error)]})
        else:
            say({"device": facts})
    return found


class Trial:
    """The checks of one device, in the order of STEPS."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def open(self) -> None:
        """Open a stream."""
        self.backend = self.device.open()

    def memory(self) -> None:
        """Write a buffer and read it back. Raises DeviceError if the bytes differ."""
        kind = self.device.buffer_type
        pattern = np.arange(min(SIZE, kind.max_size), dtype=np.uint8)
        with kind.alloc(pattern.size) as buffer:
            buffer.write(0, pattern)
            if not np.array_equal(buffer.read(0, pattern.size), pattern):
                raise DeviceError(f"{pattern.size} bytes did not come back as they were written")

    def compute(self) -> None:
        """Add a vector to itself. A device that does not support `add` passes."""
        numbers = np.arange(8, dtype=np.float32)
        x = self.backend.place("x", numbers)
        node = add(x, x)
        assert x.place is not None
        kind = self.backend.buffer_type
        with x.place.buffer, kind.alloc(kind.alloc_size(node)) as buffer:
            if self.device.refuses(node):
                return
            self.backend.compute(Part.of(Graph(node), Bindings({node: Place(buffer, 0)})))
            got = buffer.read(0, node.nbytes).view(np.float32)
            if not np.array_equal(got, numbers + numbers):
                raise DeviceError(f"{numbers} + itself gave {got}")

    def close(self) -> None:
        """Close the stream."""
        self.backend.close()


STEPS = (Trial.open, Trial.memory, Trial.compute, Trial.close)


def try_out(device: Device, say: Say) -> None:
    """Run the checks until one fails."""
    trial = Trial(device)
    for step in STEPS:
        say({"step": f"{device.name} was tried: {step.__name__}"})
        result = attempt(partial(step, trial))
        problem = describe(result.error) if isinstance(result, Failure) else ""
        say({"check": [device.name, step.__name__, problem]})
        if problem:
            return


def facts_of(device: Device) -> dict[str, Any]:
    """The DeviceInfo of a device as a dictionary."""
    return device_json(device.info)


def device_json(device: DeviceInfo) -> dict[str, Any]:
    """A DeviceInfo as a dictionary of JSON values."""
    return {**asdict(device), "type": device.type.value}
