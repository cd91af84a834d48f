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
    "acc of rows that are closer than those of a": (
        lambda: tp.acc(t(40), t(3, 4), strides=(12, 4)),
        (40,),
        1,
        F32,
    ),
    "acc of rows between rows": (
        lambda: tp.acc(t(10, 4), t(1, 2, 3), strides=(8, 20, 4)),
        (10, 4),
        2,
        F32,
    ),
    "set of nothing": (lambda: tp.set(t(4, 3), t(4, 0), offset=48), (4, 3), 2, F32),
    "set": (lambda: tp.set(t(4, 3), t(4), offset=32), (4, 3), 2, F32),
    "set a column": (lambda: tp.set(t(1, 3).T, t(2, 1)), (3, 1), 2, F32),
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


def test_the_outer_product_of_vectors_is_a_matrix() -> None:
    a, b = tp.input("a", (3,), tp.F32), tp.input("b", (2,), tp.F32)
    assert tp.out_prod(a, b).shape == (2, 3)
