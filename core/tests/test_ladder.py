"""Core is a ladder of rooms: a module imports only its own room and rooms above it.

`python core/tests/test_ladder.py` draws the imports into `docs/architecture.md`.
"""

import ast
import re
from pathlib import Path

import pytest

import tensorplug

ROOMS = [
    "errors",
    "dtypes",
    "text",
    "system",
    "graph",
    "ops",
    "fusion",
    "device",
    "blocks",
    "planning",
    "running",
    "meta",
    "inspect",
    "registry",
    "gguf",
    "cli",
]
"""The rooms from the top down. `tensorplug/__init__.py` is in none of them; it imports them all."""

TYPES_FROM_BELOW = {
    "errors": {"device"},  # the devices that an error blames
    "graph.tensor": {"device"},  # the buffer that holds a tensor
    "device.device": {"registry"},  # the candidate that a device comes from
    "device.observing": {"planning"},  # the explanation that a page shows
}
"""Modules that import types from rooms below them, for type checkers only. May only shrink."""

INSIDE_FUNCTIONS: set[str] = {"cli.progress"}
"""Modules that import inside functions: here tqdm, once a task takes longer than a second."""

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
START, END = "<!-- rooms: drawn by core/tests/test_ladder.py -->\n", "<!-- end of rooms -->"

ROOT = Path(tensorplug.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or path.stem not in ("__init__", "__main__")
}


class Imports(ast.NodeVisitor):
    """Collects the rooms that a module imports at run time, and its imports inside functions."""

    def __init__(self) -> None:
        self.rooms: set[str] = set()
        self.types: set[str] = set()
        """The rooms that it imports for type checkers only."""
        self.late: list[int] = []
        self._depth = 0

    def visit_If(self, node: ast.If) -> None:
        typed = Imports()
        hidden = node.body if ast.unparse(node.test) == "TYPE_CHECKING" else []
        for statement in hidden:
            typed.visit(statement)
        self.types |= typed.rooms
        for statement in node.orelse if hidden else [*node.body, *node.orelse]:
            self.visit(statement)

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

    def _add(self, package: str, rooms: list[str], node: ast.stmt) -> None:
        if self._depth:
            self.late.append(node.lineno)
        if package == "tensorplug":
            self.rooms |= {room for room in rooms if room}


def imports(path: Path) -> Imports:
    found = Imports()
    found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def room_of(module: str) -> str:
    return module.partition(".")[0]


def picture() -> str:
    """The imports between rooms as text: row by row, which rooms a room imports.

    A room's own column has its number. The picture is a ladder if no mark is right of it.
    """
    width = max(map(len, ROOMS))
    rows = []
    for i, room in enumerate(ROOMS):
        found = set().union(*(imports(p).rooms for m, p in MODULES.items() if room_of(m) == room))
        cells = [
            f"{i + 1:2}" if n == i else " #" if r in found else " ." for n, r in enumerate(ROOMS)
        ]
        last = max(n for n, cell in enumerate(cells) if cell != " .")
        rows.append(f"{room:{width}} " + " ".join(cells[: max(last, i) + 1]))
    return "```text\n" + "\n".join(rows) + "\n```\n"


def draw() -> None:
    """Write the picture into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}{picture()}{END}{after}", encoding="utf-8")


def test_picture_of_the_rooms_in_the_documents_is_current() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    drawn, _, _ = rest.partition(END)

    assert drawn == picture(), "draw it again: python core/tests/test_ladder.py"


def test_page_names_each_module_of_the_rooms_of_which_it_lists_modules() -> None:
    listed = {*ROOMS} - {"ops", "blocks", "gguf", "cli"}
    rows = PAGE.read_text(encoding="utf-8").partition(START)[0]
    missing = {
        module
        for module, path in MODULES.items()
        if room_of(module) in listed and path.stem != "__init__"
        if not re.search(rf"`{module.split('.')[:2][-1]}[/`]", rows)
    }

    assert missing == set()


def test_every_module_lies_in_a_room() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_rooms_above_it(room: str) -> None:
    above = {*ROOMS[: ROOMS.index(room) + 1]}
    against = {
        module: below
        for module, path in MODULES.items()
        if room_of(module) == room and (below := imports(path).rooms - above)
    }

    assert against == {}


def test_types_come_from_rooms_below_only_where_it_is_listed() -> None:
    below = {
        module: types
        for module, path in MODULES.items()
        if (types := imports(path).types & {*ROOMS[ROOMS.index(room_of(module)) + 1 :]})
    }

    assert below == TYPES_FROM_BELOW


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_nothing_inside_functions(room: str) -> None:
    late = {m for m, path in MODULES.items() if room_of(m) == room and imports(path).late}

    assert late == {m for m in INSIDE_FUNCTIONS if room_of(m) == room}


def test_import_inside_a_function_or_from_below_is_seen() -> None:
    found = Imports()
    found.visit(
        ast.parse(
            "import tensorplug.graph.tensor\n"
            "from tensorplug import ops\n"
            "from tensorplug.ops.table import Op\n"
            "if TYPE_CHECKING:\n    from tensorplug.device.device import Device\n"
            "def f():\n    from tensorplug.registry import Registry\n"
        )
    )

    assert found.rooms == {"graph", "ops", "registry"}
    assert found.types == {"device"}
    assert found.late == [7]


if __name__ == "__main__":
    draw()
