"""What builders of ops refuse, and what they say."""

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import Tensor
from tensorplug.ops import OPS
from tensorplug.ops.table import apply

F32, F16, I32, Q4_0 = tp.F32, tp.F16, tp.I32, tp.Q4_0


def t(*ne: int, dtype: tp.DType = F32, name: str = "x") -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input(name, ne[::-1], dtype)


REFUSED = {
    "rows of different length": (
        lambda: tp.mul_mat(t(8, 5), t(9, 3)),
        tp.ShapeError,
        "mul_mat: rows differ in length: 8 and 9; got w [5, 8], x [3, 9]",
    ),
    "weights that do not repeat": (
        lambda: tp.mul_mat(t(8, 5, 2), t(8, 3, 3)),
        tp.ShapeError,
        "mul_mat: w does not repeat over dimensions 2 and 3 of x; got w [2, 5, 8], x [3, 3, 8]",
    ),
    "empty batch of weights": (
        lambda: tp.mul_mat(t(8, 5, 0), t(8, 3, 3)),
        tp.ShapeError,
        "mul_mat: w does not repeat over dimensions 2 and 3 of x; got w [0, 5, 8], x [3, 3, 8]",
    ),
    "hint of no name": (
        lambda: tp.mul_mat(t(8, 8), t(8, 3), hint="walsh"),
        tp.ShapeError,
        "mul_mat: unknown hint 'walsh'; hints are hadamard; got w [8, 8], x [3, 8]",
    ),
    "hint for a matrix that is not square": (
        lambda: tp.mul_mat(t(8, 4), t(8, 3), hint="hadamard"),
        tp.ShapeError,
        "mul_mat: hint hadamard: w of (8, 4, 1, 1) is not one square matrix of a power of two; "
        "got w [4, 8], x [3, 8]",
    ),
    "precision of no name": (
        lambda: tp.mul_mat(t(8, 5), t(8, 3), precision="f16"),
        tp.ShapeError,
        "mul_mat: unknown precision 'f16'; choose default or f32; got w [5, 8], x [3, 8]",
    ),
    "transposed weights": (
        lambda: tp.mul_mat(t(5, 8).T, t(8, 3)),
        tp.ShapeError,
        "mul_mat: w must not be transposed; insert cont(); got w [5, 8], x [3, 8]",
    ),
    "integers in a product": (
        lambda: tp.mul_mat(t(8, 5, dtype=I32), t(8, 3)),
        tp.DTypeError,
        "mul_mat: w <Tensor 'x', none, i32[5, 8]> has type i32; takes bf16, f16, f32, f64 and 27 "
        "block types",
    ),
    "experts with too few ids": (
        lambda: tp.mul_mat_id(t(8, 6, 4), t(8, 2, 5), t(3, 5, dtype=I32)),
        tp.ShapeError,
        "mul_mat_id: ids must hold, for each token, a multiple of ne[1] of x; got w [4, 6, 8], "
        "x [5, 2, 8], ids [5, 3]",
    ),
    "experts without rows": (
        lambda: tp.mul_mat_id(t(8, 6, 4), t(8, 0, 5), t(3, 5, dtype=I32)),
        tp.ShapeError,
        "mul_mat_id: ids must hold, for each token, a multiple of ne[1] of x; got w [4, 6, 8], "
        "x [5, 0, 8], ids [5, 3]",
    ),
    "experts in four dimensions": (
        lambda: tp.mul_mat_id(t(8, 6, 4, 2), t(8, 1, 5), t(3, 5, dtype=I32)),
        tp.ShapeError,
        "mul_mat_id: w and x must have at most three dimensions, ids at most two; got w [2, 4, "
        "6, 8], "
        "x [5, 1, 8], ids [5, 3]",
    ),
    "sum that does not repeat": (
        lambda: tp.add(t(4, 3), t(4, 2)),
        tp.ShapeError,
        "add: b does not repeat to the shape of a; got a [3, 4], b [2, 4]",
    ),
    "sum with a larger second": (
        lambda: tp.add(t(4), t(4, 2)),
        tp.ShapeError,
        "add: b does not repeat to the shape of a; got a [4], b [2, 4]",
    ),
    "sum of integers": (
        lambda: tp.add(t(4, dtype=I32), t(4)),
        tp.DTypeError,
        "add: a <Tensor 'x', none, i32[4]> has type i32; takes bf16, f16, f32 and 27 block types",
    ),
    "biases of other length": (
        lambda: tp.add_id(t(8, 3, 5), t(7, 6), t(3, 5, dtype=I32)),
        tp.ShapeError,
        "add_id: b must have rows as long as a's, ids one entry for each row of a; "
        "got a [5, 3, 8], b [6, 7], ids [5, 3]",
    ),
    "halves of an odd row": (
        lambda: tp.swiglu(t(7)),
        tp.ShapeError,
        "swiglu: a row that holds both halves must have an even length; got x [7]",
    ),
    "gate of another shape": (
        lambda: tp.swiglu(t(8), t(7)),
        tp.ShapeError,
        "swiglu: x and gate differ in shape; got x [8], gate [7]",
    ),
    "mask of other rows": (
        lambda: tp.soft_max(t(4, 3), t(5, 3)),
        tp.ShapeError,
        "soft_max: mask must have x's row length and at least x's number of rows; got "
        "x [3, 4], mask [3, 5]",
    ),
    "mask that does not repeat": (
        lambda: tp.soft_max(t(4, 3, 8), t(4, 3, 3)),
        tp.ShapeError,
        "soft_max: mask does not repeat over dimensions 2 and 3 of x; got x [8, 3, 4], "
        "mask [3, 3, 4]",
    ),
    "mask of no heads": (
        lambda: tp.soft_max(t(4, 3, 8), t(4, 3, 0)),
        tp.ShapeError,
        "soft_max: mask does not repeat over dimensions 2 and 3 of x; got x [8, 3, 4], "
        "mask [0, 3, 4]",
    ),
    "slope without mask": (
        lambda: tp.soft_max(t(4, 3), max_bias=8),
        tp.ShapeError,
        "soft_max: max_bias scales a mask, but there is no mask; got x [3, 4]",
    ),
    "sinks for other heads": (
        lambda: tp.soft_max(t(4, 3, 8), sinks=t(7)),
        tp.ShapeError,
        "soft_max: sinks must be a vector with one element for each head, ne[2] of x; "
        "got x [8, 3, 4], sinks [7]",
    ),
    "attention of other head sizes": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(32, 9, 8), t(64, 9, 8), scale=1),
        tp.ShapeError,
        "flash_attn_ext: head sizes of q and k differ: 64 and 32; got q [8, 5, 64], k [8, 9, 32], "
        "v [8, 9, 64]",
    ),
    "attention of other positions": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(64, 9, 8), t(64, 8, 8), scale=1),
        tp.ShapeError,
        "flash_attn_ext: k and v differ in positions, heads or batch; got q [8, 5, 64], "
        "k [8, 9, 64], v [8, 8, 64]",
    ),
    "attention of odd groups": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(64, 9, 3), t(64, 9, 3), scale=1),
        tp.ShapeError,
        "flash_attn_ext: the heads or the batch of q are not a multiple of those of k; "
        "got q [8, 5, 64], k [3, 9, 64], v [3, 9, 64]",
    ),
    "attention with a short mask": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(64, 9, 8), t(64, 9, 8), t(9, 4), scale=1),
        tp.ShapeError,
        "flash_attn_ext: mask must be [positions of k, at least the tokens of q]; "
        "got q [8, 5, 64], k [8, 9, 64], v [8, 9, 64], mask [4, 9]",
    ),
    "attention with a slope and no mask": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(64, 9, 8), t(64, 9, 8), scale=1, max_bias=8),
        tp.ShapeError,
        "flash_attn_ext: max_bias scales a mask, but there is no mask; got q [8, 5, 64], k [8, "
        "9, 64], "
        "v [8, 9, 64]",
    ),
    "attention with sinks for other heads": (
        lambda: tp.flash_attn_ext(t(64, 5, 8), t(64, 9, 8), t(64, 9, 8), sinks=t(4), scale=1),
        tp.ShapeError,
        "flash_attn_ext: sinks must have one element for each head of q; got q [8, 5, 64], "
        "k [8, 9, 64], v [8, 9, 64], sinks [4]",
    ),
    "negative max_bias": (
        lambda: tp.soft_max(t(4, 3), t(4, 3), max_bias=-8),
        tp.ShapeError,
        "soft_max: max_bias = -8; it must not be negative; got x [3, 4], mask [3, 4]",
    ),
    "rope without a base": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), dims=64, base=0),
        tp.ShapeError,
        "rope: base = 0; it must be above 0; got x [7, 4, 64], positions [7]",
    ),
    "YaRN whose base turns nothing": (
        lambda: tp.rope(
            t(64, 4, 7), t(7, dtype=I32), dims=64, base=1, ext_factor=1, original_context=9
        ),
        tp.ShapeError,
        "rope: ext_factor needs a base other than 1, which turns all pairs alike; "
        "got x [7, 4, 64], positions [7]",
    ),
    "YaRN between turns that have no logarithm": (
        lambda: tp.rope(
            t(64, 4, 7), t(7, dtype=I32), dims=64, beta_slow=0, ext_factor=1, original_context=9
        ),
        tp.ShapeError,
        "rope: ext_factor needs beta_slow above 0, got 0; got x [7, 4, 64], positions [7]",
    ),
    "shape that is a number": (
        lambda: tp.input("x", 3, F32),
        tp.ShapeError,
        "tensor 'x': shape 3; give a tuple of sizes, such as (3,)",
    ),
    "reshape to a number": (
        lambda: tp.reshape(t(8), 8),
        tp.ShapeError,
        "reshape: shape 8; give a tuple of sizes, such as (3,)",
    ),
    "rope of an unknown mode": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), dims=64, mode="neo"),
        tp.ShapeError,
        "rope: unknown mode 'neo'; modes are normal, neox, mrope, imrope, vision; "
        "got x [7, 4, 64], positions [7]",
    ),
    "rope of odd dims": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), dims=63),
        tp.ShapeError,
        "rope: dims = 63 is not even, positive and at most ne[0] of x; got x [7, 4, 64], "
        "positions [7]",
    ),
    "rope of dims beyond the head": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), dims=48, offset=24),
        tp.ShapeError,
        "rope: dims 24 to 72 are not among the 64 elements of a head; offset must be 0 to 16; "
        "got x [7, 4, 64], positions [7]",
    ),
    "rope of other positions": (
        lambda: tp.rope(t(64, 4, 7), t(6, dtype=I32), dims=64),
        tp.ShapeError,
        "rope: positions must be a vector of 1 for each of ne[2] of x; got x [7, 4, 64], "
        "positions [6]",
    ),
    "rope of few factors": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), t(31), dims=64),
        tp.ShapeError,
        "rope: factors must have at least 32 elements; got x [7, 4, 64], positions [7], "
        "factors [31]",
    ),
    "rope without dims": (
        lambda: apply(OPS["rope"], t(64, 4, 7), t(7, dtype=I32)),
        tp.OptionError,
        "rope: parameters ['dims'] are missing",
    ),
    "rows of other batches": (
        lambda: tp.get_rows(t(8, 9, 5), t(3, 4, dtype=I32)),
        tp.ShapeError,
        "get_rows: ids must have ne[2] and ne[3] of table as its dimensions 1 and 2; "
        "got table [5, 9, 8], ids [4, 3]",
    ),
    "row numbers that are not integers": (
        lambda: tp.get_rows(t(8, 9), t(3)),
        tp.DTypeError,
        "get_rows: ids <Tensor 'x', none, f32[3]> has type f32; takes i32",
    ),
    "rows of another length": (
        lambda: tp.set_rows(t(8, 9), t(7, 3), t(3, dtype=I32)),
        tp.ShapeError,
        "set_rows: rows must have the row length and dimensions 2 and 3 of table; "
        "got table [9, 8], rows [3, 7], ids [3]",
    ),
    "rows without numbers": (
        lambda: tp.set_rows(t(8, 9), t(8, 3), t(2, dtype=I32)),
        tp.ShapeError,
        "set_rows: ids must have one entry for each row; got table [9, 8], rows [3, 8], ids [2]",
    ),
    "row numbers that do not repeat": (
        lambda: tp.set_rows(t(8, 9, 4), t(8, 3, 4), t(3, 3, dtype=I32)),
        tp.ShapeError,
        "set_rows: ids do not repeat over dimensions 2 and 3 of rows; got table [4, 9, 8], "
        "rows [4, 3, 8], ids [3, 3]",
    ),
    "row numbers for no batch": (
        lambda: tp.set_rows(t(8, 9, 4), t(8, 3, 4), t(3, 0, dtype=I32)),
        tp.ShapeError,
        "set_rows: ids do not repeat over dimensions 2 and 3 of rows; got table [4, 9, 8], "
        "rows [4, 3, 8], ids [0, 3]",
    ),
    "f16 rows to write": (
        lambda: tp.set_rows(t(8, 9), t(8, 3, dtype=F16), t(3, dtype=I32)),
        tp.DTypeError,
        "set_rows: rows <Tensor 'x', none, f16[3, 8]> has type f16; takes f32",
    ),
    "copy of another size": (
        lambda: tp.cpy(t(4, 3), t(11)),
        tp.ShapeError,
        "cpy: x has 12 elements and target 11; got x [3, 4], target [11]",
    ),
    "contiguous copy of another size": (
        lambda: tp.cont(t(4, 3), (2, 5)),
        tp.ShapeError,
        "cont: 12 elements do not fill sizes (5, 2, 1, 1); got x [3, 4]",
    ),
    "parts that do not join": (
        lambda: tp.concat(t(4, 3), t(4, 2), axis=-1),
        tp.ShapeError,
        "concat: sizes differ outside dimension 0; got a [3, 4], b [2, 4]",
    ),
    "parts of two types": (
        lambda: tp.concat(t(4), t(4, dtype=F16)),
        tp.ShapeError,
        "concat: types differ: f32 and f16; got a [4], b [4]",
    ),
    "parts along no dimension": (
        lambda: tp.concat(t(4), t(4), axis=1),
        tp.ShapeError,
        "concat: axis 1 of <Tensor 'x', none, f32[4]>, which has 1 dimensions; "
        "axes go from -1 to 0",
    ),
    "sum along no dimension": (
        lambda: tp.sum(t(4), axis=1),
        tp.ShapeError,
        "sum: axis 1 of <Tensor 'x', none, f32[4]>, which has 1 dimensions; axes go from -1 to 0",
    ),
    "number over integers": (
        lambda: 1 / t(4, dtype=I32),
        tp.DTypeError,
        "/: <Tensor 'x', none, i32[4]> has type i32; 1 / x takes bf16, f16, f32",
    ),
    "copies that do not fill": (
        lambda: tp.repeat(t(4, 3), (4, 8)),
        tp.ShapeError,
        "repeat: x does not repeat to sizes (8, 4, 1, 1); got x [3, 4]",
    ),
    "part outside": (
        lambda: tp.acc(t(4, 3), t(2, 2), offset=32),
        tp.ShapeError,
        "acc: the view covers bytes 32 to 56 of 48; got a [3, 4], part [2, 2]",
    ),
    "part with steps backwards": (
        lambda: tp.set(t(4, 4), t(4, 2), strides=(-16, 4), offset=16),
        tp.ShapeError,
        "set: sizes (4, 2, 1, 1), strides (4, -16, 64, 64) and offset 16 must not be negative; "
        "got a [4, 4], part [2, 4]",
    ),
    "part between elements": (
        lambda: tp.set(t(4, 4), t(4, 2), offset=3),
        tp.ShapeError,
        "set: strides (4, 16, 64, 64) and offset 3 must be multiples of 4 bytes; "
        "got a [4, 4], part [2, 4]",
    ),
    "part of a tensor with gaps": (
        lambda: tp.acc(t(4, 4)[:, :2], t(2)),
        tp.ShapeError,
        "acc: a must be contiguous; insert cont(); got a [4, 2], part [2]",
    ),
    "part with rows that overlap": (
        lambda: tp.acc(t(4, 4), t(4, 2), strides=(8, 4)),
        tp.ShapeError,
        "acc: elements of the window overlap: sizes (4, 2, 1, 1), strides (4, 8, 64, 64) bytes; "
        "write the parts that overlap one after the other; got a [4, 4], part [2, 4]",
    ),
    "copy to a target that overlaps itself": (
        lambda: tp.cpy(t(4, 3), tp.view(t(12), (3, 4), strides=(0, 4))),
        tp.ShapeError,
        "cpy: elements of target, which is written, overlap: sizes (4, 3, 1, 1), strides "
        "(4, 0, 0, 0) bytes; give them bytes of their own; got x [3, 4], target [3, 4]",
    ),
    "rows for a table that overlaps itself": (
        lambda: tp.set_rows(tp.view(t(12), (3, 4), strides=(4, 4)), t(4, 2), t(2, dtype=I32)),
        tp.ShapeError,
        "set_rows: elements of table, which is written, overlap: sizes (4, 3, 1, 1), strides "
        "(4, 4, 12, 12) bytes; give them bytes of their own; got table [3, 4], rows [2, 4], "
        "ids [2]",
    ),
    "more than a row's largest": (
        lambda: tp.top_k(t(4), 5),
        tp.ShapeError,
        "top_k: k = 5 is not between 1 and the row length 4; got x [4]",
    ),
    "groups of nothing": (
        lambda: tp.group_norm(t(4, 3, 2), 0),
        tp.ShapeError,
        "group_norm: groups = 0 is not positive; got x [2, 3, 4]",
    ),
    "largest of a cube": (
        lambda: apply(OPS["argmax"], t(4, 3, 2)),
        tp.ShapeError,
        "argmax: x must be a matrix; got x [2, 3, 4]",
    ),
    "steps the wrong way": (
        lambda: tp.arange(0, 5, -1),
        tp.ShapeError,
        "arange: no steps of -1.0 lead from 0.0 to 5.0",
    ),
    "steps without end": (
        lambda: tp.arange(0, float("inf")),
        tp.ShapeError,
        "arange: no steps of 1.0 lead from 0.0 to inf",
    ),
    "row of part blocks": (
        lambda: tp.cast(t(48), Q4_0),
        tp.ShapeError,
        "q4_0: a row of 48 elements is not a multiple of the block length 32; pad the row",
    ),
    "unknown type to cast to": (
        lambda: tp.cast(t(4), "f33"),
        tp.DTypeError,
        "dtype: unknown type 'f33'; did you mean f32?",
    ),
    "missing source": (
        lambda: apply(OPS["add"], t(4)),
        tp.GraphError,
        "add: source 'b' is missing",
    ),
    "too many sources": (
        lambda: apply(OPS["relu"], t(4), t(4)),
        tp.GraphError,
        "relu: 2 sources given; the op takes at most 1",
    ),
    "unknown parameter": (
        lambda: apply(OPS["scale"], t(4), scale=1.0, factor=2.0),
        tp.OptionError,
        "scale: unknown parameters ['factor']; known are ['bias', 'scale']",
    ),
    "parameter of another type": (
        lambda: apply(OPS["scale"], t(4), scale="2"),
        tp.OptionError,
        "scale: parameter 'scale' must be float, got '2'",
    ),
    "truth value for a number": (
        lambda: tp.top_k(t(4), True),
        tp.OptionError,
        "top_k: parameter 'k' must be int, got True",
    ),
    "nothing for a number": (
        lambda: tp.top_k(t(4), None),
        tp.OptionError,
        "top_k: parameter 'k' must be int, got None",
    ),
    "fraction for a whole number": (
        lambda: tp.top_k(t(4), 1.5),
        tp.OptionError,
        "top_k: parameter 'k' must be int, got 1.5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_builder_refuses_with_a_whole_sentence(case: str) -> None:
    build, kind, message = REFUSED[case]

    with pytest.raises(kind) as error:
        build()

    assert str(error.value) == message


@pytest.mark.parametrize(
    "use",
    [
        tp.cont,
        tp.dup,
        lambda w: tp.get_rows(w, t(3, dtype=I32)),
        lambda w: tp.mul_mat(w, t(64, 3)),
        lambda w: tp.cpy(t(64, 64), w),
        lambda w: tp.permute(w, (0, 1)),
        lambda w: w[1:],
    ],
)
def test_transposed_block_type_is_good_for_nothing_but_a_product(use) -> None:
    transposed = t(64, 64, dtype=Q4_0, name="w").T

    with pytest.raises(
        tp.ShapeError, match=r"is a transposed block type; only `x @ w.T` accepts one"
    ):
        use(transposed)


def test_unknown_op_names_the_nearest() -> None:
    with pytest.raises(tp.GraphError) as error:
        tp.op("soft_mex")

    assert str(error.value) == "op: unknown op 'soft_mex'; did you mean 'soft_max'?"
