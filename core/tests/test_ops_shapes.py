"""What each builder gives and refuses; the table says everything about an op but its kernel."""

import builtins
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import ops
from tensorplug.graph.tensor import Tensor
from tensorplug.ops import OPS
from tensorplug.ops.backward import Rotation
from tensorplug.ops.glu import GLU
from tensorplug.ops.table import Op, Param, Source, apply, register_op
from tensorplug.ops.unary import UNARY

F32, F16, BF16, I32, I64, Q4_0 = tp.F32, tp.F16, tp.BF16, tp.I32, tp.I64, tp.Q4_0


def t(*ne: int, dtype: tp.DType = F32, name: str = "x") -> Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input(name, ne[::-1], dtype)


# --- the table ---------------------------------------------------------------------------------

BUILDERS = {name: getattr(ops, name, None) for name in OPS if "." not in name}


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_op_has_a_formula_an_origin_and_a_documented_builder(name: str) -> None:
    record, build = OPS[name], BUILDERS[name]

    assert record.name == name
    assert record.formula
    assert record.origin
    assert callable(build)
    assert inspect.getdoc(build)
    assert getattr(tp, name) is build
    assert name in ops.__all__
    assert name in tp.__all__ or hasattr(builtins, name)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_builder_takes_the_sources_and_params_of_its_op(name: str) -> None:
    record, taken = OPS[name], set(inspect.signature(BUILDERS[name]).parameters)
    # What a builder states in another way: NumPy's order, one window in place of its parts, a type.
    several = {s.name for s in record.sources} if "sources" in taken else set()
    restated = {"ne", "rank"} if "shape" in taken else set()
    restated |= {"nb", "nb1", "nb2", "nb3"} if "strides" in taken else set()
    restated |= {"dim"} if "axis" in taken else set()
    restated |= set(Rotation.__annotations__) if "rotation" in taken else set()
    if "stride" in taken:
        restated |= {p.name for p in record.params if p.name[-1].isdigit() or p.name == "oc"}
    wanted = {s.name for s in record.sources} - several | {p.name for p in record.params}

    assert wanted - restated <= taken


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_builder_names_its_tensor(name: str) -> None:
    assert inspect.signature(BUILDERS[name]).parameters["name"].default == ""


# --- shapes ------------------------------------------------------------------------------------

ids2 = t(3, 5, dtype=I32, name="ids")
# builder call, ne, rank, type
SHAPES = {
    "add": (lambda: tp.add(t(4, 3), t(4)), (4, 3), 2, F32),
    "add f16": (lambda: tp.add(t(4, 3, dtype=F16), t(4, 3)), (4, 3), 2, F16),
    "add tiled": (lambda: tp.add(t(4, 6), t(2, 3)), (4, 6), 2, F32),
    "sub": (lambda: tp.sub(t(4, 3), t(1, 3)), (4, 3), 2, F32),
    "mul": (lambda: tp.mul(t(4, 3, 2, 2), t(4, 3, 1, 2)), (4, 3, 2, 2), 4, F32),
    "div": (lambda: tp.div(t(0, 3), t(1)), (0, 3), 2, F32),
    "add_id": (lambda: tp.add_id(t(8, 3, 5), t(8, 6), ids2), (8, 3, 5), 3, F32),
    "scale": (lambda: tp.scale(t(4), 2), (4,), 1, F32),
    "clamp": (lambda: tp.clamp(t(4), 0, 1), (4,), 1, F32),
    "leaky_relu": (lambda: tp.leaky_relu(t(4, 2)), (4, 2), 2, F32),
    "fill": (lambda: tp.fill(t(4, dtype=BF16), 3), (4,), 1, BF16),
    "arange": (lambda: tp.arange(0, 10, 3), (4,), 1, F32),
    "arange tenths": (lambda: tp.arange(0, 1, 0.1), (10,), 1, F32),
    "arange down": (lambda: tp.arange(5, 0, -2), (3,), 1, F32),
    "arange empty": (lambda: tp.arange(5, 5), (0,), 1, F32),
    "xielu": (
        lambda: tp.xielu(t(4), alpha_n=1, alpha_p=1, beta=0.5, eps=-1e-6),
        (4,),
        1,
        F32,
    ),
    "glu halves": (lambda: tp.swiglu(t(8, 3)), (4, 3), 2, F32),
    "glu split": (lambda: tp.geglu(t(8, 3), t(8, 3)), (8, 3), 2, F32),
    "glu by name": (lambda: tp.glu("reglu", t(8, 3), swapped=True), (4, 3), 2, F32),
    "swiglu_oai": (lambda: tp.swiglu_oai(t(8, 3), t(8, 3)), (8, 3), 2, F32),
    "norm": (lambda: tp.norm(t(4, 3)), (4, 3), 2, F32),
    "rms_norm": (lambda: tp.rms_norm(t(4, 3, 2)), (4, 3, 2), 3, F32),
    "l2_norm": (lambda: tp.l2_norm(t(4, 3)), (4, 3), 2, F32),
    "group_norm": (lambda: tp.group_norm(t(4, 3, 6), 2), (4, 3, 6), 3, F32),
    "sum": (lambda: tp.sum(t(4, 3)), (), 0, F32),
    "sum_rows": (lambda: tp.sum_rows(t(4, 3, 2)), (1, 3, 2), 3, F32),
    "mean": (lambda: tp.mean(t(4, 3), -1, keepdims=True), (1, 3), 2, F32),
    "cumsum": (lambda: tp.cumsum(t(4, 3)), (4, 3), 2, F32),
    "argmax": (lambda: tp.argmax(t(4, 3), -1), (3,), 1, I32),
    "argsort": (lambda: tp.argsort(t(4, 3)), (4, 3), 2, I32),
    "top_k": (lambda: tp.top_k(t(9, 3), np.int64(4)), (4, 3), 2, I32),
    "soft_max": (lambda: tp.soft_max(t(4, 3)), (4, 3), 2, F32),
    "soft_max masked": (
        lambda: tp.soft_max(t(4, 3, 8, 2), t(4, 32, 1, 2, dtype=F16), t(8), max_bias=8),
        (4, 3, 8, 2),
        4,
        F32,
    ),
    "diag_mask_inf": (lambda: tp.diag_mask_inf(t(4, 3)), (4, 3), 2, F32),
    "rope": (
        lambda: tp.rope(t(64, 4, 7), t(7, dtype=I32), t(16), dims=32, mode="neox"),
        (64, 4, 7),
        3,
        F32,
    ),
    "rope of four positions": (
        lambda: tp.rope(
            t(64, 4, 7, dtype=F16), t(28, dtype=I32), dims=64, mode="mrope", sections=(8, 8, 8, 8)
        ),
        (64, 4, 7),
        3,
        F16,
    ),
    "mul_mat": (lambda: tp.mul_mat(t(8, 5), t(8, 3)), (5, 3), 2, F32),
    "mul_mat of blocks": (
        lambda: tp.mul_mat(t(64, 5, dtype=Q4_0), t(64, 3, dtype=F16)),
        (5, 3),
        2,
        F32,
    ),
    "mul_mat of groups": (
        lambda: tp.mul_mat(t(8, 5, 2, 1), t(8, 3, 6, 4)),
        (5, 3, 6, 4),
        4,
        F32,
    ),
    "mul_mat by a vector": (lambda: tp.mul_mat(t(8, 5), t(8)), (5,), 2, F32),
    "mul_mat_id": (
        lambda: tp.mul_mat_id(t(8, 6, 4, dtype=F16), t(8, 1, 5), ids2),
        (6, 3, 5),
        3,
        F32,
    ),
    "get_rows": (lambda: tp.get_rows(t(8, 9), t(3, dtype=I32)), (8, 3), 2, F32),
    "get_rows of blocks": (
        lambda: tp.get_rows(t(64, 9, dtype=Q4_0), t(3, dtype=I32)),
        (64, 3),
        2,
        F32,
    ),
    "get_rows of i32": (
        lambda: tp.get_rows(t(8, 9, dtype=I32), t(3, dtype=I32)),
        (8, 3),
        2,
        I32,
    ),
    "get_rows in batches": (
        lambda: tp.get_rows(t(8, 9, 5), t(3, 5, dtype=I32)),
        (8, 3, 5),
        3,
        F32,
    ),
    "set_rows": (
        lambda: tp.set_rows(t(64, 9, dtype=Q4_0), t(64, 3), t(3, dtype=I64)),
        (64, 9),
        2,
        Q4_0,
    ),
    "set_rows of one list for all": (
        lambda: tp.set_rows(t(8, 9, 4, 2), t(8, 3, 4, 2), t(3, 1, 2, dtype=I32)),
        (8, 9, 4, 2),
        4,
        F32,
    ),
    "dup": (lambda: tp.dup(t(4, 3).T), (3, 4), 2, F32),
    "cont": (lambda: tp.cont(t(4, 3).T), (3, 4), 2, F32),
    "cont in another shape": (lambda: tp.cont(t(4, 3).T, (2, 6)), (6, 2), 2, F32),
    "cpy": (lambda: tp.cpy(t(4, 3), t(12, dtype=F16)), (12,), 1, F16),
    "cast": (lambda: tp.cast(t(4, 3).T, F16), (3, 4), 2, F16),
    "cast by name": (lambda: tp.cast(t(64), "q4_0"), (64,), 1, Q4_0),
    "concat": (lambda: tp.concat(t(4, 3), t(2, 3), axis=-1), (6, 3), 2, F32),
    "concat with another rank": (lambda: tp.concat(t(4, 3), t(4, 3, 1)), (4, 3, 2), 3, F32),
    "repeat": (lambda: tp.repeat(t(4, 1), (2, 6, 8)), (8, 6, 2), 3, F32),
    "acc": (
        lambda: tp.acc(t(4, 3), t(2, 2), offset=8),
        (4, 3),
        2,
        F32,
    ),
    "set": (lambda: tp.set(t(4, 3), t(4), offset=32), (4, 3), 2, F32),
    "flash_attn_ext": (
        lambda: tp.flash_attn_ext(
            t(64, 5, 8, 2),
            t(64, 9, 2, 2, dtype=F16),
            t(32, 9, 2, 2, dtype=Q4_0),
            t(9, 64, dtype=F16),
            t(8),
            scale=0.125,
            max_bias=8,
        ),
        (32, 8, 5, 2),
        4,
        F32,
    ),
    **{name: (lambda op=name: tp.unary(op, t(4, 3, dtype=F16)), (4, 3), 2, F16) for name in UNARY},
    **{name: (lambda op=name: tp.glu(op, t(8, 3)), (4, 3), 2, F32) for name in GLU},
    "reshape": (lambda: tp.reshape(t(4, 3), (2, -1)), (6, 2), 2, F32),
    "view": (lambda: tp.view(t(4, 3), (2, 2), strides=(16, 4), offset=8), (2, 2), 2, F32),
    "permute": (lambda: tp.permute(t(2, 3, 4), (2, 0, 1)), (3, 4, 2), 3, F32),
    "transpose": (lambda: tp.transpose(t(2, 3, 4)), (3, 2, 4), 3, F32),
    "view_ne": (lambda: tp.view_ne(t(4, 3), (2, 3), (8, 16), rank=2, offset=0), (2, 3), 2, F32),
}


@pytest.mark.parametrize("case", SHAPES)
def test_builder_gives_shape_rank_and_type(case: str) -> None:
    build, ne, rank, dtype = SHAPES[case]

    node = build()

    assert node.ne == (*ne, 1, 1, 1, 1)[:4]
    assert node.rank == rank
    assert node.dtype is dtype
    assert node.op in OPS


def test_every_op_is_built_by_a_test_of_its_family() -> None:
    here = {build().op for build, *_ in SHAPES.values()}
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_ops_*.py")]
    built = {name for text in texts for name in re.findall(r"\btp\.([a-z0-9_]+)\(", text)}

    assert set(BUILDERS) - here - built == set()


@pytest.mark.parametrize("case", [c for c in SHAPES if c not in ("strided", "view", "permute")])
def test_results_with_memory_of_their_own_are_contiguous(case: str) -> None:
    node = SHAPES[case][0]()

    assert node.view_of is not None or node.is_contiguous


def test_arange_counts_as_numpy_does() -> None:
    cases = [(0, 1, 0.1), (0, 1, 0.3), (1, 2, 0.25), (5, -5, -0.7), (0, 7, 7), (0, 7.5, 7)]

    assert [tp.arange(*case).ne[0] for case in cases] == [np.arange(*case).size for case in cases]


# --- parameters --------------------------------------------------------------------------------


def test_numbers_become_plain_numbers_of_the_parameter_s_type() -> None:
    node = tp.scale(t(4), np.float32(2), bias=3)

    assert {k: (type(v), v) for k, v in node.params.items()} == {
        "scale": (float, 2.0),
        "bias": (float, 3.0),
    }


def test_defaults_are_filled_in() -> None:
    assert dict(tp.soft_max(t(4)).params) == {"scale": 1.0, "max_bias": 0.0}


def test_params_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        tp.scale(t(4), 2).params["scale"] = 3.0


# --- refusals ----------------------------------------------------------------------------------

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
    "copies that do not fill": (
        lambda: tp.repeat(t(4, 3), (4, 8)),
        tp.ShapeError,
        "repeat: x does not repeat to sizes (8, 4, 1, 1); got x [3, 4]",
    ),
    "part outside": (
        lambda: tp.acc(t(4, 3), t(2, 2), offset=32),
        tp.ShapeError,
        "acc: the part ends at byte 56 of 48, or a is not contiguous; got a [3, 4], part [2, 2]",
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


# --- ops of others -----------------------------------------------------------------------------


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorplug.ops.table.OPS", dict(OPS))


def an_op(name: str = "acme.double", **changes) -> Op:
    facts = {
        "sources": (Source("x", frozenset({F32})),),
        "params": (Param("times", int, default=2),),
        "shape": lambda call: (call["x"].ne, call["x"].rank),
        "dtype": lambda call: call["x"].dtype,
        "formula": "y = times * x",
    }
    return Op(name, **{**facts, **changes})


def test_ops_of_others_build_nodes(forget) -> None:
    double = register_op(an_op())

    node = apply(double, t(4), name="d")

    assert (node.op, node.ne, node.name) == ("acme.double", (4, 1, 1, 1), "d")
    assert dict(node.params) == {"times": 2}


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            an_op("add"),
            "register_op: 'add' exists already; choose a name with a prefix of your own",
        ),
        (
            an_op(formula=""),
            "register_op: 'acme.double' has no formula; say what it computes",
        ),
        (
            an_op(writes=True),
            "register_op: 'acme.double' writes but has no alias rule; give one",
        ),
        (
            an_op(in_place=("y",)),
            "register_op: 'acme.double' may replace unknown sources ['y']",
        ),
        (
            an_op(sources=(Source("x", frozenset({F32})), Source("x", frozenset({F32})))),
            "register_op: 'acme.double' has two sources or parameters called 'x'",
        ),
        (
            an_op(params=(Param("x", int, default=1),)),
            "register_op: 'acme.double' has two sources or parameters called 'x'",
        ),
    ],
)
def test_records_with_a_hole_fail_when_they_are_registered(forget, op: Op, message: str) -> None:
    with pytest.raises(tp.GraphError) as error:
        register_op(op)

    assert str(error.value) == message


# --- in place ----------------------------------------------------------------------------------


def test_in_place_result_writes_over_its_source() -> None:
    x = t(4, 3)

    node = tp.in_place(tp.relu(x[1:]))

    assert node.writes
    assert not node.is_view
    assert (node.view_of, node.view_offset) == (x, 16)


def test_in_place_takes_the_second_source_where_the_first_does_not_fit() -> None:
    a, b = t(4, 3, dtype=F16, name="a"), t(4, 3, name="b")
    total = tp.add(a, b)
    product = tp.mul(t(4, 3).T, t(3, 4, name="c"))

    with pytest.raises(tp.GraphError):
        tp.in_place(tp.sub(t(4, 3).T, t(1)))
    assert tp.in_place(total).view_of is a
    assert tp.in_place(product).view_of is product.sources[1]


def test_in_place_refuses_where_no_source_has_the_layout() -> None:
    node = tp.mul_mat(t(4, 4), t(4, 4))

    with pytest.raises(tp.GraphError) as error:
        tp.in_place(node)

    assert str(error.value) == (
        f"in_place: {node} cannot replace a source: none that its op may replace has its layout"
    )


def test_replaceable_sources_are_those_of_the_table() -> None:
    a, b = t(4), t(4)

    assert tp.replaceable_sources(tp.add(a, b)) == (a, b)
    assert tp.replaceable_sources(tp.soft_max(a, None)) == (a,)
    assert tp.replaceable_sources(tp.mul_mat(a, b)) == ()
    assert tp.replaceable_sources(tp.cpy(a, b)) == ()
    assert tp.replaceable_sources(a) == ()
