"""A stranger's op: inference, effects, reference, split rule and cases in one distribution."""

import json
import subprocess
import sys

import pytest

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-ops"
version = "1.2"
requires-python = ">=3.11"
dependencies = ["tensorplug>=0.2,<0.3"]

[project.entry-points."tensorplug.ops"]
acme = "acme_ops"
"""

MODULE = '''
"""`acme.snake`: x + sin(a * x)**2 / a, an activation that knows periods."""

import numpy as np

from tensorplug.dtypes import F32
from tensorplug.ops.rules import always, same_shape_as
from tensorplug.ops.split import aligned
from tensorplug.ops.table import Op, Param, Source, apply, register_op


def _cases():
    from tensorplug_testing.cases import Arg, Case

    return [
        Case(op="acme.snake", args=(Arg((7, 5, 3, 2), layout=layout),), params={"a": a})
        for layout in ("plain", "permuted", "rows")
        for a in (0.5, 2.0)
    ]


def _reference(p, x):
    return x + np.sin(p["a"] * x) ** 2 / p["a"]


SNAKE = register_op(
    Op(
        "acme.snake",
        sources=(Source("x", frozenset({F32})),),
        params=(Param("a", float, default=1.0),),
        shape=same_shape_as("x"),
        dtype=always(F32),
        in_place=("x",),
        split=aligned("x"),
        reference=_reference,
        cases=_cases,
        formula="y = x + sin(a * x)**2 / a",
        origin="Liu et al. 2020, arXiv:2006.08195",
    )
)


def snake(x, *, a=1.0, name=""):
    """The activation of each element of `x`, f32."""
    return apply(SNAKE, x, a=a, name=name)
'''

PROGRAM = """
import json

import numpy as np

import tensorplug as tp
from tensorplug_testing.null import NullDevice

report = tp.load_all()
from acme_ops import snake

x = tp.input("x", (2, 3), tp.F32)
with NullDevice("null:0").open() as fast, tp.open("cpu") as slow:
    w = fast.place("w", np.eye(3, dtype=np.float32), usage=tp.WEIGHTS)
    y = snake(x @ w.T, a=2.0) @ w.T
    with tp.Scheduler([fast, slow]).schedule(y) as schedule:
        values = schedule.run({x: np.full((2, 3), 0.25, np.float32)})[y]
        nodes = schedule.explain().to_json()["nodes"]
print(json.dumps({"values": values.tolist(), "nodes": nodes, "notes": list(report.notes)}))
"""


@pytest.fixture(scope="module")
def acme_ops(tmp_path_factory):
    """The wheel of the op's distribution."""
    folder = tmp_path_factory.mktemp("acme_ops")
    (folder / "acme_ops").mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "acme_ops" / "__init__.py").write_text(MODULE)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


def test_scheduler_kit_and_fallback_treat_a_foreign_op_like_ours(environment, kit, acme_ops):
    environment.install(*kit, acme_ops)

    told = json.loads(environment.output("python", "-c", PROGRAM))
    listed = json.loads(environment.output("tensorplug", "ops", "--json"))["ops"]
    tested = json.loads(
        environment.output(
            *("tensorplug", "test", "--device", "cpu", "-o", "acme.snake"),
            *("--tier", "full", "--json"),
        )
    )

    assert told["notes"] == []
    assert told["values"][0][0] == pytest.approx(0.25 + 0.5 * 0.22984885, rel=1e-5)
    assert [node["device"] for node in told["nodes"]] == ["null:0", "cpu:0", "null:0"]
    assert next(op for op in listed if op["name"] == "acme.snake")["splits"]
    assert tested["summary"] | {"device": "cpu:0", "passed": 6, "failed": 0} == tested["summary"]
