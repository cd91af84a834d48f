"""The complete text of a kernel: dialect, constants, types, parameters, its section."""

import re
from functools import cache

from tensorplug.dtypes import DType
from tensorplug_simt.blocks import block_text
from tensorplug_simt.dialects.dialect import Dialect, read_resource
from tensorplug_simt.program import Kernel, Launch

COMMON = "tensorplug_simt:kernels/common.k"
BYTES = "tensorplug_simt:kernels/bytes.k"
"""A part of kernels that take weights of blocks 32 elements at a time: `unpack`."""
_MARK = re.compile(r"^//: (\w+)$", re.MULTILINE)


def source(launch: Launch, dialect: Dialect, *, parts: int = 0) -> str:
    """The text of the one kernel of `launch`; with `parts`, of launches merged into one."""
    kernel = launch.kernel
    body = section(kernel.text, kernel.name)
    pieces = [
        "#define ROUNDS_EACH_STEP 1\n" if kernel.rounds_each_step else "",
        "#define MERGED 1\n" if parts else "",
        read_resource(dialect.header),
        "".join(f"#define {name} {value}\n" for name, value in sorted(launch.defines.items())),
        read_resource(COMMON),
        *(block_text(t) for t in sorted(set(launch.types.values()), key=lambda t: t.id)),
        "".join(_role(role, dtype) for role, dtype in sorted(launch.types.items())),
        *(sections(part)[""] for part in kernel.parts),
        _parameters(kernel),
        _merged_head(kernel, dialect, parts) if parts else _head(kernel, dialect),
        body.replace("KERNEL_HEAD {", "KERNEL_HEAD { KERNEL_START") if parts else body,
    ]
    return "\n".join(piece for piece in pieces if piece)


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
    regions = "".join(f"  region {name};\n" for name in kernel.buffers)
    numbers = "".join(f"  {kind} {name};\n" for name, kind in kernel.numbers)
    return f"typedef struct {{\n{regions}{numbers}}} {kernel.name}_parameters;\n"


def _head(kernel: Kernel, dialect: Dialect) -> str:
    return f"#define KERNEL_HEAD {dialect.head(kernel, f'{kernel.name}_parameters p')}\n"


def _merged_head(kernel: Kernel, dialect: Dialect, parts: int) -> str:
    """Each group finds its part by its number, and counts from the part's first group on."""
    name = kernel.name
    passed = "".join(f" + (number_ >= all_.starts[{i}])" for i in range(1, parts))
    return (
        f"typedef struct {{\n  {name}_parameters each[{parts}];\n  int starts[{parts}];\n"
        f"}} {name}_parts;\n"
        f"#define KERNEL_HEAD {dialect.head(kernel, f'{name}_parts all_')}\n"
        f"#define KERNEL_START const int number_ = LAUNCH_GROUP_X, part_ = 0{passed}; "
        f"const int group_ = number_ - all_.starts[part_]; "
        f"{dialect.part.format(kind=f'{name}_parameters')} = all_.each[part_];\n"
    )
