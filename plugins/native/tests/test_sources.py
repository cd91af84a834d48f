"""The C++ sources: lines that fit a screen, and a map that leads somewhere."""

import re
from pathlib import Path

import pytest

from tensorplug_native import grids

CPP = Path(__file__).parents[1] / "cpp"
WIDTH = 120


@pytest.mark.parametrize("file", sorted(CPP.iterdir()), ids=lambda file: file.name)
def test_lines_have_at_most_120_characters(file):
    lines = file.read_text().splitlines()

    assert [n for n, line in enumerate(lines, 1) if len(line) > WIDTH] == []


def test_grids_are_those_that_core_decodes_with():
    assert (CPP / "grids.h").read_text() == grids.header()


def test_the_map_names_functions_where_they_are():
    text = (CPP / "kernels.cpp").read_text().split("#include")[0]
    lines = text.split("// op ")[1].splitlines()[1:]
    ops = [
        (op.lower(), line) for line in lines for op in re.findall(r"\b[A-Z][A-Z0-9_]+\b", line[:42])
    ]
    loops = [
        (name, file)
        for file, names in re.findall(r"(\w+\.h): ([\w, ]+)", text)
        for name in names.replace(" ", "").split(",")
    ]

    lost = [
        op for op, line in ops if not any(defines(file, op) for file in re.findall(r"\w+\.h", line))
    ]
    missing = [(name, file) for name, file in loops if not defines(file, name)]

    assert len(ops) >= 20
    assert len(loops) >= 8
    assert lost == missing == []


def defines(file: str, name: str) -> bool:
    """Whether a header has a function of this name."""
    return re.search(rf"\b{name}\(", (CPP / file).read_text()) is not None
