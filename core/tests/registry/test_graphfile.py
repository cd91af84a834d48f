"""Graph files: what is saved comes back, and what is damaged says where."""

import json

import numpy as np
import pytest

import tensorplug as tp
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
    "views": with_views,
    "optional operands": with_optional_operands,
}


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_comes_back_with_its_structure(tmp_path, make):
    graph = make()

    graphfile.save(graph, tmp_path / "graph.json")
    again = graphfile.load(tmp_path / "graph.json")

    assert tp.Part.of(again).key == tp.Part.of(graph).key
    assert [t.name for t in (*again.leafs, *again.nodes)] == [
        t.name for t in (*graph.leafs, *graph.nodes)
    ]
    assert len(again.effects) == len(graph.effects)


def test_weights_get_memory_again_where_the_reader_wants_them(tmp_path, host):
    weights = tp.input("x", (4,), tp.F32)
    with NullDevice("null:0") as null, null.open() as backend:
        w = backend.place("w", np.ones(4, np.float32), usage=tp.WEIGHTS)
        graphfile.save(tp.Graph(weights + w), tmp_path / "graph.json")

    loaded = graphfile.load(tmp_path / "graph.json", memory=host.buffer_type)

    (placed,) = (leaf for leaf in loaded.leafs if leaf.name == "w")
    assert placed.storage.buffer.type is host.buffer_type
    assert placed.storage.buffer.usage is tp.WEIGHTS


GOOD = {
    "format": "tensorplug.graph.graph",
    "version": 1,
    "leafs": [{"name": "x", "dtype": "f32", "shape": [4], "role": "input"}],
    "nodes": [
        {
            "op": "relu",
            "name": "",
            "operands": [0],
            "params": {},
            "dtype": "f32",
            "shape": [4],
            "in_place": False,
        }
    ],
    "outputs": [1],
    "effects": [],
}


def changed(where, **fields):
    """The good content with other fields at the top, in the leaf or in the node."""
    content = json.loads(json.dumps(GOOD))
    {"top": content, "leaf": content["leafs"][0], "node": content["nodes"][0]}[where].update(fields)
    return json.dumps(content)


def test_the_good_content_is_good(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(GOOD))

    assert [node.op for node in graphfile.load(path).nodes] == ["relu"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "is not a saved graph; write one with tensorplug.inspect.graphfile.save"),
        ('{"format": "x"}', "is not a saved graph; write one with tensorplug.inspect.graphfile"),
        (
            changed("top", version=2),
            "has version 2, this tensorplug reads 1; pip install --upgrade tensorplug",
        ),
        (changed("top", nodes=None), "the file: nodes is None, not a list"),
        (changed("top", leafs=[3]), "a leaf is 3, not an object"),
        (changed("top", nodes=[{}]), "a node: op is None, not a str"),
        (changed("top", outputs=[2]), "refers to tensor 2 of 2"),
        (changed("top", outputs=[-1]), "refers to tensor -1 of 2"),
        (changed("top", outputs=["x"]), "refers to tensor 'x' of 2"),
        (changed("top", outputs=[]), "Graph: no outputs and no effects; there is nothing to"),
        (changed("leaf", shape=[-1]), "leaf 'x' has the shape [-1]"),
        (changed("leaf", shape=["a"]), "leaf 'x' has the shape ['a']"),
        (changed("leaf", shape=[1] * 5), "tensor 'x': 5 dimensions (1, 1, 1, 1, 1); at most 4"),
        (changed("leaf", shape=[1 << 70]), f"leaf 'x' of shape [{1 << 70}] has {4 << 70} bytes"),
        (changed("leaf", role="boss"), "leaf 'x' has the role 'boss'; roles are"),
        (changed("leaf", dtype="f33"), ""),
        (changed("node", op="rely"), "op: unknown op 'rely'; did you mean 'relu'?"),
        (changed("node", operands=[1]), "refers to tensor 1 of 1"),
        (changed("node", operands=[0, 0]), "relu: 2 sources given, at most 1 taken"),
        (changed("node", operands=[None]), "relu: source 'x' is missing"),
        (changed("node", params={"slope": 2}), "relu: unknown parameters ['slope']; known are []"),
        (changed("node", params={"slope": {}}), "{} is not a parameter"),
        (
            changed("node", shape=[5]),
            "relu '' gives f32[4], and the file says f32[5]; it was made by another version",
        ),
    ],
)
def test_a_damaged_file_says_what_is_wrong(tmp_path, text, problem):
    path = tmp_path / "graph.json"
    path.write_text(text)

    with pytest.raises(FormatError) as caught:
        graphfile.load(path)

    assert str(caught.value).startswith(f"graph file {str(path)!r}: {problem}")
