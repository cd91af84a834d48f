"""The plan of a graph over devices on paper, simulated, as a report for people and programs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorplug.device import Place, Tensor
from tensorplug.errors import OptionError, OutOfMemory
from tensorplug.inspect.graphfile import load
from tensorplug.planning.assign import Streams
from tensorplug.planning.planned import PlanRequest, PlanSettings, plan_graph
from tensorplug.planning.program import Program, reading, run_program
from tensorplug.text import human
from tensorplug_llm.simulation.devices import PaperDevice
from tensorplug_llm.simulation.model import (
    Machines,
    Simulated,
    Speed,
    first_token,
    moved,
    simulate,
)
from tensorplug_llm.simulation.placement import blocks_of, placed
from tensorplug_llm.simulation.plan import PlanFile, PlannedDevice

SETTINGS = PlanSettings(batches=1, offload=False, ahead=None)
DRIVER = Speed(1e12, 1e12)
"""Speed of the driver, which computes nothing."""
HEAD = "  texts   tokens/s   per text  busiest device   link  driver"
MOST_ROWS = 16
"""Devices that the text names; JSON has all of them."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device: how many blocks it holds, their bytes, and its share of busy time by texts."""

    name: str
    blocks: int
    bytes: int
    memory: int
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """What all devices together, or those that are left, generate."""

    texts: tuple[Simulated, ...]
    first_token_seconds: float
    moved_bytes: int
    """Bytes that a token of one text moves between devices."""
    devices: tuple[DeviceRow, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """What is left after the loss of one device; `rates` is None where the model does not fit."""

    device: str
    rates: Rates | None
    read_again: int
    """Bytes of weights and caches that other devices read or compute again."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that `tensorplug simulate` prints."""

    whole: Rates
    loss: Loss | None
    prompt: int

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        whole = self.whole
        lines = [HEAD]
        lines += [_line(row) for row in whole.texts]
        lines += [
            "",
            f"first token of a prompt of {self.prompt}: {whole.first_token_seconds:.3f} s",
            f"moved for each token: {human(whole.moved_bytes)}",
            "",
            *_devices(whole),
        ]
        if self.loss is not None:
            lines += ["", *_loss(self.loss)]
        return "\n".join(lines)


def _line(row: Simulated) -> str:
    rates = f"{row.texts:7}  {row.tokens_per_second:9.2f}  {row.per_text:9.2f}"
    return f"{rates}  {max(row.busy):14.0%}  {row.link:5.0%}  {row.driver:6.0%}"


def _devices(rates: Rates) -> list[str]:
    counts = [row.texts for row in rates.texts]
    lines = [f"busy with {', '.join([*map(str, counts[:-1]), _texts(counts[-1])])}:"]
    for row in rates.devices[:MOST_ROWS]:
        busy = "  ".join(f"{share:4.0%}" for share in row.busy)
        size = f"{human(row.bytes)} of {human(row.memory)}"
        lines.append(f"  {row.name:12}  {row.blocks:3} blocks, {size:24}  {busy}")
    if len(rates.devices) > MOST_ROWS:
        lines.append(f"  and {len(rates.devices) - MOST_ROWS} more; --json has them")
    return lines


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def _loss(loss: Loss) -> list[str]:
    if loss.rates is None:
        return [f"without {loss.device}: the model does not fit into the other devices"]
    found = "; ".join(
        f"{row.tokens_per_second:.2f} tokens/s with {_texts(row.texts)}" for row in loss.rates.texts
    )
    return [f"without {loss.device}: {found}; {human(loss.read_again)} are read again"]


def report(
    plan: PlanFile, lost: str | None = None, done: Callable[[], object] = lambda: None
) -> Report:
    """Simulate a plan file, and what is left without the device `lost`.

    `done` is called for each number of texts, of the plan and of what is left. Raises OptionError,
    FormatError, OutOfMemory.
    """
    names = [device.name for device in plan.devices]
    if lost is not None and lost not in names:
        raise OptionError(f"--lose {lost}: is not a device of the plan: {', '.join(names[:16])}")
    whole = Placed(plan, plan.devices)
    rates = whole.rates(plan, done)
    if lost is None:
        return Report(rates, None, plan.prompt)
    left = tuple(device for device in plan.devices if device.name != lost)
    try:
        rest = Placed(plan, left)
    except OutOfMemory:
        return Report(rates, Loss(lost, None, 0), plan.prompt)
    again = sum(
        size
        for size, before, now in zip(whole.sizes, whole.homes, rest.homes, strict=True)
        if before != now
    )
    return Report(rates, Loss(lost, rest.rates(plan, done), again), plan.prompt)


class Placed:
    """The graph of a plan file, with each block of its model on one of `devices`."""

    def __init__(self, plan: PlanFile, devices: Sequence[PlannedDevice]) -> None:
        """Raises FormatError, OutOfMemory."""
        self.devices = devices
        driver = PaperDevice("driver", is_driver=True)
        self.graph = load(plan.graph, memory=driver.buffer_type)
        blocks = blocks_of(self.graph)
        self.sizes = [block.nbytes for block in blocks]
        self._numbers = placed(blocks, devices)
        self.homes = [devices[number].name for number in self._numbers]
        self._streams = [*(PaperDevice(d.name, d.memory) for d in devices), driver]
        self._moved: dict[Tensor, Place] = {}
        for number in sorted(set(self._numbers)):
            mine = [b for b, home in zip(blocks, self._numbers, strict=True) if home == number]
            tensors = [tensor for block in mine for tensor in block.tensors]
            size = sum(tensor.nbytes for tensor in tensors)
            buffer = self._streams[number].buffer_type.alloc(size)
            self._moved |= dict.fromkeys(tensors, Place(buffer, 0))

    def program(self) -> Program:
        """The steps of one token."""
        backends = [device.open() for device in self._streams]
        pools = [backend.buffer_type for backend in backends]
        streams = Streams(backends, pools, self._moved)
        planned = plan_graph(PlanRequest(self.graph, fuse=False), streams, {}, SETTINGS)
        outputs = reading(planned.output_homes, len(backends))
        return (*run_program(planned.splits, planned.where), *outputs)

    def rates(self, plan: PlanFile, done: Callable[[], object]) -> Rates:
        """What the program would do on the machines of the plan."""
        ends = (*self.devices, None)
        speeds = [*(device.speed for device in self.devices), DRIVER]
        machines = Machines(speeds, lambda a, b: plan.way(ends[a], ends[b]), plan.call)
        program = self.program()
        found = []
        for texts in plan.texts:
            found.append(simulate(program, machines, texts))
            done()
        used = [0] * len(self.devices)
        for size, number in zip(self.sizes, self._numbers, strict=True):
            used[number] += size
        rows = tuple(
            DeviceRow(
                device.name,
                self._numbers.count(i),
                used[i],
                device.memory,
                tuple(row.busy[i] for row in found),
            )
            for i, device in enumerate(self.devices)
        )
        first = first_token(program, machines, plan.prompt, plan.chunk)
        return Rates(tuple(found), first, moved(program), rows)
