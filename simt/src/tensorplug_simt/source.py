"""The complete text of a kernel: dialect, constants, types, parameters, its section."""

import re
from functools import cache

from tensorplug.dtypes import DType
from tensorplug_simt.blocks import block_text
from tensorplug_simt.dialects.dialect import Dialect, read_resource
from tensorplug_simt.program import Kernel, Launch

COMMON = "tensorplug_simt:kernels/common.k"
_MARK = re.compile(r"^//: (\w+)$", re.MULTILINE)


def source(launch: Launch, dialect: Dialect) -> str:
    """The text of the one kernel of `launch`."""
    kernel = launch.kernel
    parts = [
        read_resource(dialect.header),
        "".join(f"#define {name} {value}\n" for name, value in sorted(launch.defines.items())),
        read_resource(COMMON),
        *(block_text(t) for t in sorted(set(launch.types.values()), key=lambda t: t.id)),
        "".join(_role(role, dtype) for role, dtype in sorted(launch.types.items())),
        _parameters(kernel),
        f"#define KERNEL_HEAD {dialect.head(kernel)}\n",
        section(kernel.text, kernel.name),
    ]
    return "\n".join(part for part in parts if part)


@cache
def sections(text: str) -> dict[str, str]:
    """The sections of a text by name; what stands before the first has the name ''."""
    pieces = _MARK.split(read_resource(text))
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def section(text: str, name: str) -> str:
    """The section of one kernel, after what its text says for all."""
    found = sections(text)
    return found[""] + found[name]


def _role(role: str, dtype: DType) -> str:
    """What the text calls the type of a buffer: `load_x`, `store_x`, `x_bytes`."""
    lines = [f"#define {role}_bytes {dtype.size}", f"#define {role}_block {dtype.block}"]
    lines.append(f"#define {role}_is_{dtype.name} 1")
    kinds = ("decode",) if dtype.is_block else ("load", "store", "loadi", "storei")
    lines += [f"#define {kind}_{role} {kind}_{dtype.name}" for kind in kinds]
    return "\n".join(lines) + "\n"


def _parameters(kernel: Kernel) -> str:
    """The parameter block as a struct."""
    places = "".join(f"  place {name};\n" for name in kernel.buffers)
    numbers = "".join(f"  {kind} {name};\n" for name, kind in kernel.numbers)
    return f"typedef struct {{\n{places}{numbers}}} {kernel.name}_parameters;\n"
