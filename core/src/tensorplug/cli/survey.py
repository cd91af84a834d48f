"""`Survey`: the report of `tensorplug info`."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from tensorplug.cli.isolation import probe
from tensorplug.cli.probe import device_json
from tensorplug.device.device import Device, DeviceInfo, DeviceType
from tensorplug.registry import SELECTORS, Registry
from tensorplug.registry.candidate import State, describe, settled
from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.report import Report
from tensorplug.registry.spec import BEST
from tensorplug.text import human, table


@dataclass(frozen=True, slots=True)
class Survey:
    """Every candidate with its state, every device with its facts."""

    report: Report
    devices: tuple[DeviceInfo, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists and strings."""
        return {**self.report.to_json(), "devices": [device_json(d) for d in self.devices]}

    def __str__(self) -> str:
        lines = [str(self.report)]
        if self.devices:
            lines += ["", *device_table(self.devices), *self._best()]
        unset = [name for name, value in self.report.variables.items() if value is None]
        if unset:
            lines += ["", f"not set: {', '.join(unset)}"]
        lines += ["", f"next: {self._next()}"]
        return "\n".join(lines)

    def _next(self) -> str:
        """The next useful command."""
        if any(c.state is State.FAILED for c in self.report.candidates):
            return "tensorplug doctor"
        if not self.devices:
            return "pip install 'tensorplug[cpu]'"
        if len(self.devices) == 1:
            return "tensorplug explain --example"
        last = next((d for d in self.devices if d.type is DeviceType.CPU), self.devices[-1])
        first = next(d for d in self.devices if d is not last)
        return f"tensorplug explain --example --device {first.name} --device {last.name}"

    def _best(self) -> list[str]:
        """The device of programs that name none; ACCEL devices are used only by name."""
        kinds = SELECTORS[BEST]
        able = [device for device in self.devices if device.type in kinds]
        if not able:
            return ["", f"{BEST} is none of these: name one"]
        ranks = {c.name: c.rank for c in self.report.candidates if not c.state.refused}
        best = min(
            able, key=lambda d: (ranks.get(d.name.partition(":")[0], 0), kinds.index(d.type))
        )
        return ["", f"{BEST} is {best.name}"]


def survey(registry: Registry) -> Survey:
    """Load every backend in this process and list the devices."""
    facts = {device.name: _facts(device) for device in registry.devices()}
    report = registry.load_all()
    silent = tuple(
        f"{name} does not tell its facts: {describe(fact.error)}"
        for name, fact in facts.items()
        if isinstance(fact, Failure)
    )
    told = tuple(fact for fact in facts.values() if not isinstance(fact, Failure))
    return Survey(replace(report, notes=report.notes + silent), told)


def _facts(device: Device) -> DeviceInfo | Failure:
    return attempt(lambda: device.info)


def survey_safely(registry: Registry, timeout: float) -> Survey:
    """List everything, loading each plugin in a child process: a crash or hang becomes a row."""
    report = registry.scan()
    probes = [probe(candidate, timeout, work=False) for candidate in report.candidates]
    candidates = settled(p.candidate for p in probes)
    devices = tuple(
        device
        for p, candidate in zip(probes, candidates, strict=True)
        for device in p.devices
        if candidate is p.candidate
    )
    return Survey(replace(report, candidates=tuple(candidates)), devices)


def device_table(devices: tuple[DeviceInfo, ...]) -> list[str]:
    """The lines of a table of devices."""
    head = ("device", "type", "free", "total", "hardware", "abilities", "description")
    return table(
        head,
        [
            (
                device.name,
                device.type.value,
                human(device.memory_free) if device.memory_total else "-",
                human(device.memory_total) if device.memory_total else "-",
                device.hardware_id or "-",
                _abilities(device),
                device.description,
            )
            for device in devices
        ],
    )


def _abilities(device: DeviceInfo) -> str:
    names = [name for name, able in asdict(device.capabilities).items() if able]
    return ",".join(names) or "-"
