"""Facts about a GPU, as its driver tells them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cupy.cuda import runtime

from tensorplug.device import DeviceType, OptionError
from tensorplug_simt.facts import Facts
from tensorplug_simt.settings import setting

WARP = 32
"""Items that exchange values without barriers, on every GPU so far."""
INT_DOT = (6, 1)
"""The first compute capability with a product of four bytes."""
TENSOR_CORES = (8, 0)
"""The first compute capability whose tensor cores take both f16 and bf16."""
LARGE = 2.0**27
"""Multiplications and additions that are worth rounding operands: GPUs do fewer in 10 us."""
PRODUCTS = "TENSORPLUG_CUDA_PRODUCTS"
"""How products with many columns are computed: `auto`, by tensor cores where the node is large;
`tensor`, by tensor cores wherever they fit; `f32`, without rounded operands. With tensor cores it
is cuBLASLt that multiplies, where it is installed and takes the product."""
ACTIVATIONS = "TENSORPLUG_CUDA_ACTIVATIONS"
"""Set to `f32`, no product rounds activations to 8 bits; `int8` is the default."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `pci` and `uuid` are as people write them, `capability` is (major, minor).

    `memory` and `local_memory` (of one group) are bytes.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    pci: str
    uuid: str
    units: int
    memory: int
    largest_group: int
    local_memory: int
    integrated: bool
    host_pointers: bool
    """Whether kernels reach registered host memory under its own address."""

    @property
    def type(self) -> DeviceType:
        """What kind of hardware it is."""
        return DeviceType.IGPU if self.integrated else DeviceType.GPU

    @property
    def facts(self) -> Facts:
        """What lowerings may know of it. Raises OptionError for a setting that means nothing."""
        bytes_wanted = setting(ACTIVATIONS, "int8", "f32") == "int8"
        return Facts(
            wide=False,
            max_group=self.largest_group,
            local_memory=self.local_memory,
            subgroup=WARP,
            subgroup_required=True,
            fp16=True,
            fp64=True,
            # Without products of bytes no kernel has a reason to round activations.
            int_dot=bytes_wanted and self.capability >= INT_DOT,
            int8_activations=bytes_wanted,
            units=self.units,
            halves_from=self._halves_from,
        )

    @property
    def _halves_from(self) -> float:
        """See `Facts`; from the user's setting. Raises OptionError."""
        wanted = setting(PRODUCTS, "auto", "tensor", "f32")
        able = self.capability >= TENSOR_CORES
        if wanted == "tensor" and not able:
            raise OptionError(
                f"{PRODUCTS}={wanted}: {self.name} has no tensor cores for f16 and bf16, which "
                "sm_80 brought"
            )
        if wanted == "tensor":
            return 0.0
        return LARGE if wanted == "auto" and able else math.inf

    def __str__(self) -> str:
        major, minor = self.capability
        identity = f", GPU-{self.uuid}" if self.uuid else ""
        return f"sm_{major}{minor}, {self.pci}{identity}"


def gpu(ordinal: int) -> Gpu:
    """The facts of the GPU that CUDA calls `ordinal`."""
    known: Mapping[str, Any] = runtime.getDeviceProperties(ordinal)
    return Gpu(
        ordinal=ordinal,
        name=known["name"].decode(),
        capability=(known["major"], known["minor"]),
        pci=runtime.deviceGetPCIBusId(ordinal).lower()[-12:],
        uuid=_uuid(known.get("uuid", b"")),
        units=known["multiProcessorCount"],
        memory=known["totalGlobalMem"],
        largest_group=known["maxThreadsPerBlock"],
        local_memory=known["sharedMemPerBlock"],
        integrated=bool(known["integrated"]),
        host_pointers=bool(known.get("canUseHostPointerForRegisteredMem", 0)),
    )


def _uuid(raw: bytes) -> str:
    """16 bytes as people write them; empty where CuPy cut them at a byte of zero."""
    if len(raw) != 16:
        return ""
    return str(UUID(bytes=bytes(raw)))
