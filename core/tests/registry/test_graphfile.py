"""Graph files: what is saved comes back, and what is damaged says where."""

import json
import zlib

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device.wire import pack_graph
from tensorplug.errors import FormatError
from tensorplug.inspect import graphfile
from tensorplug_testing.null import NullDevice


def network():
    x = tp.input("x", (2, 4), tp.F32)
    w = tp.input("w", (3, 4), tp.F32)
    hidden = tp.relu(x @ w.T).named("hidden")
    return tp.soft_max(tp.scale(hidden, 0.1)), hidden


def with_effects():
    cache = tp.input("cache", (8, 4), tp.F32)
    rows = tp.input("rows", (2,), tp.I64)
    write = tp.set_rows(cache, tp.input("new", (2, 4), tp.F32), rows)
    return tp.Graph(tp.sum_rows(write[2:6] + cache[2:6]), effects=[write])


def with_in_place():
    x = tp.input("x", (4,), tp.F32)
    return tp.Graph(tp.in_place(tp.relu(x + x)))


def with_in_place_over_the_second_source():
    x = tp.input("x", (4, 4), tp.F32)
    return tp.Graph(tp.in_place(x.T - x))


def with_views():
    x = tp.input("x", (2, 3, 4), tp.F16)
    return tp.Graph([tp.permute(x, (0, 2, 1)), tp.cont(x.reshape(6, 4)[1:3]), x.mT])


def with_optional_operands():
    q, k, v = (tp.input(name, (1, 2, 4, 8), tp.F32) for name in "qkv")
    return tp.Graph(tp.flash_attn_ext(q, k, v, None, scale=0.5))


GRAPHS = {
    "network": lambda: tp.Graph(network()),
    "effects": with_effects,
    "in-place": with_in_place,
    "in-place over the second source": with_in_place_over_the_second_source,
    "views": with_views,
    "optional operands": with_optional_operands,
}


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_comes_back_with_its_structure(tmp_path, make):
    graph = make()

    graphfile.save(graph, tmp_path / "x.graph")
    again = graphfile.load(tmp_path / "x.graph")

    assert tp.Part.of(again).key == tp.Part.of(graph).key
    assert [t.name for t in (*again.leafs, *again.nodes)] == [
        t.name for t in (*graph.leafs, *graph.nodes)
    ]
    assert len(again.effects) == len(graph.effects)


def test_weights_get_memory_again_where_the_reader_wants_them(tmp_path, host):
    weights = tp.input("x", (4,), tp.F32)
    with NullDevice("null:0") as null, null.open() as backend:
        w = backend.place("w", np.ones(4, np.float32), usage=tp.WEIGHTS)
        graphfile.save(tp.Graph(weights + w), tmp_path / "x.graph")

    loaded = graphfile.load(tmp_path / "x.graph", memory=host.buffer_type)

    (placed,) = (leaf for leaf in loaded.leafs if leaf.name == "w")
    assert placed.place.buffer.type is host.buffer_type
    assert placed.place.buffer.usage is tp.WEIGHTS


GOOD = json.loads(pack_graph(tp.Graph(tp.relu(tp.input("x", (4,), tp.F32)))).split(b"\n", 1)[1])


def sealed(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"tensorplug wire 1 graph {len(text)} {zlib.crc32(text):08x}\n".encode() + text


def changed(where, **fields):
    """The good content with other fields at the top, in the leaf or in the node."""
    content = json.loads(json.dumps(GOOD))
    leaf, node = content["tensors"]
    {"top": content, "leaf": leaf, "node": node}[where].update(fields)
    return sealed(content)


def test_the_good_content_is_good(tmp_path):
    path = tmp_path / "x.graph"
    path.write_bytes(sealed(GOOD))

    assert [node.op for node in graphfile.load(path).nodes] == ["relu"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not a graph that tensorplug packed"),
        (b"[]", "is not a graph that tensorplug packed"),
        (sealed(b""), "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (sealed(b"[" * 100_000), "is not JSON: "),
        (sealed(b"[]"), "is not a JSON object"),
        (sealed(GOOD)[:-1], "is damaged: "),
        (sealed(GOOD) + b" ", "is damaged: "),
        (sealed(GOOD)[:-1] + b" ", "is damaged: its checksum is wrong; write it again"),
        (
            sealed(GOOD).replace(b"wire 1", b"wire 2"),
            "has version 2, this tensorplug reads 1; pip install --upgrade tensorplug",
        ),
        (changed("top", tensors=None), "the text: tensors is None, not a list"),
        (changed("top", tensors=[3]), "tensor 0 is 3, not an object"),
        (changed("top", tensors=[{}]), "tensor 0: its name is None, not a text"),
        (changed("top", outputs=[2]), "outputs refers to tensor 2 of 2"),
        (changed("top", outputs=[-1]), "outputs refers to tensor -1 of 2"),
        (changed("top", outputs=["x"]), "outputs refers to tensor 'x' of 2"),
        (changed("top", outputs=[]), "Graph: no outputs and no effects; there is nothing to"),
        (changed("leaf", ne=[-1, 1, 1, 1]), "tensor 0: ne is -1, not a number from 0 to"),
        (changed("leaf", ne=["a", 1, 1, 1]), "tensor 0: ne is 'a', not a number from 0 to"),
        (changed("leaf", ne=[1] * 5), "tensor 0: ne has 5 numbers, not 4"),
        (changed("leaf", ne=[1 << 70, 1, 1, 1]), f"tensor 0: ne is {1 << 70}, not a number from 0"),
        (changed("leaf", ne=[1 << 61, 1, 1, 1]), "tensor 0 <Tensor 'x', none, f32"),
        (changed("leaf", rank=0), "tensor 0 <Tensor 'x', none, f32"),
        (changed("leaf", role="boss"), "tensor 0 has the role 'boss'; roles are"),
        (changed("leaf", dtype="f33"), "dtype: unknown type 'f33'; did you mean"),
        (changed("node", op="rely"), "op: unknown op 'rely'; did you mean 'relu'?"),
        (changed("node", **{"from": [1]}), "tensor 1 refers to tensor 1 of 1"),
        (changed("node", **{"from": [0, 0]}), "relu: 2 sources given; the op takes at most 1"),
        (changed("node", **{"from": [None]}), "relu: source 'x' is missing"),
        (changed("node", params={"slope": 2}), "relu: unknown parameters ['slope']; known are []"),
        (changed("node", params={"slope": {}}), "tensor 1: dict is not a parameter"),
        (changed("node", params={"name": "x"}), "tensor 1: name is not a parameter"),
        (changed("node", rank=2), "tensor 1, <Tensor"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(tmp_path, data, problem):
    path = tmp_path / "x.graph"
    path.write_bytes(data)

    with pytest.raises(FormatError) as caught:
        graphfile.load(path)

    assert str(caught.value).startswith(f"graph file {str(path)!r}: {problem}")


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FormatError, match="cannot be read: No such file or directory"):
        graphfile.load(tmp_path / "none")


@pytest.mark.parametrize("place", ["none/x.graph", "."])
def test_a_file_that_cannot_be_written_says_so(tmp_path, place):
    x = tp.input("x", (2,), tp.F32)

    with pytest.raises(FormatError, match=r"^graph file '.*': cannot be written: "):
        graphfile.save(tp.Graph(x + x), tmp_path / place)

    assert not list(tmp_path.iterdir())
