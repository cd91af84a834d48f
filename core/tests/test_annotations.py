"""Annotations mean what they say when they are read late, as Python does from 3.14 on."""

import ast
import builtins
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("*/src/**/*.py")) + sorted(ROOT.glob("*/*/src/**/*.py"))
BUILTINS = set(dir(builtins))


def members(node: ast.ClassDef) -> set[str]:
    """Names that the body of a class binds."""
    found = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    return found | {
        n.target.id
        for n in node.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.value is not None
    }


def annotations(node: ast.ClassDef) -> list[ast.expr]:
    """Annotations in the body of a class, of methods too."""
    found = []
    for n in node.body:
        if isinstance(n, ast.AnnAssign):
            found.append(n.annotation)
        elif isinstance(n, ast.FunctionDef):
            given = [a.annotation for a in (*n.args.args, *n.args.kwonlyargs)]
            found += [a for a in (*given, n.returns) if a is not None]
    return found


def confused(source: str) -> list[tuple[str, str]]:
    """Classes whose annotations name a builtin that a member of the class hides."""
    return [
        (node.name, name.id)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for annotation in annotations(node)
        for name in ast.walk(annotation)
        if isinstance(name, ast.Name) and name.id in members(node) & BUILTINS
    ]


def test_no_member_of_a_class_hides_a_builtin_that_an_annotation_of_it_names() -> None:
    found = {str(f.relative_to(ROOT)): confused(f.read_text(encoding="utf-8")) for f in FILES}

    assert len(found) > 100
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize("line", ["kind: type[int]", "def f(self) -> type: ...", "kind: type = 3"])
def test_a_hidden_builtin_is_seen(line: str) -> None:
    assert confused(f"class A:\n    {line}\n    def type(self): ...") == [("A", "type")]
