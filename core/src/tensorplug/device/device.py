"""`Device`: a piece of hardware that opens backends and owns kinds of memory."""

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final, runtime_checkable

from tensorplug.device.backend import (
    Backend,
    SupportsAbort,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsEvents,
    SupportsThreads,
    members,
)
from tensorplug.device.buffer import Buffer, BufferType
from tensorplug.device.lifetime import Resource
from tensorplug.errors import OptionError, Refusal
from tensorplug.fusion.formulas import Group, Pattern
from tensorplug.graph.tensor import Array, Tensor

if TYPE_CHECKING:
    from tensorplug.registry.candidate import Candidate


class DeviceType(enum.Enum):
    """What kind of hardware a device is; the order is that of preference."""

    GPU = "gpu"
    """Has memory of its own."""
    IGPU = "igpu"
    """Shares the host's memory."""
    ACCEL = "accel"
    """Works beside the CPU, on the CPU's memory. `best` never means it: it is used by name."""
    CPU = "cpu"
    META = "meta"
    """Several devices that act as one."""


def checked_kind(kind: object, where: str) -> DeviceType:
    """Return `kind` if it is one. Raises OptionError."""
    if isinstance(kind, DeviceType):
        return kind
    known = ", ".join(f"DeviceType.{each.name}" for each in DeviceType)
    raise OptionError(
        f"{where}: {kind!r} is no device type; give one of {known}, or ask devices_of() for those "
        "of a backend by its name"
    )


class Rounding(enum.IntEnum):
    """What a product rounds its operands to, at most; sums are of f32 in any case.

    `Device.rounding` and `Backend.rounding` declare it, and the conformance kit allows each element
    of a product what follows from it and nothing else.
    """

    NONE = 0
    """Operands keep all digits of their types; weights of block types are decoded to f32."""
    HALVES = 1
    """Both operands may be rounded to f16 or bf16: to 8 bits of mantissa or more."""
    BYTES = 2
    """`x` may be rounded to whole numbers from -127 to 127 times a scale.

    The scale is that of 16 or more neighbours (a multiple of 16), of which the largest becomes 127
    or -127. Weights keep all digits.
    """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a device, for people and reports; code asks with `isinstance`."""

    async_transfer: bool
    async_copy: bool
    events: bool
    host_buffer: bool
    host_import: bool
    mmap: bool
    threads: bool
    abort: bool
    fusion: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts about a device. Sizes are bytes, 0 where there is no memory to report.

    `hardware_id` is the same for one piece of hardware seen through two backends: a lower-case PCI
    address (`0000:c1:00.0`) or a UUID; empty where there is none.
    """

    name: str
    description: str
    type: DeviceType
    memory_free: int
    memory_total: int
    hardware_id: str
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes free and in all."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Option:
    """One option that a device string may carry: `cpu?threads=2`."""

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[Any, ...] = ()

    def parse(self, value: Any, where: str) -> Any:
        """Return `value` in the option's type. Raises OptionError."""
        try:
            parsed = _parse_bool(value) if self.kind is bool else self.kind(value)
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"{where}: option {self.name}={value!r} is no {self.kind.__name__}; {self.help}"
            ) from error
        if self.choices and parsed not in self.choices:
            known = ", ".join(str(c) for c in self.choices)
            raise OptionError(f"{where}: option {self.name}={value!r}; choose from {known}")
        return parsed


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    table = {"1": True, "true": True, "yes": True, "on": True}
    table |= {"0": False, "false": False, "no": False, "off": False}
    return table[str(value).lower()] if str(value).lower() in table else bool(int(value))


class Device(Resource, ABC):
    """A piece of hardware. Thread-safe. `name` is `backend:index`, such as `opencl:0`."""

    backend_class: type[Backend]
    """What `open()` returns; its abilities are the device's. Set on the class or on the device."""
    options: ClassVar[tuple[Option, ...]] = ()
    """What `open()` and device strings may set."""
    candidate: "Candidate | None" = None
    """The registry's entry that the device came from: name of its backend, its distribution.

    As it was when its devices were first asked for; None for a device that no registry knows.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    # --- facts -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def description(self) -> str:
        """The hardware's model name."""

    @property
    @abstractmethod
    def type(self) -> DeviceType:
        """What kind of hardware this is."""

    @abstractmethod
    def memory(self) -> Memory:
        """Bytes free now and in all; zeros where there is nothing to report."""

    @property
    def hardware_id(self) -> str:
        """PCI address or UUID of the hardware, or an empty string."""
        return ""

    @property
    def mmap(self) -> bool:
        """Whether loading from memory-mapped files is a good idea."""
        return True

    @property
    def info(self) -> DeviceInfo:
        """All facts at this moment."""
        memory = self.memory()
        return DeviceInfo(
            self.name,
            self.description,
            self.type,
            memory.free,
            memory.total,
            self.hardware_id,
            self.capabilities,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Which optional abilities the device and its backends have."""
        return Capabilities(
            async_transfer=has_ability(self.backend_class, SupportsAsyncTransfer),
            async_copy=has_ability(self.backend_class, SupportsAsyncCopy),
            events=has_ability(self.backend_class, SupportsEvents),
            host_buffer=self.host_buffer_type is not None,
            host_import=isinstance(self, SupportsHostImport),
            mmap=self.mmap,
            threads=has_ability(self.backend_class, SupportsThreads),
            abort=has_ability(self.backend_class, SupportsAbort),
            fusion=isinstance(self, SupportsFusion),
        )

    # --- memory ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The memory that computes fastest."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory that transfers fastest (pinned), or None."""
        return None

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Memory with layouts of the device's own, for weights."""
        return ()

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether ops of this device can read and write tensors in such memory."""
        return buffer_type.device is self

    # --- work ------------------------------------------------------------------------------

    @final
    def refuses(
        self, node: Tensor, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason why this device cannot compute `node`, or None if it can.

        `source_types` maps the sources that are placed already to their kinds of memory.
        """
        if node.is_leaf or node.is_view:
            return None
        return self._signed(self._refuses(node, source_types or {}))

    @final
    def refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason why this device does not compute `group` as one, or None if it does.

        Called for devices that have `fusions`; `source_types` is that of `refuses`.
        """
        return self._signed(self._refuses_group(group, source_types or {}))

    def _signed(self, answer: object) -> Refusal | None:
        """Put the name of the device before the reason. Raises TypeError for other answers."""
        if answer is None:
            return None
        if not isinstance(answer, Refusal):
            raise TypeError(
                f"{self.name}: answers {answer!r} when asked what it refuses; this is an error of "
                "the backend, which must return a Refusal with the reason, or None"
            )
        known = answer.reason.startswith(f"{self.name}:")
        return answer if known else Refusal(f"{self.name}: {answer.reason}")

    def offload(self, node: Tensor) -> bool:
        """Whether `node` is worth computing here though its weights are in host memory."""
        return False

    def rounding(self, node: Tensor) -> Rounding:
        """What the product `node` rounds its operands to on a stream opened without options.

        Asked of `mul_mat`, `mul_mat_id` and `flash_attn_ext`. A product with `precision="f32"` must
        not round. Devices that compute products in f32 leave this as it is.
        """
        return Rounding.NONE

    @final
    def open(self, **options: Any) -> Backend:
        """Return a new stream. Raises OptionError, DeviceError, OutOfMemory."""
        self.check_open()
        complete = self.parse_options(options)
        stream = self._open(dict(complete))
        stream.options = MappingProxyType(complete)
        return stream

    @final
    def parse_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return every option with its value. Raises OptionError for unknown ones."""
        known = {o.name: o for o in self.options}
        unknown = sorted(set(given) - set(known))
        if unknown:
            names = ", ".join(known) or "none"
            raise OptionError(f"{self.name}: unknown option {unknown[0]!r}; known options: {names}")
        return {
            name: option.parse(given[name], self.name) if name in given else option.default
            for name, option in known.items()
        }

    @final
    def drain(self) -> None:
        """Wait for the work of every open backend; errors wait for its next `synchronize()`."""
        for child in self.children:
            if isinstance(child, Backend):
                child.drain()

    @abstractmethod
    def _open(self, options: dict[str, Any]) -> Backend:
        """Return a new stream; `options` are complete and typed."""

    @abstractmethod
    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        """Return a reason not to compute a node that is not a view, or None.

        The public method puts the device's name before the reason.
        """

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        """Return a reason not to compute a group of a pattern in `fusions`, or None.

        The device computes each node of the group by itself.
        """
        return Refusal(f"no kernel for {group.pattern.name}")

    def _survives_fork(self) -> bool:
        return self.backend_class.survives_fork

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', closed' if self.closed else ''}>"


@runtime_checkable
class SupportsFusion(Protocol):
    """A device that computes groups of nodes as one.

    Its plans find them in `Part.work`, or its backends have `_compute_group`.
    """

    fusions: Sequence[Pattern]
    """What it has kernels for."""

    def refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason not to compute `group` as one, or None; `Device` has this method."""
        ...


@runtime_checkable
class SupportsHostImport(Protocol):
    """A device that computes on host memory without copying it."""

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Wrap contiguous host memory; it stays alive with the buffer.

        The owner may change the bytes between runs without telling the device: each run reads them
        again.

        A device with a limit on buffers maps larger memory as overlapping parts, so that a tensor
        of `largest_tensor` bytes lies whole in one of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelText:
    """One compiled variant of a kernel: the complete source, and whose text it is.

    `origin` is `own` for a kernel of the backend, `shared` for one that it adopted; `defines` are
    the constants that make the variant.
    """

    name: str
    origin: str
    defines: Mapping[str, Any]
    source: str
    suffix: str
    """Ending of a file with the source, such as `.cl`."""


@runtime_checkable
class SupportsKernelTexts(Protocol):
    """A device whose kernels are texts that it compiles."""

    def kernel_texts(self, node: Tensor) -> Sequence[KernelText]:
        """The kernels that compute `node`, in order; none where it is refused."""
        ...


@runtime_checkable
class SupportsNuma(Protocol):
    """A device that can spread its memory and threads over the nodes of a NUMA machine."""

    def init_numa(self, strategy: str) -> None:
        """Choose `disabled`, `distribute`, `isolate`, `numactl` or `mirror`."""
        ...

    @property
    def is_numa(self) -> bool:
        """Whether the machine has more than one node."""
        ...


def has_ability(kind: type, ability: Any) -> bool:
    """Whether instances of class `kind` have what a `Supports*` protocol asks for.

    A member counts that the class defines or annotates, or that its `__init__` assigns.
    """
    wanted = [name for name in vars(ability) if not name.startswith("_")]
    wanted += [name for name in inspect.get_annotations(ability) if name not in wanted]
    return set(wanted) <= members(kind)
