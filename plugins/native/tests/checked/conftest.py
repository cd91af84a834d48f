"""Recorded programs of the kit's cases: one by one, and several in one program."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import BufferType
from tensorplug_cpu.plan import looking
from tensorplug_native.backend import NativeBackend
from tensorplug_native.device import NativeDevice
from tensorplug_native.program import address
from tensorplug_native.rules import RULES
from tensorplug_testing.cases import SMALL
from tensorplug_testing.cases.case import Case
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.running import bind

from ..panel_cases import LOOKUPS, PRODUCTS  # noqa: TID252 - tests have no importable name
from .recording import Recording, recorded, recorded_case, written

LIMIT = 1e-7
"""Of the normalised mean square error with sums in f32."""
ROUNDED = 5e-4
"""The same where `x` is rounded: what the kit allows products."""
TOGETHER = 12


def recordings(
    device: NativeDevice,
    cases: Iterable[Case],
    activations: str = "f32",
    weights: BufferType | None = None,
) -> Iterator[Recording]:
    """What the cases give, as far as they are programs."""
    with device.open(threads=1, activations=activations) as backend:
        assert isinstance(backend, NativeBackend)
        for case in cases:
            laid = lay(case, device.buffer_type, weights=weights)
            laid.write_leafs()
            rounds = backend.activations == "int8" and case.op == "mul_mat"
            if rounds and case.compare == "not_finite":
                continue  # infinity and NaN are told apart by the program that replays
            found = recorded_case(laid, backend, ROUNDED if rounds else LIMIT)
            if found is not None:
                yield found


def chain(device: NativeDevice) -> Recording:
    """Nodes that each need the one before, in rows and in columns."""
    x = tp.input("x", (48, 256), tp.F32)
    data = np.random.default_rng(0).normal(size=(48, 256)).astype(np.float32)
    node, wanted = x, data
    for i in range(40):
        turn = i % 4 == 3
        node = tp.reshape(tp.cont(node.T), (48, 256)) if turn else node * 0.5 + x
        wanted = wanted.T.reshape(48, 256) if turn else wanted * 0.5 + data
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: data})
    with device.open(threads=1) as backend:
        found = recorded(tp.Part.of(graph, bindings), backend)
    assert found is not None
    found.expect(address(looking(bindings)(node).array), tp.F32, wanted, LIMIT)
    return found


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a program for each case; products also with `x` in eight bits, and panels."""
    path = tmp_path_factory.mktemp("programs") / "alone"
    products = [case for case in SMALL if case.op == "mul_mat"]
    with NativeDevice("cpu:0") as device, path.open("wb") as file:
        for found in (
            recordings(device, [case for case in SMALL if case.op in RULES]),
            recordings(device, products, "int8"),
            recordings(device, [*PRODUCTS, *LOOKUPS], "f32", device.panels),
            recordings(device, PRODUCTS, "int8", device.panels),
        ):
            file.writelines(written([recording]) for recording in found)
    return path


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with programs of several cases each, and of one long chain."""
    path = tmp_path_factory.mktemp("programs") / "together"
    with NativeDevice("cpu:0") as device, path.open("wb") as file:
        found = [*recordings(device, [case for case in SMALL if case.op in RULES])]
        # Of every n-th case, so that ops meet others.
        steps = -(-len(found) // TOGETHER)
        file.writelines(written(found[start::steps]) for start in range(steps))
        file.write(written([chain(device)]))
    return path
