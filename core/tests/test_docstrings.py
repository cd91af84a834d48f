"""Every public name of `tensorplug` has a docstring with an example, and the examples are true.

Examples take `import numpy as np` and `import tensorplug as tp` for granted.
"""

import doctest
import importlib

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.ops.table import OPS

LATER = ("input", "open", "abs", "round", "set", "sum")
"""Public names that `from tensorplug import *` leaves out, because a builtin has them."""
NAMES = sorted({*tp.__all__, *tp.ops.__all__, *LATER})
IN_MODULE = {"OPS": "tensorplug.ops.table", "hookimpl": "tensorplug.registry.hooks"}
"""Objects that cannot have a docstring of their own: that of their module has the example."""


def documented(name: str) -> object:
    """The object whose docstring describes the public name."""
    if name in IN_MODULE:
        return importlib.import_module(IN_MODULE[name])
    found = getattr(tp, name)
    described = callable(found) or isinstance(found, type(tp))
    return found if described else type(found)  # of a constant its class


@pytest.fixture
def table_of_ops():
    """Ops that an example registers leave the table again."""
    before = dict(OPS)
    yield
    for name in OPS.keys() - before.keys():
        del OPS[name]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_of_a_public_name_has_a_true_example(name, table_of_ops, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = documented(name).__doc__ or ""
    example = doctest.DocTestParser().get_doctest(text, {"np": np, "tp": tp}, name, None, None)
    told = []

    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)

    assert example.examples, f"tp.{name}: its docstring has no example"
    assert not told, "".join(told)
