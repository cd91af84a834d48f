"""Writes the ops of real models' graphs as cases for the conformance kit.

    python apps/llm/tests/make_op_lists.py testing/src/tensorplug_testing/cases/models.json

It needs the packages of both models. An entry is one use of an op: its parameters, and type, sizes
and strides of each source as it lies in the graph; equal uses are written once. Tables with as
many rows as the vocabulary are cut: the count of rows changes nothing but the time.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tensorplug as tp
from tensorplug_llm import find_model, load_model
from tensorplug_llm.testing import LoneText

MODELS = ("smollm2-135m", "gemma3-270m")
LENGTHS = (1, 16)
"""Tokens of the passes: one decodes, the other reads a prompt."""
MOST_ROWS = 2048


def graphs_of(name: str) -> list[tp.Graph]:
    """The graphs that a model plans for passes of some lengths."""
    found: list[tp.Graph] = []
    schedule = tp.Scheduler.schedule

    def recorded(scheduler: tp.Scheduler, graph: Any, **options: Any) -> Any:
        found.append(graph)
        return schedule(scheduler, graph, **options)

    path = find_model(name)
    with (
        patch.object(tp.Scheduler, "schedule", recorded),
        tp.open("cpu") as backend,
        load_model(path, [backend], weights="mapped") as model,
    ):
        for length in LENGTHS:
            with LoneText(model, 64, kv=tp.F32) as text:
                text.prefill([1] * length)
                text.decode(1)
    return found


def entry(node: tp.Tensor) -> dict[str, Any]:
    """One use of an op as data."""
    return {
        "op": node.op,
        "params": dict(node.params),
        "sources": [None if t is None else source(t) for t in node.operands],
    }


def source(tensor: tp.Tensor) -> dict[str, Any]:
    """What the op sees: type, sizes, strides; the largest tables cut."""
    ne = list(tensor.ne)
    ne[1] = min(ne[1], MOST_ROWS)
    plain = tensor.is_contiguous or ne[1] != tensor.ne[1]
    return {"type": tensor.dtype.name, "ne": ne, **({} if plain else {"nb": list(tensor.nb)})}


def op_list(name: str) -> list[dict[str, Any]]:
    """All different uses of ops in the graphs of a model."""
    nodes = [n for g in graphs_of(name) for n in g.nodes if not n.is_view]
    return list({json.dumps(e): e for e in map(entry, nodes)}.values())


if __name__ == "__main__":
    lists = {name: op_list(name) for name in MODELS}
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(e) for e in entries) + "\n]"
        for name, entries in lists.items()
    ]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")
