"""Graphs and parts as bytes: what is packed comes back, and other bytes are refused."""

import json
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.device import allocate, transfer
from tensorplug.device.part import Part, units
from tensorplug.device.wire import (
    pack_graph,
    pack_part,
    pack_places,
    unpack_graph,
    unpack_part,
    unpack_places,
)
from tensorplug.errors import FormatError, GraphError
from tensorplug.fusion.library import PATTERNS
from tensorplug.fusion.matching import find_groups
from tensorplug.graph.tensor import Place, Tensor, leaf
from tensorplug.planning.stages import arrange
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.cases.case import build
from tensorplug_testing.null import NullDevice
from tensorplug_testing.programs import GraphCode, programs
from tensorplug_testing.running import bind
from tensorplug_testing.tiers import select

MiB = 1 << 20
SAME = settings(max_examples=150, deadline=None, derandomize=True)


def graph_of(program: GraphCode) -> tp.Graph:
    tensors = program.build()
    effects = [tensors[i] for i in program.writes]
    return tp.Graph([tensors[i] for i in program.outputs], effects=effects)


def key_of(graph: tp.Graph) -> tuple[object, ...]:
    return Part.of(graph).key


class Buffers:
    """Buffers by number, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.known: dict[int, tp.Buffer] = {}

    def number(self, buffer: tp.Buffer) -> int:
        """The number of a buffer."""
        self.known[id(buffer)] = buffer
        return id(buffer)


def grouped(graph: tp.Graph, bindings: tp.Bindings) -> Part:
    """All of a graph with its groups, in stages."""
    groups = find_groups(graph, PATTERNS)
    stages = arrange(units([n for n in graph.nodes if not n.is_view], groups))
    nodes = [
        n for stage in stages for w in stage for n in (w.nodes if hasattr(w, "nodes") else (w,))
    ]
    return Part(nodes, bindings, outputs=graph.outputs, groups=groups, stages=stages)


# --- what comes back ---------------------------------------------------------------------------


@SAME
@given(programs())
def test_graph_comes_back_with_its_structure_and_its_results(program: GraphCode) -> None:
    graph = graph_of(program)

    again = unpack_graph(pack_graph(graph))

    assert key_of(again) == key_of(graph)
    assert [t.name for t in again.leafs] == [t.name for t in graph.leafs]
    assert len(again.effects) == len(graph.effects)
    values = program.stored(graph.leafs)
    same = {b: values[a] for a, b in zip(graph.leafs, again.leafs, strict=True) if a in values}
    for wanted, got in zip(results(graph, values), results(again, same), strict=True):
        np.testing.assert_array_equal(got, wanted)


def results(graph: tp.Graph, values: Mapping[Tensor, Any]) -> list[Any]:
    with CPUDevice("cpu:0") as device, device.open() as stream:
        bindings = bind(device, graph, values)
        stream.compute(Part.of(graph, bindings))
        found = [transfer.read(t, bindings) for t in graph.outputs]
        for buffer in {id(b): b for t in graph.leafs for b in [bindings.where(t).buffer]}.values():
            buffer.close()
        return found


def test_every_op_and_parameter_of_the_kit_comes_back() -> None:
    lost = []
    for case in select(tier="smoke"):
        graph = build(case).graph
        if any(callable(value) for node in graph.nodes for value in node.params.values()):
            continue
        if key_of(unpack_graph(pack_graph(graph))) != key_of(graph):
            lost.append(case.id)

    assert lost == []


@SAME
@given(programs())
def test_part_comes_back_with_groups_stages_and_places(program: GraphCode) -> None:
    graph, buffers = graph_of(program), Buffers()
    with NullDevice("null:0", kernels=ALL_KERNELS) as device:
        part = grouped(graph, bind(device, graph, {}))

        again = unpack_part(pack_part(part, buffers.number), buffers.known)

        assert again.key == part.key
        assert [len(stage) for stage in again.stages] == [len(stage) for stage in part.stages]
        for ours, theirs in zip(part.groups, again.groups, strict=True):
            assert {n: t.name or t.op for n, t in ours.tensors.items()} == {
                n: t.name or t.op for n, t in theirs.tensors.items()
            }
        for a, b in zip((*part.leafs, *part.nodes), (*again.leafs, *again.nodes), strict=True):
            assert part.bindings.where(a) == again.bindings.where(b)


def test_parts_of_a_schedule_over_two_devices_come_back_and_move() -> None:
    with (
        NullDevice("null:0", kernels={op: ALL_KERNELS[op] for op in ("mul_mat", "add")}) as first,
        NullDevice("host:0", host=True, kernels=ALL_KERNELS) as last,
        first.open() as fast,
        last.open() as slow,
        tp.Scheduler([fast, slow]) as scheduler,
    ):
        w = fast.place("w", np.eye(8, dtype=np.float32), usage=tp.WEIGHTS)
        x = tp.input("x", (4, 8), tp.F32)
        product = x @ w.T
        y = tp.soft_max(tp.relu(product)[1:] @ w.T + 1.0)
        with scheduler.schedule(y, pins={product: fast, y: slow}) as schedule:
            buffers = Buffers()
            parts = [plan.bound for batch in schedule._batches for plan in batch.plans]

            again = [unpack_part(pack_part(p, buffers.number), buffers.known) for p in parts]
            moved = [
                unpack_places(pack_places(p, buffers.number), q, buffers.known)
                for p, q in zip(parts, again, strict=True)
            ]

            assert len(parts) > 1
            assert [p.key for p in again] == [p.key for p in parts]
            for ours, theirs in zip(parts, moved, strict=True):
                for a, b in zip(ours.nodes, theirs.nodes, strict=True):
                    assert ours.bindings.where(a) == theirs.bindings.where(b)
            del parts, again, moved, buffers


def test_what_a_part_reads_from_outside_keeps_its_op_and_layout() -> None:
    x = tp.input("x", (4, 8), tp.F32)
    made = tp.relu(x)
    view = made.T[2:5]
    node = tp.cont(view)

    (again,) = unpack_part(pack_part(Part([node]), Buffers().number), {}).nodes

    source = again.sources[0]
    assert (source.op, source.nb, source.view_offset) == (view.op, view.nb, view.view_offset)
    assert (source.root.op, source.root.sources, source.root.is_leaf) == ("relu", (), False)


def test_a_graph_that_calls_a_function_is_not_packed() -> None:
    y = tp.map_custom1(tp.input("x", (4,), tp.F32), lambda out, a: None, name="called")

    with pytest.raises(GraphError) as error:
        pack_graph(tp.Graph(y))

    assert str(error.value) == f"pack: {y} calls a Python function, which cannot be packed"


# --- what does not ---------------------------------------------------------------------------


def example() -> bytes:
    """A packed part with a view, a write, a group and stages; it has memory of its own."""
    x, w = leaf("x", (4, 8), tp.F32), leaf("w", (8,), tp.F32)
    cache = leaf("cache", (6, 8), tp.F32)
    normed = tp.rms_norm(x) * w
    kept = tp.cpy(normed, cache[1:5])
    graph = tp.Graph(tp.soft_max(normed.T), effects=[kept])
    part = grouped(graph, tp.Bindings())
    assert part.groups
    return pack_part(part, Buffers().number)


def text_of(data: bytes) -> bytes:
    return data.split(b"\n", 1)[1]


def sealed(text: bytes, kind: str = "part") -> bytes:
    """A text with a header that is right."""
    return f"tensorplug wire 1 {kind} {len(text)} {zlib.crc32(text):08x}\n".encode() + text


def read(data: bytes) -> str:
    """Unpack a part; what is wrong with it, or nothing. It takes no more memory than it may."""
    tracemalloc.start()
    try:
        unpack_part(data, {})
    except FormatError as error:
        return str(error)
    else:
        return ""
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 128 * len(data) + MiB


EXAMPLE = example()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(EXAMPLE) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = bytearray(EXAMPLE)
    flipped[at] ^= 1 << bit

    assert read(bytes(flipped))
    assert read(EXAMPLE[:at])
    assert read(EXAMPLE + EXAMPLE[at:])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.data())
def test_changed_text_under_a_right_header_gives_a_format_error_or_a_part(
    data: st.DataObject,
) -> None:
    text = bytearray(text_of(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.sampled_from(b'0123456789-eE.,:[]{}"tfn'))

    read(sealed(bytes(text)))


NUMBERS = (0, 1, -1, 7, 1 << 31, 1 << 63, 10**40, 1.5, float("inf"), float("nan"))
OTHERS = ("", "x", "relu", "f16", "q4_0", None, True, [], [0], [[]], {}, {"x": 1}, [1 << 62] * 4)
VALUES = st.sampled_from([*NUMBERS, *OTHERS])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.data())
def test_other_values_anywhere_give_a_format_error_or_a_part(data: st.DataObject) -> None:
    content = json.loads(text_of(EXAMPLE))
    spots: list[tuple[Any, Any]] = []
    waiting: list[Any] = [content]
    while waiting:
        here = waiting.pop()
        for key in here if isinstance(here, dict) else range(len(here)):
            spots.append((here, key))
            if isinstance(here[key], dict | list):
                waiting.append(here[key])
    for _ in range(data.draw(st.integers(1, 2))):
        here, key = spots[data.draw(st.integers(0, len(spots) - 1))]
        here[key] = data.draw(VALUES)

    read(sealed(json.dumps(content).encode()))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"tensors":' + b"[" * 100_000,
        b'{"tensors":[' + b"[]," * 30_000 + b"0]}",
        b'{"tensors":[' + b'{"":0},' * 30_000 + b"0]}",
        b'{"tensors":[' + b"1e9," * 30_000 + b"0]}",
        b'{"tensors":[' + b"9" * 100_000 + b"]}",
        b'{"tensors":["' + b"\xf0\x9f\x98\x80" * 30_000 + b'"]}',
        b'{"tensors":"\xff"}',
    ],
    ids=["deep", "deep list", "lists", "objects", "numbers", "digits", "text", "no text"],
)
def test_text_made_to_take_memory_is_refused(text: bytes) -> None:
    assert read(sealed(text))


def changed(**values: Any) -> bytes:
    """The example with other values at the top."""
    return sealed(json.dumps(json.loads(text_of(EXAMPLE)) | values).encode())


def number_of(op: str) -> int:
    records = json.loads(text_of(EXAMPLE))["tensors"]
    return next(i for i, record in enumerate(records) if record.get("op") == op)


def with_tensor(number: int, **values: Any) -> bytes:
    """The example with another record of one tensor."""
    records = json.loads(text_of(EXAMPLE))["tensors"]
    records[number] |= values
    return changed(tensors=records)


REFUSED = {
    "another version": (EXAMPLE.replace(b"wire 1", b"wire 2", 1), "has version 2, this tensorplug"),
    "another kind": (pack_graph(tp.Graph(tp.relu(leaf("x", (4,), tp.F32)))), "holds a graph, no"),
    "a cycle": (with_tensor(number_of("rms_norm"), **{"from": [number_of("mul")]}), "refers to"),
    "an unknown op": (with_tensor(number_of("mul"), op="mall"), "op: unknown op 'mall'; see"),
    "an unknown type": (with_tensor(0, dtype="f33"), "dtype: unknown type 'f33'"),
    "a parameter too deep": (
        with_tensor(number_of("rms_norm"), params={"eps": [[[[[0]]]]]}),
        "list is not a parameter",
    ),
    "a view beyond its root": (
        with_tensor(
            number_of("view"),
            params={"ne": [8, 4, 1, 1], "rank": 2, "nb": [4, 32, 128, 128], "offset": 96},
        ),
        "",
    ),
    "sizes that the op does not give": (
        with_tensor(number_of("rms_norm"), ne=[8, 5, 1, 1]),
        "its ne is [8, 4, 1, 1] here, but the sender had list",
    ),
    "a result in place that lies over no source": (
        with_tensor(number_of("mul"), in_place=True),
        "is in place, but over none of its sources; use the same version of tensorplug",
    ),
    "a node twice": (
        changed(nodes=json.loads(text_of(EXAMPLE))["nodes"] * 2),
        "a node is twice in the order of nodes",
    ),
    "nodes in a wrong order": (
        changed(nodes=json.loads(text_of(EXAMPLE))["nodes"][::-1]),
        "is computed before",
    ),
    "a leaf among the nodes": (changed(nodes=[0]), "but its sources are missing"),
    "an unknown pattern": (changed(groups=[["magic", {}]]), "of the pattern 'magic', which is not"),
    "a group that does not match": (
        changed(groups=[["norm_mul", {"x": 0}]]),
        "do not match its pattern",
    ),
    "too much work in stages": (
        changed(stages=[1, 1, 1, 1, 1]),
        "5 pieces of work in stages, 3 in the part",
    ),
    "too little work in stages": (changed(stages=[1]), "1 pieces of work in stages, 3 in the part"),
    "a buffer that is not there": (changed(places=[[0, 5, 0]]), "lies in buffer 5, which is not"),
    "a place of no tensor": (changed(places=[[99, 5, 0]]), "places: tensor is 99, not a number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_part_that_cannot_be_is_refused(name: str) -> None:
    data, problem = REFUSED[name]

    found = read(data)

    assert problem in found
    assert found.startswith("wire: ")


@pytest.mark.parametrize(
    ("offset", "problem"), [(1 << 20, "cannot lie at byte"), (1, "a multiple of")]
)
def test_place_outside_its_buffer_is_refused(null: NullDevice, offset: int, problem: str) -> None:
    buffer = null.buffer_type.alloc(64)
    x = leaf("x", (4,), tp.F32)
    part = Part([tp.relu(x)], tp.Bindings({x: Place(buffer, offset)}))

    with pytest.raises(FormatError, match=problem):
        unpack_part(pack_part(part, lambda _: 3), {3: buffer})


def test_tensor_computed_by_other_work_needs_only_its_bytes(
    null: NullDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tp.input("a", (4,), tp.F32) + tp.input("b", (4,), tp.F32)
    buffer = null.buffer_type.alloc(16)
    part = Part([tp.relu(made)], tp.Bindings({made: Place(buffer, 0)}))

    def with_scratch(tensor: Tensor) -> int:
        return tensor.nbytes + tensor.sources[0].nbytes

    monkeypatch.setattr(null.buffer_type, "_alloc_size", with_scratch)

    again = unpack_part(pack_part(part, lambda _: 3), {3: buffer})

    assert again.bindings.where(again.nodes[0].sources[0]) == Place(buffer, 0)


def test_place_in_a_closed_buffer_is_refused(null: NullDevice) -> None:
    (x,), memory = allocate([leaf("x", (4,), tp.F32)], null.buffer_type)
    data = pack_part(Part([tp.relu(x)]), lambda _: 3)
    assert x.place is not None
    buffer = x.place.buffer

    assert unpack_part(data, {3: buffer}).leafs[0].place == x.place
    memory.close()

    with pytest.raises(FormatError, match="lies in buffer 3, which is not open here"):
        unpack_part(data, {3: buffer})


def test_place_in_a_buffer_without_a_number_is_left_out(null: NullDevice) -> None:
    (x,), _ = allocate([leaf("x", (4,), tp.F32)], null.buffer_type)

    (found,) = unpack_part(pack_part(Part([tp.relu(x)]), lambda _: None), {}).leafs

    assert found.place is None
