"""Many kernels as one translation unit of a language with namespaces, which compiles far sooner."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tensorplug_simt.dialects.dialect import Dialect
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source

_DEFINED = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel of a packed text: `name` is what its function is called there."""

    launch: Launch
    name: str
    text: str


def pieces(launches: Iterable[Launch], dialect: Dialect) -> list[Piece]:
    """A piece for each different program among `launches`, each with a name of its own."""
    different = {launch.variant: launch for launch in launches}
    return [
        _piece(launch, dialect, f"{launch.kernel.name}_{number}")
        for number, launch in enumerate(different.values())
    ]


def _piece(launch: Launch, dialect: Dialect, name: str) -> Piece:
    """The text in a namespace, after which no macro of it is known any more."""
    text = source(launch, dialect).replace(f"void {launch.kernel.name}(", f"void {name}(", 1)
    forgotten = "".join(f"#undef {macro}\n" for macro in dict.fromkeys(_DEFINED.findall(text)))
    return Piece(launch, name, f"namespace in_{name} {{\n{text}\n}}\n{forgotten}")
