"""Metal Shading Language for the emulator: what the compiler is given, how kernels are called."""

import re

from tensorplug_emulator.compiler import preprocessed
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.emulator import Emulator
from tensorplug_emulator.library import Language
from tensorplug_emulator.msl import Parameter, heads
from tensorplug_simt.dialects.dialect import METAL
from tensorplug_simt.dialects.metal import APPLE
from tensorplug_simt.table import PORTABLE, Kernels

_LIBRARIES = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>[ \t]*$", re.MULTILINE)
_SHARED = re.compile(r"\bthreadgroup\b(?=[ \t\n]+[\w:<>, \t\n]+\[)")
_CONSTANT = re.compile(r"\bconstant[ \t]+(?:const\b)?")


def prepared(text: str) -> str:
    """A text whose headers are those of the emulator and whose arrays of groups are shared."""
    text = _LIBRARIES.sub("", text)
    return _CONSTANT.sub("constant ", _SHARED.sub("SIMT_SHARED", text))


def expanded(text: str) -> str:
    """A text without macros and comments, as `msl_rules.problems` takes it. Needs a compiler."""
    given = _LIBRARIES.sub("", text)
    return preprocessed(given, "-D__METAL_VERSION__=310")


def exported(text: str, kernel: str, section: str) -> str:
    """Calls `kernel` with the buffers that a launch has, by their places, and with its places."""
    (head,) = (head for head in heads(text) if head.name == kernel)
    arguments = ", ".join(map(_argument, head.parameters))
    return f"SIMT_EXPORT_AS({kernel}, {section}, ({kernel}({arguments})))\n"


def _argument(parameter: Parameter) -> str:
    if parameter.attribute != "buffer":
        return f"simt_{parameter.attribute}()"
    kind = parameter.kind
    if kind.endswith("&"):
        return f"*simt_buffer<{kind[:-1]}>(p, {parameter.place})"
    return f"simt_buffer<{kind.removesuffix('*')}>(p, {parameter.place})"


METAL_LANGUAGE = Language(
    "metal",
    "languages/metal.h",
    re.compile(r"\bkernel\s+void\s+(\w+)\s*\("),
    prepared,
    exported,
    block_in_memory=True,
)
"""Arguments are 8 bytes for each buffer, by its place: an address."""


def emulated_metal(kernels: Kernels = PORTABLE) -> EmulatedDevice:
    """A device that runs `kernels` as Metal's, on the processor."""
    return EmulatedDevice(
        "emulated-metal:0",
        emulator=Emulator(dialect=METAL, language=METAL_LANGUAGE),
        facts=APPLE,
        kernels=kernels,
    )
