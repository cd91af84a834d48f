"""Encoders, and commands that are encoded once: what they take, and in which order it is done."""

import math
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from Metal._machine import INVALID_RESOURCE, GpuError, machine, need
from Metal._memory import Buffer

if TYPE_CHECKING:
    from Metal._commands import CommandBuffer, Fence

MOST_BUFFERS = 31
MOST_BYTES = 4096
MOST_COMMANDS = 16384
OLD_DRIVERS = 15
NEAR, MANY = 8, 256
"""Encoders that are looked at for aliases, and those whose order is remembered."""
_numbers = count(1)


@dataclass(eq=False)
class Dispatch:
    """One dispatch with all that was set when it was encoded."""

    pipeline: Any
    buffers: dict[int, tuple[Buffer, int]]
    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    after: bool = False
    """Whether it starts after all earlier ones."""

    def run(self) -> None:
        if math.prod(self.groups):
            self.pipeline.launch(self.groups, self.items, self.buffers)

    @property
    def memory(self) -> list[Buffer]:
        return [buffer for buffer, _ in self.buffers.values()]


def checked(
    pipeline: Any, buffers: dict[int, tuple[Buffer, int]], groups: Any, items: Any, gpu: Any
) -> Dispatch:
    """A dispatch that Metal takes."""
    need(pipeline is not None, "a dispatch without a pipeline")
    need(pipeline.gpu is gpu, "a pipeline of another device")
    sizes = [tuple(int(n) for n in size) for size in (groups, items)]
    need(all(len(size) == 3 and min(size) >= 0 for size in sizes), f"a grid of {sizes}")
    if math.prod(sizes[0]):
        most = min(pipeline.maxTotalThreadsPerThreadgroup(), gpu.most_items)
        all_ = math.prod(sizes[1])
        need(1 <= all_ <= most, f"threadgroups of {all_} threads, at most {most}")
        for index in pipeline.indices:
            need(index in buffers, f"{pipeline.name}: nothing is set for buffer {index}")
    for buffer, _ in buffers.values():
        need(buffer.gpu is gpu, "a buffer of another device")
    return Dispatch(pipeline, dict(buffers), sizes[0], sizes[1])


def bound(buffer: Any, offset: int, index: int) -> tuple[Buffer, int]:
    """A buffer as it may be bound."""
    need(isinstance(buffer, Buffer), f"{buffer!r} is not an MTLBuffer")
    need(0 <= index < MOST_BUFFERS, f"buffer {index}, of {MOST_BUFFERS}")
    need(0 <= offset < buffer.size and offset % 4 == 0, f"offset {offset} of {buffer.size} bytes")
    return buffer, offset


def without_barriers(work: Sequence[Dispatch]) -> list[list[Dispatch]]:
    """Dispatches that may run at the same time."""
    parts: list[list[Dispatch]] = [[]]
    for each in work:
        if each.after and parts[-1]:
            parts.append([])
        parts[-1].append(each)
    return parts


def perform(work: Sequence[Dispatch]) -> None:
    """Do dispatches, those that may run at the same time in an order of the machine's."""
    for part in without_barriers(work):
        if machine.compare_orders and len(part) > 1:
            _compare(part)
        order = list(part)
        if machine.order == "reverse":
            order.reverse()
        elif isinstance(machine.order, int):
            random.Random(machine.order).shuffle(order)
        for each in order:
            each.run()
            machine.dispatches += bool(math.prod(each.groups))


def _compare(part: Sequence[Dispatch]) -> None:
    """Note where the order of dispatches matters that no barrier divides; undo them."""
    memory = list({id(b): b for each in part for b in each.memory}.values())
    before = [buffer.bytes.copy() for buffer in memory]
    found = []
    for order in (part, part[::-1]):
        for each in order:
            each.run()
        found.append([buffer.bytes.copy() for buffer in memory])
        for buffer, old in zip(memory, before, strict=True):
            buffer.bytes[:] = old
    if any((a != b).any() for a, b in zip(*found, strict=True)):
        names = ", ".join(each.pipeline.name for each in part)
        machine.fault(f"a barrier is missing between {names}: their order matters")


@dataclass(eq=False)
class Encoder:
    """What encoders of all kinds have: an end, and fences."""

    commands: "CommandBuffer"
    number: int = field(default_factory=lambda: next(_numbers))
    before: set[int] = field(default_factory=set)
    """Numbers of encoders that this one comes after."""

    def __post_init__(self) -> None:
        self.open = True
        self.used: list[Buffer] = []
        self._first: list[Fence] = []
        self._last: list[Fence] = []

    @property
    def gpu(self) -> Any:
        return self.commands.queue.gpu

    def check_open(self) -> None:
        need(self.open, "an encoder that has ended takes no more commands")

    def waitForFence_(self, fence: "Fence") -> None:
        self.check_open()
        self._first.append(fence)

    def updateFence_(self, fence: "Fence") -> None:
        self.check_open()
        self._last.append(fence)

    def finish(self, work: Callable[[], None]) -> None:
        self.check_open()
        self.open = False

        def ordered() -> None:
            for fence in self._first:
                self.before |= fence.reached
            self._look_for_aliases()
            work()
            for fence in self._last:
                reached = fence.reached | self.before | {self.number}
                fence.reached = {each for each in reached if each > self.number - MANY}

        self.commands.ended(ordered)

    def _look_for_aliases(self) -> None:
        """Note memory that earlier encoders of this queue use as another buffer, in any order."""
        recent = self.commands.queue.recent
        for number, used in recent:
            alive = [buffer for each in used if (buffer := each()) is not None]
            if number not in self.before and _aliased(alive, self.used):
                machine.fault("two buffers over the same memory, and no fence between encoders")
        recent.append((self.number, [weakref.ref(buffer) for buffer in self.used]))
        del recent[:-NEAR]


def _aliased(first: Sequence[Buffer], second: Sequence[Buffer]) -> bool:
    return any(
        a is not b and a.address < b.address + b.size and b.address < a.address + a.size
        for a in first
        for b in second
    )


class ComputeEncoder(Encoder):
    """MTLComputeCommandEncoder."""

    def __init__(self, commands: "CommandBuffer", *, concurrent: bool) -> None:
        super().__init__(commands)
        self._concurrent = concurrent
        self._pipeline: Any = None
        self._buffers: dict[int, tuple[Buffer, int]] = {}
        self._work: list[Dispatch] = []
        self._after = False
        self._resources: set[int] = set()
        self._pipelines: set[int] = set()

    def setComputePipelineState_(self, pipeline: Any) -> None:
        self.check_open()
        self._pipeline = pipeline
        self._pipelines.add(id(pipeline))

    def setBuffer_offset_atIndex_(self, buffer: Any, offset: int, index: int) -> None:
        self.check_open()
        self._buffers[index] = bound(buffer, offset, index)

    def setBytes_length_atIndex_(self, data: Any, length: int, index: int) -> None:
        self.check_open()
        view = memoryview(data).cast("B")
        need(0 < length <= MOST_BYTES, f"{length} bytes set, at most {MOST_BYTES}")
        need(view.nbytes == length, f"{length} bytes asked for of {view.nbytes}")
        copy = Buffer(self.gpu, length, 0)
        copy.bytes[:] = np.frombuffer(view, np.uint8)
        self._buffers[index] = bound(copy, 0, index)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, items: Any) -> None:
        self.check_open()
        self._add(checked(self._pipeline, self._buffers, groups, items, self.gpu))

    def memoryBarrierWithScope_(self, scope: int) -> None:
        self.check_open()
        need(scope == 1, f"a barrier of scope {scope}, which is not that of buffers")
        self._after = True
        machine.barriers += 1

    def useResource_usage_(self, resource: Any, usage: int) -> None:
        self.check_open()
        need(usage in (1, 2, 3), f"usage {usage}")
        self._resources.add(id(resource))
        if isinstance(resource, Buffer):
            self.used.append(resource)

    def executeCommandsInBuffer_withRange_(self, commands: "IndirectCommands", part: Any) -> None:
        self.check_open()
        start, length = part
        need(length <= MOST_COMMANDS, f"{length} commands executed, at most {MOST_COMMANDS}")
        need(start + length <= len(commands.commands), "commands beyond the end of their buffer")
        for i, command in enumerate(commands.commands[start : start + length]):
            self._add(command.checked(self.gpu, self._resources, self._pipelines, first=i == 0))
        machine.executions += 1

    def endEncoding(self) -> None:
        work = self._work
        self.finish(lambda: perform(work))

    def _add(self, dispatch: Dispatch) -> None:
        dispatch.after = dispatch.after or self._after or not self._concurrent
        self._after = False
        self.used += [b for b in dispatch.memory if b not in self.used]
        self._work.append(dispatch)


class IndirectCommand:
    """MTLIndirectComputeCommand."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pipeline: Any = None
        self._buffers: dict[int, tuple[Buffer, int]] = {}
        self._sizes: Any = None
        self._barrier = False

    def setComputePipelineState_(self, pipeline: Any) -> None:
        need(pipeline.indirect, "a pipeline that is not made for indirect commands")
        self._pipeline = pipeline

    def setKernelBuffer_offset_atIndex_(self, buffer: Any, offset: int, index: int) -> None:
        need(index < self._most, f"buffer {index} of a command with {self._most}")
        self._buffers[index] = bound(buffer, offset, index)

    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(
        self, groups: Any, items: Any
    ) -> None:
        self._sizes = groups, items

    def setBarrier(self) -> None:
        self._barrier = True

    def checked(
        self, gpu: Any, resources: set[int], pipelines: set[int], *, first: bool
    ) -> Dispatch:
        """The command as a dispatch, where the GPU has what it names."""
        need(self._sizes is not None, "an indirect command that was not encoded")
        dispatch = checked(self._pipeline, self._buffers, *self._sizes, gpu)
        hidden = any(id(buffer) not in resources for buffer in dispatch.memory)
        lost = gpu.generation < OLD_DRIVERS and id(self._pipeline) not in pipelines
        if hidden or lost:
            what = "a buffer that no useResource names" if hidden else "a pipeline that is not set"

            def fail() -> None:
                raise GpuError(INVALID_RESOURCE, f"an indirect command uses {what}")

            dispatch.run = fail  # type: ignore[method-assign] # this one cannot do its work
        dispatch.after = self._barrier
        return dispatch


class IndirectCommands:
    """MTLIndirectCommandBuffer."""

    def __init__(self, most_buffers: int, most: int) -> None:
        need(0 < most <= MOST_COMMANDS, f"{most} indirect commands, at most {MOST_COMMANDS}")
        need(most_buffers <= MOST_BUFFERS, f"{most_buffers} buffers of an indirect command")
        self.commands = [IndirectCommand(most_buffers) for _ in range(most)]

    def indirectComputeCommandAtIndex_(self, index: int) -> IndirectCommand:
        machine.short_lived("an indirect command")
        return self.commands[index]

    def size(self) -> int:
        return len(self.commands)


class BlitEncoder(Encoder):
    """MTLBlitCommandEncoder."""

    def __init__(self, commands: "CommandBuffer") -> None:
        super().__init__(commands)
        self._work: list[Callable[[], None]] = []

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Buffer, start: int, target: Buffer, offset: int, size: int
    ) -> None:
        self.check_open()
        need(start % 4 == 0 and offset % 4 == 0 and size % 4 == 0, "a copy of no whole words")
        for buffer, at in ((source, start), (target, offset)):
            need(buffer.gpu is self.gpu, "a buffer of another device")
            need(at >= 0 and size > 0 and at + size <= buffer.size, f"{size} bytes at {at}")
        low, high = source.address + start, target.address + offset
        need(low + size <= high or high + size <= low, "a copy over itself")
        self.used += [source, target]

        def copy() -> None:
            target.bytes[offset : offset + size] = source.bytes[start : start + size]

        self._work.append(copy)

    def fillBuffer_range_value_(self, buffer: Buffer, part: Any, value: int) -> None:
        self.check_open()
        start, size = part
        need(buffer.gpu is self.gpu, "a buffer of another device")
        need(start % 4 == 0 and size % 4 == 0, "a fill of no whole words")
        need(start >= 0 and size > 0 and start + size <= buffer.size, f"{size} bytes at {start}")
        need(0 <= value <= 255, f"a fill with {value}")
        self.used.append(buffer)
        self._work.append(lambda: buffer.bytes[start : start + size].fill(value))

    def endEncoding(self) -> None:
        def work() -> None:
            for each in self._work:
                each()

        self.finish(work)
