"""Images, windows, diagonals and what came late to other families: shapes and refusals."""

import pytest

import tensorplug as tp
from tensorplug.dtypes import F16, F32, I32, I64, Q4_0
from tensorplug.graph.tensor import leaf


def t(*shape, dtype=F32):
    return leaf("", shape, dtype)


SHAPES = {
    "add1": (lambda: tp.add1(t(3, 4, dtype=F16), t(1)), (3, 4), F16),
    "count_equal": (lambda: tp.count_equal(t(3, 4, dtype=I32), t(3, 4, dtype=I32)), (), I64),
    "repeat_back": (lambda: tp.repeat_back(t(6, 4), (3, 2)), (3, 2), F32),
    "out_prod": (lambda: tp.out_prod(t(5, 32, dtype=Q4_0), t(2, 5, 7)), (2, 7, 32), F32),
    "get_rows_back": (lambda: tp.get_rows_back(t(3, 4), t(3, dtype=I32), (9, 4)), (9, 4), F32),
    "diag": (lambda: tp.diag(t(2, 1, 4)), (2, 4, 4), F32),
    "diag_mask_zero": (lambda: tp.diag_mask_zero(t(3, 4)), (3, 4), F32),
    "tri": (lambda: tp.tri(t(2, 4, 4, dtype=F16), "lower"), (2, 4, 4), F16),
    "solve_tri": (lambda: tp.solve_tri(t(2, 4, 4), t(2, 4, 3)), (2, 4, 3), F32),
    "win_part": (lambda: tp.win_part(t(7, 5, 2), 3), (6, 3, 3, 2), F32),
    "win_unpart": (lambda: tp.win_unpart(t(6, 3, 3, 2), 5, 7, 3), (7, 5, 2), F32),
    "get_rel_pos": (lambda: tp.get_rel_pos(t(9, 6, dtype=F16), 5, 5), (5, 5, 6), F16),
    "add_rel_pos": (
        lambda: tp.add_rel_pos(t(2, 6, 9), t(2, 2, 3, 3), t(2, 2, 3, 3)),
        (2, 6, 9),
        F32,
    ),
    "upscale": (lambda: tp.upscale(t(2, 4, 5), (2, 8, 3)), (2, 8, 3), F32),
    "pad": (lambda: tp.pad(t(2, 4, 5), ((0, 0), (0, 3), (1, 2))), (2, 7, 8), F32),
    "pad_reflect_1d": (lambda: tp.pad_reflect_1d(t(2, 5), 4, 1), (2, 10), F32),
    "roll": (lambda: tp.roll(t(2, 5), (1, -4), (0, 1)), (2, 5), F32),
    "timestep_embedding": (lambda: tp.timestep_embedding(t(3), 9), (3, 9), F32),
}


@pytest.mark.parametrize("op", SHAPES)
def test_result_has_the_shape_and_type_of_its_op(op):
    build, shape, dtype = SHAPES[op]

    node = build()

    assert (node.op, node.shape, node.dtype) == (op, shape, dtype)


REFUSALS = [
    (lambda: tp.add1(t(3), t(2)), "add1: b must be one element; got a [3], b [2]"),
    (
        lambda: tp.count_equal(t(3, dtype=I32), t(4, dtype=I32)),
        "count_equal: a and b differ in shape; got a [3], b [4]",
    ),
    (
        lambda: tp.repeat_back(t(6, 4), (4, 2)),
        "repeat_back: sizes (2, 4, 1, 1) do not repeat to those of x; got x [6, 4]",
    ),
    (
        lambda: tp.out_prod(t(5, 3), t(4, 3)),
        "out_prod: a and b differ in the number of rows: 5 and 4; got a [5, 3], b [4, 3]",
    ),
    (
        lambda: tp.get_rows_back(t(3, 4), t(2, dtype=I32), (9, 4)),
        "get_rows_back: ids must be a vector with one entry for each row of grad; got grad [3, 4],"
        " ids [2]",
    ),
    (
        lambda: tp.get_rows_back(t(3, 4), t(3, dtype=I32), (9, 5)),
        "get_rows_back: grad and the table, (5, 9, 1, 1), must be matrices with rows of one length;"
        " got grad [3, 4], ids [3]",
    ),
    (lambda: tp.diag(t(2, 4)), "diag: x must be vectors: ne[1] is 1; got x [2, 4]"),
    (lambda: tp.tri(t(3, 4), "lower"), "tri: x must be square; got x [3, 4]"),
    (
        lambda: tp.tri(t(4, 4), "left"),
        "tri: unknown kind 'left'; kinds are upper_diag, upper, lower_diag, lower; got x [4, 4]",
    ),
    (
        lambda: tp.solve_tri(t(4, 4), t(3, 2)),
        "solve_tri: a must be square, with the number of rows and the batch of b; got a [4, 4], b "
        "[3, 2]",
    ),
    (
        lambda: tp.win_part(t(7, 5, 2), 0),
        "win_part: w = 0 is not positive, or x is more than one image; got x [7, 5, 2]",
    ),
    (
        lambda: tp.win_unpart(t(6, 3, 3, 2), 5, 7, 2),
        "win_unpart: x must be windows of 2 x 2, of an image of 5 x 7; got x [6, 3, 3, 2]",
    ),
    (
        lambda: tp.win_unpart(t(5, 3, 3, 2), 5, 7, 3),
        "win_unpart: x holds 5 windows, 6 are needed; got x [5, 3, 3, 2]",
    ),
    (
        lambda: tp.get_rel_pos(t(9, 6), 4, 5),
        "get_rel_pos: qh = 4 and kh = 5 must be equal and positive; got x [9, 6]",
    ),
    (
        lambda: tp.get_rel_pos(t(9, 6), 4, 4),
        "get_rel_pos: x must have 7 rows, one for each distance; got x [9, 6]",
    ),
    (
        lambda: tp.add_rel_pos(t(2, 6, 8), t(2, 2, 3, 3), t(2, 2, 3, 3)),
        "add_rel_pos: x must be 9 keys for 6 queries of 2; got x [2, 6, 8], pw [2, 2, 3, 3], ph "
        "[2, 2, 3, 3]",
    ),
    (
        lambda: tp.upscale(t(2, 4), (0, 8)),
        "upscale: cannot be resized to (8, 0, 1, 1); sizes are positive; got x [2, 4]",
    ),
    (
        lambda: tp.upscale(t(2, 4), (4, 8), mode="area"),
        "upscale: unknown mode 'area'; modes are nearest, bilinear, bicubic; got x [2, 4]",
    ),
    (
        lambda: tp.upscale(t(2, 4), (4, 8), antialias=True),
        "upscale: antialias works only with mode bilinear; got x [2, 4]",
    ),
    (
        lambda: tp.pad(t(2, 4), ((0, 0), (1, -1))),
        "pad: pads = (1, -1, 0, 0, 0, 0, 0, 0) must be eight counts: left and right of each "
        "dimension; got x [2, 4]",
    ),
    (
        lambda: tp.pad_reflect_1d(t(2, 4), 4, 0),
        "pad_reflect_1d: p0 = 4 and p1 = 0 must be less than ne[0], 4; got x [2, 4]",
    ),
    (
        lambda: tp.apply(tp.ops.op("roll"), t(2, 4), shifts=(4, 0, 0, 0)),
        "roll: a shift of 4 is not less than ne[0], 4; got x [2, 4]",
    ),
    (
        lambda: tp.timestep_embedding(t(3), 0),
        "timestep_embedding: dim = 0 and max_period = 10000 must be positive; got x [3]",
    ),
    (
        lambda: tp.timestep_embedding(t(3, 2), 8),
        "timestep_embedding: x must be a vector of times; got x [3, 2]",
    ),
]


@pytest.mark.parametrize(("build", "sentence"), REFUSALS, ids=[said[:50] for _, said in REFUSALS])
def test_wrong_use_is_refused_with_a_sentence(build, sentence):
    with pytest.raises(tp.TensorplugError) as caught:
        build()

    assert str(caught.value) == sentence


def test_pad_and_roll_count_axes_as_numpy_does():
    assert tp.pad(t(2, 4), ((1, 2), (3, 4))).params["pads"] == (3, 4, 1, 2, 0, 0, 0, 0)
    assert tp.roll(t(2, 4), 1, 0).params["shifts"] == (0, 1, 0, 0)
    assert tp.roll(t(2, 4), 7, -1).params["shifts"] == (3, 0, 0, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tp.pad(t(2, 4), ((1, 2),)), r"takes 2 pairs \(before, after\)"),
        (lambda: tp.roll(t(2, 4), (1, 2), 0), "2 shifts for 1 axes"),
        (lambda: tp.roll(t(2, 4), 1, 2), "axis 2 of .* axes go from -2 to 1"),
        (lambda: tp.roll(t(2, 4), 1, (0, -2)), "name a dimension twice"),
        (lambda: tp.permute(t(2, 4), (1,)), r"axes \(1,\) are not a permutation of the 2 axes"),
    ],
)
def test_axes_that_a_tensor_lacks_are_refused(build, message):
    with pytest.raises(tp.ShapeError, match=message):
        build()
