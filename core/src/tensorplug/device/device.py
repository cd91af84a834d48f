"""`Device`: a piece of hardware that opens backends and owns kinds of memory."""

import builtins
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, final

from tensorplug.device.abilities import (
    SupportsAbort,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsEvents,
    SupportsFusion,
    SupportsHostImport,
    SupportsThreads,
    has_ability,
)
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType
from tensorplug.device.lifetime import Resource
from tensorplug.errors import OptionError, Refusal
from tensorplug.fusion.formulas import Group
from tensorplug.graph.tensor import Tensor

if TYPE_CHECKING:
    from tensorplug.registry.candidate import Candidate


class DeviceType(enum.Enum):
    """The kind of hardware of a device, in order of preference.

    >>> tp.device("cpu").type
    <DeviceType.CPU: 'cpu'>
    """

    GPU = "gpu"
    """A GPU with memory of its own."""
    IGPU = "igpu"
    """A GPU that shares the host's memory."""
    ACCEL = "accel"
    """An accelerator that works on the CPU's memory. `best` never chooses it; users name it."""
    CPU = "cpu"
    META = "meta"
    """Several devices that act as one."""


def checked_kind(kind: object, where: str) -> DeviceType:
    """Return `kind` if it is a DeviceType. Raises OptionError."""
    if isinstance(kind, DeviceType):
        return kind
    known = ", ".join(f"DeviceType.{each.name}" for each in DeviceType)
    raise OptionError(
        f"{where}: {kind!r} is not a device type; give one of {known}, or call devices_of() with "
        "the name of a backend"
    )


class Rounding(enum.IntEnum):
    """How far a product may round its operands. Sums are in f32 in any case.

    `Device.rounding` and `Backend.rounding` declare it. The conformance kit allows exactly the
    errors that follow from the declared rounding.
    """

    NONE = 0
    """Operands are not rounded; weights of block types are decoded to f32."""
    HALVES = 1
    """Both operands may be rounded to f16 or bf16."""
    BYTES = 2
    """`x` may be rounded to integers from -127 to 127 times a scale. Weights are not rounded.

    There is one scale for a multiple of 16 neighbouring elements: the one that makes the largest of
    them 127 or -127.
    """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a device, for reports. Code checks abilities with `isinstance`."""

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
    """Facts about a device. Sizes are in bytes, 0 if the device reports none.

    `hardware_id` is a lower-case PCI address (`0000:c1:00.0`) or a UUID, equal for the same
    hardware seen through different backends; empty if there is none.
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
    """Free and total memory in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a device, which a device string can set: `cpu?threads=2`.

    `kind` is a type, or a function that returns the value, or raises TypeError or ValueError with a
    text for the user. `choices` are the values that it may have.
    """

    name: str
    kind: Callable[[Any], Any]
    default: Any
    help: str
    choices: tuple[Any, ...] = ()

    def parse(self, value: Any, where: str) -> Any:
        """Return `value` converted to the option's type. Raises OptionError."""
        try:
            parsed = _parse_bool(value) if self.kind is bool else self.kind(value)
        except (TypeError, ValueError) as error:
            kind = self.kind
            wrong = f" must be {kind.__name__}" if isinstance(kind, type) else f": {error}"
            raise OptionError(
                f"{where}: option {self.name}={value!r}{wrong}; {self.help}"
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
    """A piece of hardware. Thread-safe. `name` is `plugin:index`, such as `opencl:0`.

    >>> device = tp.device("cpu")
    >>> device.refuses(tp.relu(tp.input("x", (2, 3), tp.F32))) is None
    True
    """

    backend_class: builtins.type[Backend]  # `type` is a member here
    """The class of streams that `open()` returns. Set it on the class or on the device."""
    options: ClassVar[tuple[Option, ...]] = ()
    """Options of `open()` and of device strings."""
    remote: ClassVar[bool] = False
    """True if each request to the device is a message to another process or machine.

    Then loaders let it read weights from its own machine's copy of a file: `Buffer.read_file`.
    """
    candidate: "Candidate | None" = None
    """The registry's record of the plugin that made the device: names of backend and distribution.

    The record is from the time when the devices were first listed. None for a device that did not
    come from a registry.
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
        """The kind of hardware."""

    @abstractmethod
    def memory(self) -> Memory:
        """Free and total memory in bytes now; zeros if the device reports none."""

    @property
    def hardware_id(self) -> str:
        """PCI address or UUID of the hardware, or an empty string."""
        return ""

    @property
    def mmap(self) -> bool:
        """True if weights should be loaded through memory-mapped files."""
        return True

    @property
    def info(self) -> DeviceInfo:
        """All facts as of now."""
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
        """The optional abilities of the device and its streams."""
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
        """The buffer type on which ops run fastest."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """A buffer type of host memory with the fastest transfers (pinned memory), or None."""
        return None

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Buffer types with a layout of the device's own, for weights."""
        return ()

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True if ops of this device can read and write tensors in memory of `buffer_type`."""
        return buffer_type.device is self

    # --- work ------------------------------------------------------------------------------

    @final
    def refuses(
        self, node: Tensor, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason why this device cannot compute `node`, or None if it can.

        `source_types` has the buffer types of sources that are placed already.
        """
        if node.is_leaf or node.is_view:
            return None
        return self._signed(self._refuses(node, source_types or {}))

    @final
    def refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason why this device does not compute `group` as one, or None if it does.

        Called for devices that have `fusions`. `source_types` is as in `refuses`.
        """
        return self._signed(self._refuses_group(group, source_types or {}))

    def _signed(self, answer: object) -> Refusal | None:
        """Add the name of the device to the reason. Raises TypeError for answers of other types."""
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
        """True if `node` should be computed here even if its weights are in host memory."""
        return False

    def rounding(self, node: Tensor) -> Rounding:
        """The rounding of operands of the product `node` on a stream opened without options.

        Called for `mul_mat`, `mul_mat_id` and `flash_attn_ext`. A product with `precision="f32"`
        must not round. Override it if the device rounds; the default is Rounding.NONE.
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
        """Return the value of every option. Raises OptionError for unknown options."""
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
        """Wait for the work of every open stream. Its next `synchronize()` raises its errors."""
        for child in self.children:
            if isinstance(child, Backend):
                child.drain()

    @abstractmethod
    def _open(self, options: dict[str, Any]) -> Backend:
        """Return a new stream. `options` has every option, converted to its type."""

    @abstractmethod
    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        """Return a reason not to compute a node that is not a view, or None.

        The public method adds the device's name to the reason.
        """

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        """Return a reason not to compute a group of a pattern in `fusions`, or None.

        The device accepts each node of the group.
        """
        return Refusal(f"no kernel for {group.pattern.name}")

    def _survives_fork(self) -> bool:
        return self.backend_class.survives_fork

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', closed' if self.closed else ''}>"
