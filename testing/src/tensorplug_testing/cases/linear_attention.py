"""Cases of linear attention: heads, tokens, sequences, gates, kept states, layouts."""

import itertools
import math

from tensorplug_testing.cases.case import UNIT, Arg, Case, Data, uniform
from tensorplug_testing.cases.ssm import Layouts, laid

DECAY = uniform(0, 1)
_PLAIN: Layouts = {}


def _short(size: int) -> Data:
    """Vectors of `size` elements with a length near 1, so that states do not grow without limit."""
    edge = round(math.sqrt(3 / size), 3)
    return uniform(-edge, edge)


def _case(op: str, tokens: dict[str, Data], sizes: tuple[int, ...], layouts: Layouts) -> Case:
    """A use of `op` with sources `tokens`; `sizes` are size, heads, tokens, sequences."""
    size, heads, length, sequences = sizes
    sources = {
        name: Arg((size, heads) if name == "tf" else (size, heads, length * sequences), data=data)
        for name, data in tokens.items()
    }
    sources["state"] = Arg((size * size * heads, sequences))
    params = {"scale": 0.125} if op == "gated_linear_attn" else {}
    return Case(op=op, args=laid(sources, layouts), params=params)


def rwkv_wkv6(sizes: tuple[int, ...], layouts: Layouts = _PLAIN) -> Case:
    """`rwkv_wkv6` of size, heads, tokens of each sequence, sequences."""
    sources = {"k": UNIT, "v": UNIT, "r": UNIT, "tf": UNIT, "td": DECAY}
    return _case("rwkv_wkv6", sources, sizes, layouts)


def rwkv_wkv7(sizes: tuple[int, ...], layouts: Layouts = _PLAIN) -> Case:
    """`rwkv_wkv7` of size, heads, tokens of each sequence, sequences."""
    short = _short(4 * sizes[0])
    sources = {"r": UNIT, "w": DECAY, "k": UNIT, "v": UNIT, "a": short, "b": short}
    return _case("rwkv_wkv7", sources, sizes, layouts)


def gated_linear_attn(sizes: tuple[int, ...], layouts: Layouts = _PLAIN) -> Case:
    """`gated_linear_attn` of size, heads, tokens of each sequence, sequences."""
    return _case("gated_linear_attn", {"k": UNIT, "v": UNIT, "q": UNIT, "g": DECAY}, sizes, layouts)


SIZES = [
    (64, 4, 1, 1),
    (64, 4, 32, 1),
    (64, 4, 8, 4),
    (64, 2, 32, 4),
    (64, 1, 3, 2),
    (128, 2, 4, 2),
    (32, 3, 5, 2),
    (16, 2, 0, 2),
    (5, 3, 4, 3),
    (1, 7, 3, 2),
    (1, 1, 1, 1),
]
LAYOUTS: list[Layouts] = [
    {"k": "permuted", "v": "permuted", "r": "permuted", "q": "permuted", "td": "permuted"},
    {"k": "rows", "v": "columns", "r": "columns", "q": "columns", "w": "rows", "g": "rows"},
    {"k": "transposed", "v": "transposed", "a": "transposed", "b": "rows", "tf": "rows"},
    {"v": "shifted", "tf": "columns", "a": "columns", "state": "columns"},
    {"tf": "transposed", "td": "rows", "w": "transposed", "g": "columns", "state": "rows"},
]
RECURRENCES = [
    make(sizes)
    for make, sizes in itertools.product((rwkv_wkv6, rwkv_wkv7, gated_linear_attn), SIZES)
]
LAID = [
    make((64, 3, 4, 2), layouts)
    for make, layouts in itertools.product((rwkv_wkv6, rwkv_wkv7, gated_linear_attn), LAYOUTS)
]


def gated_delta_net(
    sizes: tuple[int, ...] = (16, 4, 5, 2),
    *,
    gates: bool = False,
    shared: tuple[int, int] = (1, 1),
    params: dict[str, int] | None = None,
    layouts: Layouts = _PLAIN,
) -> Case:
    """`gated_delta_net` of size, heads, tokens, sequences; with `gates`, each element has a gate.

    `shared` has the numbers of heads of v, and of sequences, that share one of q and k.
    """
    size, heads, tokens, sequences = sizes
    few = (size, heads // shared[0], tokens, sequences // shared[1])
    sources = {
        "q": Arg(few),
        "k": Arg(few, data=_short(size)),
        "v": Arg(sizes),
        "g": Arg((size if gates else 1, heads, tokens, sequences), data=uniform(-1, 0)),
        "beta": Arg((1, heads, tokens, sequences), data=DECAY),
        "state": Arg((size, size, heads, sequences)),
    }
    return Case(op="gated_delta_net", args=laid(sources, layouts), params=params or {})


DELTA_NETS = [
    *[
        gated_delta_net(sizes, gates=gates, shared=(repeat, 1))
        for gates, (sizes, repeat) in itertools.product(
            (False, True),
            [
                ((128, 2, 1, 1), 1),
                ((64, 2, 4, 2), 1),
                ((32, 4, 1, 2), 2),
                ((32, 4, 16, 1), 2),
                ((16, 6, 5, 2), 3),
                ((16, 8, 2, 3), 8),
                ((128, 4, 3, 1), 2),
                ((7, 3, 6, 2), 1),
                ((16, 2, 65, 1), 1),
                ((16, 4, 0, 2), 2),
            ],
        )
    ],
    *[
        gated_delta_net((16, 4, tokens, 2), gates=gates, params={"K": k})
        for gates, (tokens, k) in itertools.product(
            (False, True), [(5, 2), (5, 5), (4, 3), (1, 1), (3, 7), (0, 2)]
        )
    ],
    gated_delta_net((1, 2, 3, 1), shared=(2, 1)),
    gated_delta_net((1, 1, 1, 1)),
    gated_delta_net((16, 4, 5, 4), shared=(2, 2)),
    gated_delta_net((16, 4, 5, 6), gates=True, shared=(1, 3)),
    *[
        gated_delta_net((16, 4, 5, 2), gates=gates, layouts=layouts)
        for gates, layouts in itertools.product(
            (False, True),
            [
                {"q": "permuted", "k": "permuted", "v": "permuted"},
                {"q": "columns", "k": "rows", "v": "columns", "g": "permuted", "beta": "permuted"},
                {"q": "transposed", "g": "rows", "beta": "columns", "state": "permuted"},
                {"k": "shifted", "v": "rows", "g": "columns", "state": "transposed"},
            ],
        )
    ],
]

CASES = [*RECURRENCES, *LAID, *DELTA_NETS]
