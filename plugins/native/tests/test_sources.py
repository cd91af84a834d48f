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
    entries = re.findall(r"(\w+), (\w+\.h)", text)
    loops = [
        (name, file)
        for file, names in re.findall(r"(\w+\.h): ([\w, ]+)", text)
        for name in names.replace(" ", "").split(",")
    ]

    missing = [
        (name, file)
        for name, file in entries + loops
        if not re.search(rf"\b{name}\(", (CPP / file).read_text())
    ]

    assert len(entries) >= 4
    assert len(loops) >= 8
    assert missing == []
