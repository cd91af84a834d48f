"""Recurrent layers that store their last states in a cache: parts of whole graphs."""

import tensorplug as tp
from tensorplug.device import Tensor
from tensorplug_testing.suites.drawing import Draw

SIZE, HEADS, TOKENS, SEQUENCES = 16, 3, 4, 2
ROW = SIZE * SIZE * HEADS
"""Elements of the states of one sequence."""


def kept_states(draw: Draw, slots: int, *, apart: bool = False) -> list[Tensor]:
    """A gated delta rule whose last states go to a cache; with `apart`, to rounded rows."""
    net = _net(draw, slots)
    results = TOKENS * SEQUENCES
    cache = draw.cache(2 * SEQUENCES * slots, ROW + 5 * apart, dtype=tp.F16 if apart else tp.F32)
    kept = tp.cpy(net[results:], cache[SEQUENCES : SEQUENCES + SEQUENCES * slots, :ROW])
    return [tp.rms_norm(net[:results]), kept]


def _net(draw: Draw, slots: int) -> Tensor:
    q, k, v = (draw.input(SEQUENCES, TOKENS, HEADS, SIZE) for _ in range(3))
    gates = draw.input(SEQUENCES, TOKENS, HEADS, 1, low=-1, high=0)
    beta = draw.input(SEQUENCES, TOKENS, HEADS, 1, low=0, high=1)
    state = draw.input(SEQUENCES, HEADS, SIZE, SIZE)
    return tp.gated_delta_net(tp.l2_norm(q), tp.l2_norm(k), v, gates, beta, state, K=slots)
