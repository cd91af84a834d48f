"""Core is a ladder: a module imports lower rungs only, and nothing inside functions."""

import ast
from pathlib import Path

import pytest

import tensorplug

LADDER = [
    "errors",
    "wholefile",
    "cache",
    "forks",
    "dtypes",
    "tensor",
    "ops",
    "lifetime",
    "buffer",
    "placing",
    "blocks",
    "graph",
    "fusion",
    "matching",
    "patterns",
    "rowids",
    "backend",
    "marks",
    "device",
    "moving",
    "transfer",
    "trace",
    "hazards",
    "footprints",
    "concurrency",
]
ROOT = Path(tensorplug.__file__).parent


def files(rung: str) -> list[Path]:
    folder = ROOT / rung
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


class Imports(ast.NodeVisitor):
    """Collects the rungs that a module imports at run time, and its imports inside functions."""

    def __init__(self) -> None:
        self.rungs: set[str] = set()
        self.late: list[int] = []
        self._depth = 0

    def visit_If(self, node: ast.If) -> None:
        for part in node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else [node]:
            self.generic_visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "imports name the whole path"
        package, _, path = (node.module or "").partition(".")
        self._add(package, [path.partition(".")[0]] if path else [a.name for a in node.names], node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            package, _, path = alias.name.partition(".")
            self._add(package, [path.partition(".")[0]], node)

    def _add(self, package: str, rungs: list[str], node: ast.stmt) -> None:
        if self._depth:
            self.late.append(node.lineno)
        if package == "tensorplug":
            self.rungs |= set(rungs)


def imports(path: Path) -> Imports:
    found = Imports()
    found.visit(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("rung", LADDER)
def test_module_imports_only_from_lower_rungs(rung: str) -> None:
    lower = {*LADDER[: LADDER.index(rung) + 1]}

    for path in files(rung):
        assert imports(path).rungs - lower == set(), path.name


@pytest.mark.parametrize("rung", LADDER)
def test_module_imports_nothing_inside_functions(rung: str) -> None:
    for path in files(rung):
        assert imports(path).late == [], path.name


def test_import_inside_a_function_or_from_above_is_seen() -> None:
    found = Imports()
    found.visit(
        ast.parse(
            "import tensorplug.graph\n"
            "from tensorplug import ops\n"
            "from tensorplug.ops.table import Op\n"
            "if TYPE_CHECKING:\n    from tensorplug.device import Device\n"
            "def f():\n    from tensorplug.transfer import copy\n"
        )
    )

    assert found.rungs == {"graph", "ops", "transfer"}
    assert found.late == [7]
