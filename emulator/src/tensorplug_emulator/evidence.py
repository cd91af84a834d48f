"""What is known of kernels without a GPU: that they compile within limits, and what they compute
when emulated.

Both are lists of problems, empty where there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensorplug_emulator import nvrtc
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.library import Order
from tensorplug_emulator.nvrtc import Usage, compiled
from tensorplug_emulator.packing import Piece, pieces
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source, symbol
from tensorplug_simt.dialects.dialect import CUDA
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import SHARED, Lowering, lower
from tensorplug_simt.program import Launch, Program
from tensorplug_testing.cases import Case, node_of
from tensorplug_testing.check import check

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_90", "sm_100")
"""Generations of GPUs; the compiler of CUDA 13 knows the first of them no more."""
FILE_OF_REGISTERS = 65536
"""Of a multiprocessor: a group that takes more cannot be launched."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a kernel may take: registers and spilled bytes of an item, bytes of local memory.

    `more_registers` and `spilled` are exceptions by the name of a kernel; others spill nothing.
    """

    registers: int = 64
    more_registers: Mapping[str, int] = field(default_factory=dict)
    spilled: Mapping[str, int] = field(default_factory=dict)
    local: int = 48 * 1024

    def problems(self, launch: Launch, usage: Usage) -> list[str]:
        """Which limits a compiled kernel passes."""
        name = launch.kernel.name
        x, y, z = launch.local
        rules = {
            "registers": (usage.registers, self.more_registers.get(name, self.registers)),
            "spilled bytes": (usage.spilled, self.spilled.get(name, 0)),
            "bytes of local memory": (usage.local, self.local),
            "registers of a group": (-(-usage.registers // 8) * 8 * x * y * z, FILE_OF_REGISTERS),
        }
        where = f"{usage.name} {dict(launch.defines)} for {usage.architecture}"
        return [f"{where}: {n} {what}, at most {m}" for what, (n, m) in rules.items() if n > m]


def launches_of(
    cases: Iterable[Case], facts: Facts, lowerings: Mapping[str, Lowering] = SHARED
) -> list[Launch]:
    """One launch of each program that cases are lowered to."""
    programs = (lower(node_of(case), facts, lowerings) for case in cases)
    found = [launch for p in programs if isinstance(p, Program) for launch in p.launches]
    return list({launch.variant: launch for launch in found}.values())


def first_launches(launches: Iterable[Launch]) -> list[Launch]:
    """The first launch of each kernel."""
    found: dict[str, Launch] = {}
    for launch in launches:
        found.setdefault(launch.kernel.name, launch)
    return list(found.values())


def known(architecture: str) -> bool:
    """Whether the compiler knows one of ARCHITECTURES. Loads it; raises Unsupported."""
    return architecture in nvrtc.architectures()


def turn_of(launches: Sequence[Launch], turn: int) -> tuple[Sequence[Launch], str]:
    """One of as many parts as there are ARCHITECTURES, and a known one of these for it."""
    names = [name for name in ARCHITECTURES if known(name)]
    return launches[turn :: len(ARCHITECTURES)], names[turn % len(names)]


def compile_problems(
    launches: Iterable[Launch], architecture: str, limits: Limits = Limits()
) -> list[str]:
    """Compile as few texts as options allow. Raises DeviceError where one does not compile."""
    found = pieces(launches, CUDA)
    problems = []
    for options in sorted({cuda_options(piece.launch) for piece in found}):
        part = {piece.name: piece for piece in found if cuda_options(piece.launch) == options}
        problems += _compile(part, architecture, options, limits)
    return problems


def alone_problems(
    launches: Iterable[Launch], architecture: str, limits: Limits = Limits()
) -> list[str]:
    """Compile each text by itself, as devices do. Raises DeviceError where one does not compile."""
    problems = []
    for launch in launches:
        usages = compiled(cuda_source(launch), architecture, cuda_options(launch))
        names = [usage.name for usage in usages]
        if names != [symbol(launch)]:
            problems.append(f"{symbol(launch)} in a text of its own: found {names}")
        problems += [line for usage in usages for line in limits.problems(launch, usage)]
    return problems


def _compile(
    part: Mapping[str, Piece], architecture: str, options: Sequence[str], limits: Limits
) -> list[str]:
    text = "".join(piece.text for piece in part.values())
    usages = {usage.name: usage for usage in compiled(text, architecture, options)}
    absent = [f"{name} is not among the compiled" for name in part if name not in usages]
    passed = [limits.problems(part[name].launch, usage) for name, usage in usages.items()]
    return [*absent, *(line for lines in passed for line in lines)]


def first_cases(device: EmulatedDevice, cases: Iterable[Case]) -> list[Case]:
    """The first case of each set of kernels."""
    found: dict[frozenset[str], Case] = {}
    for case in supported(device, cases):
        program = device.lower(node_of(case))
        launches = program.launches if isinstance(program, Program) else ()
        found.setdefault(frozenset(launch.kernel.name for launch in launches), case)
    return list(found.values())


def supported(device: EmulatedDevice, cases: Iterable[Case]) -> list[Case]:
    """The cases for which there are kernels."""
    return [case for case in cases if not device.refuses(node_of(case))]


def emulation_problems(
    device: EmulatedDevice, cases: Sequence[Case], order: Order = Order.FORWARD
) -> list[str]:
    """Run cases with all accesses checked, and compare with the float64 reference."""
    device.prepare(map(node_of, cases))
    device.emulator.order = order
    with device.open() as stream:
        outcomes = [check(case, stream) for case in cases]
    return [f"{o.case}: {o.detail}" for o in outcomes if o.verdict != "passed"]
