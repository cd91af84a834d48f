"""Captured plans in other memory: the arguments of their graphs change; emulated."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tensorplug_cuda import graphs
from tensorplug_emulator import missing

X = np.arange(32, dtype=np.float32)
needs_emulator = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def captured(chain):
    """The plan of three launches, captured."""
    for _ in range(3):
        chain.plan.run()
    return chain


@needs_emulator
def test_graph_gets_arguments_in_other_memory(captured, machine):
    captured.stream.synchronize()
    captured.buffers[0].write(0, 0 * X)

    captured.plan.rebind(captured.bound())
    captured.plan.run()
    captured.stream.synchronize()

    assert (captured.result(1) == 30 * X).all()
    assert (captured.result(0) == 30 * X).all()
    assert (machine.captures, machine.graph_launches, machine.node_updates) == (1, 3, 3)


@needs_emulator
def test_launches_that_are_queued_keep_their_arguments(captured):
    captured.stream.synchronize()
    captured.buffers[0].write(0, 2 * X)
    captured.plan.run()

    captured.plan.rebind(captured.bound())
    captured.plan.run()
    captured.stream.synchronize()

    assert (captured.result(0) == 60 * X).all()
    assert (captured.result(1) == 30 * X).all()


@needs_emulator
def test_same_memory_changes_nothing(captured, machine):
    captured.plan.rebind(captured.plan.bound)

    assert captured.plan.captured
    assert machine.node_updates == 0


def lacking(*_):
    raise RuntimeError('Function "cuGraphKernelNodeGetParams" not found')


@needs_emulator
@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("cuGraphExecKernelNodeSetParams", lambda *_: (1,)),
        ("cuGraphKernelNodeGetParams", lacking),
    ],
    ids=["the driver refuses", "the driver lacks a function"],
)
def test_graph_that_cannot_be_changed_is_captured_anew(
    captured, machine, monkeypatch, function, answer
):
    monkeypatch.setattr(graphs.driver, function, answer)

    captured.plan.rebind(captured.bound())
    ready = captured.plan.captured
    for _ in range(3):
        captured.plan.run()
    captured.stream.synchronize()

    assert not ready
    assert machine.captures == 2
    assert (captured.result(1) == 30 * X).all()


@needs_emulator
def test_without_cuda_bindings_a_plan_in_other_memory_is_captured_anew(chain, machine, monkeypatch):
    monkeypatch.setattr(graphs, "driver", None)
    for _ in range(3):
        chain.plan.run()

    chain.plan.rebind(chain.bound())
    ready = chain.plan.captured
    for _ in range(3):
        chain.plan.run()
    chain.stream.synchronize()

    assert not ready
    assert machine.captures == 2
    assert [(chain.result(i) == 30 * X).all() for i in (0, 1)] == [True, True]


REAL = """
import json
try:
    from cuda.bindings import driver
except ImportError:
    print("null")
    raise SystemExit
made, known = driver.CUDA_KERNEL_NODE_PARAMS(), {}
known["fields"] = [n for n in dir(made) if not n.startswith("_")]
made.kernelParams = 4096
known["address"] = made.kernelParams
try:
    made.kernelParams = 1.5
except TypeError as error:
    known["other types"] = str(error)
kinds = (driver.CUgraph, driver.CUgraphExec, driver.CUgraphNode, driver.CUstream)
known["handles"] = [int(kind(5)) for kind in kinds]
known["success"] = int(driver.CUresult.CUDA_SUCCESS)
names = ("cuGraphKernelNodeGetParams", "cuStreamGetCaptureInfo", "cuGraphExecKernelNodeSetParams")
known["signatures"] = [getattr(driver, name).__doc__.splitlines()[0] for name in names]
known["returns"] = [
    [line.split(" : ")[0] for line in text.split("Returns\\n-------")[1].splitlines()
     if " : " in line and not line.startswith(" ")]
    for text in (getattr(driver, name).__doc__ for name in names)
]
print(json.dumps(known))
"""


@pytest.mark.long
def test_stand_in_has_the_shapes_of_the_installed_cuda_bindings():
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=True)
    real = json.loads(done.stdout)
    if real is None:
        pytest.skip("cuda-bindings is not installed")

    ours = [n for n in dir(graphs.driver.CUDA_KERNEL_NODE_PARAMS()) if not n.startswith("_")]
    assert set(ours) <= set(real["fields"])
    assert (real["address"], real["handles"], real["success"]) == (4096, [5, 5, 5, 5], 0)
    assert real["other types"].startswith("Argument 'kernelParams' is not a valid type")
    assert real["signatures"] == [
        "cuGraphKernelNodeGetParams(hNode)",
        "cuStreamGetCaptureInfo(hStream)",
        "cuGraphExecKernelNodeSetParams(hGraphExec, hNode, CUDA_KERNEL_NODE_PARAMS nodeParams: "
        "Optional[CUDA_KERNEL_NODE_PARAMS])",
    ]
    parameters, info, _ = real["returns"]
    assert parameters[0] == "nodeParams"
    assert (info[3], info[-1]) == ("dependencies_out", "numDependencies_out")
