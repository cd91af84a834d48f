"""Rotary position embedding: a table of turns, and the turning."""

import math
from collections.abc import Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import I64
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_native.encode import Argument, Draft, optional, result, rule, source
from tensorplug_native.program import Code
from tensorplug_native.rules.common import dense_f32, own


@rule("rope")
def rope(task: Task) -> Sequence[Draft]:
    """Pairs turn by a table that nodes with the same positions and parameters share."""
    params = task.node.params
    if params["mode"] not in ("normal", "neox") or params["offset"]:
        return []
    if not dense_f32(task, "x", "factors"):
        return []
    table, drafts = turning(task)
    halves = int(params["mode"] == "neox")
    sources = (source(task, "x"), table)
    return [*drafts, Draft(Code.ROPE, result(task), sources, integers=(halves,))]


def turning(task: Task) -> tuple[Argument, list[Draft]]:
    """The table of turns of a rope, and what computes it where no node before it does."""
    factors = task.source("factors") if task.get("factors") is not None else None
    key = (
        "native rope",
        tuple(task.node.params.items()),
        task.tools.version(task.source("positions")),
        None if factors is None else task.tools.version(factors),
    )
    table, drafts = task.tools.shared.get(key), []
    if table is None:
        table, draft = _rope_table(task)
        task.tools.shared[key] = table
        drafts.append(draft)
    return table, drafts


def _rope_table(task: Task) -> tuple[Argument, Draft]:
    rates, size = _rope_rates(task)
    table = own((1, task.node.ne[2], len(rates), 2))
    sources = (source(task, "positions"), _argument_of(rates), optional(task, "factors"))
    return table, Draft(Code.ROPE_TABLE, table, sources, (size,))


def _rope_rates(task: Task) -> tuple[Array, float]:
    """Angles for each position, f64 [pairs], and the length of a turned pair (Peng et al. 2023)."""
    dims, base = task.integer("dims"), task.number("base")
    scale, extension, size = (task.number(n) for n in ("scale", "ext_factor", "attn_factor"))
    pairs = np.arange(dims // 2)
    rates = base ** (-2.0 / dims * pairs)
    if not extension:
        return rates * scale, size
    context = task.integer("original_context")

    def turns(n: float) -> float:
        return dims * math.log(context / (n * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(turns(task.number("beta_fast"))))
    high = min(dims - 1, math.ceil(turns(task.number("beta_slow"))))
    mix = (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)) * extension
    return rates * (scale * (1 - mix) + mix), size * (1 + 0.1 * math.log(1 / scale))


def _argument_of(numbers: Array) -> Argument:
    """f64 numbers that the plan keeps."""
    return Argument(Operand(numbers.reshape(1, 1, 1, -1), I64), len(numbers))
