"""Infinite values, NaN and empty sources: kernels and reference treat them alike."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_testing.cases.case import Arg, Case, among, uniform
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.running import run

from .leafs import f32, value

WILD = among(math.inf, -math.inf, math.nan, 0.5, -1, 2)
SMALL = uniform(0.1, 0.5)
WINDOW = {"kind": "max", "k0": 2, "k1": 2, "s0": 2, "s1": 2}
CASES = [
    Case(op="pool_2d_back", args=(Arg((4, 3, 2)), Arg((8, 6, 2), data=WILD)), params=WINDOW),
    Case(op="opt_step_sgd", args=(Arg((7, 5), data=WILD), Arg((7, 5)), Arg((2,), data=SMALL))),
    Case(
        op="opt_step_adamw",
        args=(Arg((7, 5), data=WILD), *(Arg((7, 5), data=SMALL),) * 3, Arg((7,), data=SMALL)),
    ),
    Case(op="timestep_embedding", args=(Arg((7,), data=WILD),), params={"dim": 6}),
    *[
        Case(
            op="upscale",
            args=(Arg((6, 5, 2), data=WILD),),
            params={"ne": (12, 10, 2, 1), "rank": 3, "mode": mode, "antialias": antialias},
        )
        for mode, antialias in [
            ("nearest", False),
            ("bilinear", False),
            ("bilinear", True),
            ("bicubic", False),
        ]
    ],
    Case(
        op="im2col_3d",
        args=(Arg((2, 1, 1, 6)), Arg((0, 3, 2, 4))),
        params={"n_channels": 2, "p0": 1, "to": "f32"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_wild_case_gives_what_the_reference_gives(case, device, backend):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    backend.compute(laid.bound)

    assert laid.problem() == ""


def test_what_is_no_number_stays_where_it_is_when_an_image_is_resized(backend):
    image = np.zeros((4, 4))
    image[1, 2] = math.nan
    x, data = f32(image)
    node = tp.upscale(x, (8, 8))
    wanted = np.kron(image, np.ones((2, 2)))

    found = run(backend, node, {x: data}), value(node, (x, data))

    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], wanted)
