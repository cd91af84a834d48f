"""For `conftest`: leaves out cases of the conformance kit at tier smoke, for emulated kernels.

A compiler takes half a second for each kernel. The kernels of all cases run in tests that compile
many at once: `evidence`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

EACH = 3
"""One op of three has a case."""


def leave_out(config: "pytest.Config", items: "list[pytest.Item]", kit: Path) -> None:
    """Deselect cases of the test module `kit`, except the first one of every third op."""
    if config.getoption("tensorplug_tier") != "smoke":
        return
    cases = [item for item in items if item.path == kit and _op(item)]
    taken = list(dict.fromkeys(map(_op, cases)))[::EACH]
    seen: set[tuple[object, str]] = set()
    out = set()
    for item in cases:
        kind = (getattr(item, "originalname", ""), _op(item))
        if kind in seen or _op(item) not in taken:
            out.add(item)
        seen.add(kind)
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def _op(item: "pytest.Item") -> str:
    """The op of a case of the kit; empty for other tests."""
    spec = getattr(item, "callspec", None)
    case = spec.params.get("case") if spec is not None else None
    return case.op if case is not None else ""
