"""The table of builders, and the two ways to fill it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.ggml import Ggml


@dataclass(frozen=True, slots=True)
class Use:
    """One use of one op."""

    op: str
    node: dict[str, Any]
    sources: list[int]
    """Pointers to tensors of ggml, 0 where an optional one is absent."""
    seen: list[dict[str, Any] | None]
    """What the sources are: `type`, `ne`, `nb`, `unit` (bytes of a block)."""
    params: dict[str, Any]


Builder = Callable[[Ggml, Use], int]
BUILDERS: dict[str, Builder] = {}


def direct(op: str, function: str = "", arguments: str = "") -> None:
    """Take the sources of `op` in order, then parameters: `f eps, i groups`.

    Without a function it is the one that is called as the op.
    """
    words = [argument.split() for argument in arguments.split(",") if argument]
    kinds = "".join(kind for kind, _ in words)
    names = [name for _, name in words]

    def build(ggml: Ggml, use: Use) -> int:
        params = [use.params[name] for name in names]
        signature = "t" * len(use.sources) + kinds
        return ggml.build(function or f"ggml_{op}", signature, *use.sources, *params)

    BUILDERS[op] = build


def builds(op: str) -> Callable[[Builder], Builder]:
    """Register the decorated function as the builder of `op`."""

    def register(build: Builder) -> Builder:
        BUILDERS[op] = build
        return build

    return register
