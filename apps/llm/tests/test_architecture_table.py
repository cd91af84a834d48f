"""The table of architectures in the README has all of them, and no number above its limit."""

import re

from tensorplug_llm.arch import architecture, architecture_names
from tensorplug_llm.testing.model_tests import LIMITS
from tensorplug_llm.testing.tiny_models import TINY_MODELS

from .make_architecture_table import BEGIN, COLUMNS, END, README

TABLE = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
ROWS = {
    name: (int(models), [float(cell) for cell in cells.split("|")])
    for name, models, cells in re.findall(r"^\| `(.*?)` \| (\d+) \| (.*) \|$", TABLE, re.MULTILINE)
}


def test_table_has_every_architecture_that_generates_with_its_models() -> None:
    models = [model.architecture for model in TINY_MODELS.values()]
    expected = {n: models.count(n) for n in architecture_names() if architecture(n).generates}

    assert {name: count for name, (count, _) in ROWS.items()} == expected


def test_distances_in_the_table_are_within_their_limits() -> None:
    for name, (_, cells) in ROWS.items():
        assert len(cells) == len(COLUMNS) + 1
        assert all(0 < cell < LIMITS.get(name, 1e-4) for cell in cells), name
