"""Cases of position scores and of residual streams: types, shapes, rounds, layouts."""

import itertools

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, uniform
from tensorplug_testing.cases.elementwise import REAL
from tensorplug_testing.cases.matmul import BLOCKS
from tensorplug_testing.cases.softmax import MASK, MASK_TYPES
from tensorplug_testing.cases.ssm import Layouts, laid

_PLAIN: Layouts = {}


def indexer(
    sizes: tuple[int, ...] = (32, 4, 3, 9, 2),
    kind: tp.DType = tp.F32,
    *,
    mask: tp.DType = tp.F16,
    masks: int = 1,
    layouts: Layouts = _PLAIN,
    **given: Arg,
) -> Case:
    """`lightning_indexer` with keys of type `kind` and `masks` masks; `given` replaces sources.

    `sizes` are size, heads, tokens, positions, batch.
    """
    size, heads, tokens, positions, batch = sizes
    sources = {
        "q": Arg((size, heads, tokens, batch)),
        "k": Arg((size, 1, positions, batch), kind),
        "weights": Arg((heads, tokens, 1, batch)),
        "mask": Arg((positions, tokens, 1, masks), mask, data=MASK),
    }
    return Case(op="lightning_indexer", args=laid(sources | given, layouts), limit=1e-6)


_KEYS = ("plain", "rows", "columns", "shifted")
INDEXERS = [
    *[
        indexer((256, 4, *rest), kind)
        for kind, rest in itertools.product(
            (*REAL, tp.F64, *BLOCKS), [(1, 7, 1), (3, 9, 2), (5, 33, 1)]
        )
    ],
    *[
        indexer(sizes, kind)
        for kind in (tp.F32, tp.F16, tp.Q8_0)
        for sizes in [
            (128, 64, 1, 256, 1),
            (128, 64, 8, 96, 1),
            (64, 1, 5, 17, 3),
            (32, 3, 1, 1, 1),
            (96, 7, 6, 65, 2),
            (32, 8, 2, 300, 1),
            (32, 64, 20, 300, 1),
            (64, 1, 3, 5000, 1),
        ]
    ],
    *[
        indexer((33, 5, 4, 11, batch), kind, mask=mask, masks=masks)
        for kind, mask, (batch, masks) in itertools.product(
            (tp.F32, tp.F16), MASK_TYPES, [(1, 1), (4, 1), (4, 2), (4, 4)]
        )
    ],
    *[
        indexer(kind=kind, layouts={"k": layout})
        for kind, layout in itertools.product((tp.F32, tp.F16, tp.BF16, tp.Q8_0), _KEYS[1:])
    ],
    *[
        indexer((32, 4, 3, 9, 4), masks=2, layouts=layouts)
        for layouts in [
            {"q": "permuted", "weights": "permuted", "k": "permuted"},
            {"q": "columns", "weights": "columns", "mask": "columns"},
            {"q": "rows", "weights": "rows", "mask": "rows"},
            {"q": "transposed", "weights": "transposed", "mask": "transposed"},
            {"k": "transposed", "mask": "permuted", "weights": "shifted"},
        ]
    ],
    indexer((1, 1, 1, 1, 1)),
    indexer((32, 4, 3, 0, 2)),
    indexer((32, 0, 3, 9, 1)),
    indexer(q=Arg((32, 4, 3, 2), data=uniform(-1e9, 1e9)), weights=Arg((4, 3, 1, 2))),
    indexer(weights=Arg((4, 3, 1, 2), data=uniform(-1, -0.5))),
]


def comb(
    streams: int = 4,
    tokens: int = 5,
    *,
    eps: float = 1e-6,
    n_iter: int = 20,
    reach: float = 3,
    layouts: Layouts = _PLAIN,
) -> Case:
    """`dsv4_hc_comb` of mixes between `-reach` and `reach`."""
    size = (2 + streams) * streams
    sources = {
        "mixes": Arg((size, tokens), data=uniform(-reach, reach)),
        "scale": Arg((3,)),
        "base": Arg((size,)),
    }
    params = {"eps": eps, "n_iter": n_iter}
    return Case(op="dsv4_hc_comb", args=laid(sources, layouts), params=params)


COMBS = [
    *[comb(tokens=tokens, n_iter=n) for tokens, n in itertools.product((1, 7, 33), (1, 2, 20))],
    *[comb(streams, 3, n_iter=4) for streams in (1, 2, 3, 8)],
    *[comb(eps=0.1, n_iter=n) for n in (1, 2, 3)],
    comb(eps=0.0),
    comb(reach=80),
    comb(reach=80, n_iter=1),
    comb(tokens=0),
    *[
        comb(layouts={"mixes": mixes, "scale": scale, "base": base})
        for mixes, scale, base in [
            ("rows", "shifted", "columns"),
            ("plain", "spaced", "spaced"),
            ("columns", "columns", "shifted"),
            ("transposed", "plain", "transposed"),
        ]
    ],
]


def pre(sizes: tuple[int, int, int], layouts: Layouts = _PLAIN, **params: float) -> Case:
    """`dsv4_hc_pre` of size, streams, tokens."""
    weights = Arg(sizes, data=uniform(-6, 6)) if params.get("gated") else Arg(sizes[1:])
    sources = {"x": Arg(sizes), "weights": weights}
    return Case(op="dsv4_hc_pre", args=laid(sources, layouts), params=params)


def post(sizes: tuple[int, int, int], layouts: Layouts = _PLAIN, *, mixed: bool = True) -> Case:
    """`dsv4_hc_post` of size, streams, tokens; with `mixed`, with a matrix that mixes streams."""
    size, streams, tokens = sizes
    sources = {
        "x": Arg((size, tokens)),
        "residual": Arg(sizes),
        "post": Arg((streams, tokens)),
        "comb": Arg((streams, streams, tokens)),
    }
    args = laid(sources, layouts)
    return Case(op="dsv4_hc_post", args=args if mixed else args[:3])


SIZES = [(256, 4, 1), (256, 4, 7), (33, 4, 5), (1, 1, 1), (7, 1, 3), (64, 2, 3), (16, 9, 4)]
_STREAMED: list[Layouts] = [
    {"x": "permuted", "residual": "permuted", "weights": "transposed", "comb": "permuted"},
    {"x": "rows", "residual": "columns", "weights": "columns", "post": "rows", "comb": "rows"},
    {"x": "transposed", "residual": "transposed", "weights": "rows", "post": "transposed"},
    {"x": "columns", "residual": "rows", "weights": "shifted", "comb": "transposed"},
]
STREAMS = [
    *[pre(sizes) for sizes in [*SIZES, (16, 4, 0)]],
    *[pre(sizes, gated=True, scale=0.25) for sizes in SIZES],
    *[pre((20, 4, 6), layouts, gated=gated) for layouts in _STREAMED for gated in (False, True)],
    pre((20, 4, 6), scale=-2.5),
    *[post(sizes, mixed=mixed) for sizes in SIZES for mixed in (True, False)],
    *[post((20, 4, 6), layouts, mixed=mixed) for layouts in _STREAMED for mixed in (True, False)],
]

CASES = [*INDEXERS, *COMBS, *STREAMS]
