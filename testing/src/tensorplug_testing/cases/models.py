"""Nodes of real language models, with their sizes and strides.

`models.json` is written by `apps/llm/tests/make_op_lists.py` from the graphs of SmolLM2-135M and
Gemma 3 270M for one, five and sixteen tokens.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import tensorplug as tp
from tensorplug_testing.cases import attention, matmul, rope
from tensorplug_testing.cases.case import UNIT, Arg, Case, Data, distinct, integers
from tensorplug_testing.cases.softmax import MASK


def _case(entry: dict[str, Any]) -> Case:
    op, sources = entry["op"], entry["sources"]
    params = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["params"].items()}
    names = [source.name for source in tp.OPS[op].sources]
    args = [
        None if source is None else _arg(source, _data(op, name, sources))
        for name, source in zip(names, sources, strict=False)
    ]
    return Case(op=op, args=tuple(args), params=params, **_JUDGED.get(op, {"limit": 1e-6}))


_JUDGED: Mapping[str, Mapping[str, Any]] = {
    "mul_mat": {"compare": "product"},
    "mul_mat_id": {"compare": "product"},
    "flash_attn_ext": {"limit": attention.LIMIT, "rounded": matmul.ROUNDED},
    "rope": {"limit": rope.LIMIT},
}


def _arg(source: dict[str, Any], data: Data) -> Arg:
    dtype, ne = tp.dtype(source["type"]), tuple(source["ne"])
    if "nb" not in source:
        return Arg(ne, dtype, data=data)
    return Arg(ne, dtype, "strided", data, tuple(source["nb"]))


def _data(op: str, name: str, sources: list[Any]) -> Data:
    """Values that are valid for the op: rows that exist, masks."""
    if name == "mask":
        return MASK
    if name == "positions":
        return integers(0, 500)
    if name == "ids":
        rows = sources[0]["ne"][1]
        return distinct(rows) if op == "set_rows" else integers(0, rows)
    return UNIT


def _load() -> list[Case]:
    text = (files("tensorplug_testing.cases") / "models.json").read_text(encoding="utf-8")
    entries = [entry for model in json.loads(text).values() for entry in model]
    return list({case.id: case for case in map(_case, entries)}.values())


CASES = _load()
