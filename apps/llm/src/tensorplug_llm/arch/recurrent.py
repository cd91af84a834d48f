"""Blocks of recurrent layers, which keep a state of fixed size for each text."""

from collections.abc import Callable

import tensorplug as tp
from tensorplug import Tensor
from tensorplug_llm.arch.architecture import Part, Pass, Slots
from tensorplug_llm.hparams import HParams, Recurrence

LARGE = 1e4
"""Before a softplus, as good as infinite."""


def recurrence_of(hp: HParams) -> Recurrence:
    """The recurrent layers of a model that has some."""
    assert hp.recurrence is not None
    return hp.recurrence


def by_part(p: Pass, x: Tensor, block: Callable[[Part, Tensor], Tensor]) -> Tensor:
    """What `block` makes of the tokens of each part, rows of `x`, one part after the other."""
    parts = p.inputs.parts
    found = [block(part, x[part.first : part.first + part.count]) for part in parts]
    return found[0] if len(found) == 1 else tp.concat(*found, axis=0)


def slots_of(part: Part) -> Slots:
    """The slots of a part."""
    assert part.slots is not None, "models with recurrent layers are told their slots"
    return part.slots


def convolved(p: Pass, layer: int, part: Part, x: Tensor, kernel: str) -> Tensor:
    """The causal convolution over time of rows `x` [channels, tokens of the part]: the same sizes.

    The last inputs stay for the next pass.
    """
    assert p.states is not None
    slots, table, channels = slots_of(part), p.states.past[layer], x.ne[0]
    past, texts = table.ne[0] // channels, slots.texts
    before = tp.reshape(tp.get_rows(table, slots.reads), (texts, past, channels))
    rows = tp.concat(before, tp.reshape(x, (texts, part.count // texts, channels)), axis=1)
    kept = tp.reshape(tp.get_rows(rows, slots.last), (texts, past * channels))
    p.writes.append(tp.set_rows(table, kept, slots.writes, name=f"{table.name}.write"))
    y = tp.ssm_conv(tp.cont(tp.permute(rows, (0, 2, 1))), p.weights[kernel], name=kernel)
    return tp.reshape(y, (part.count, channels))


def keep_state(p: Pass, layer: int, part: Part, state: Tensor) -> None:
    """Let the states [elements, texts] of a part stay for the next pass."""
    assert p.states is not None
    table = p.states.states[layer]
    writes = slots_of(part).writes
    rows = tp.reshape(state, (writes.ne[0], table.ne[0]))
    p.writes.append(tp.set_rows(table, rows, writes, name=f"{table.name}.write"))
