"""Python's operators on tensors do what NumPy's do, and say so where they do not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorplug as tp

SHAPES = [(), (1,), (4,), (1, 4), (3, 1), (3, 4), (2, 1, 4), (2, 3, 1), (2, 3, 4), (5, 1, 3, 4)]
SIGNS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def x_(*shape: int, dtype: tp.DType = tp.F32, name: str = "x") -> tp.Tensor:
    return tp.input(name, shape, dtype)


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# --- arithmetic --------------------------------------------------------------------------------


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


PAIRS = list(itertools.product(SHAPES, SHAPES))
MATCHING = [pair for pair in PAIRS if broadcast(*pair) is not None]
CLASHING = [pair for pair in PAIRS if broadcast(*pair) is None] + [((2,), (3,)), ((2, 4), (4, 4))]


@pytest.mark.parametrize(("left", "right"), MATCHING, ids=str)
@pytest.mark.parametrize("sign", SIGNS)
def test_shapes_broadcast_both_ways(sign: str, left, right) -> None:
    y = SIGNS[sign](x_(*left), x_(*right))

    assert y.shape == np.broadcast_shapes(left, right)


@pytest.mark.parametrize(("left", "right"), CLASHING, ids=str)
@pytest.mark.parametrize("sign", SIGNS)
def test_shapes_that_do_not_broadcast_are_refused(sign: str, left, right) -> None:
    with pytest.raises(tp.ShapeError) as error:
        SIGNS[sign](x_(*left), x_(*right))

    assert str(error.value) == (
        f"{sign}: shapes {list(left)} and {list(right)} do not broadcast; sizes must be equal or 1"
    )


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(
    ("left", "right"), [((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((), (2, 3))], ids=str
)
def test_values_are_those_of_numpy(evaluate, sign: str, left, right) -> None:
    a, b = x_(*left), x_(*right)
    va, vb = array(*left, seed=1), array(*right, seed=2)

    found = evaluate(SIGNS[sign](a, b), {a: va, b: vb})

    np.testing.assert_allclose(found, SIGNS[sign](va, vb), rtol=1e-6)


def test_commuting_saves_the_copy_of_the_smaller_side() -> None:
    small, large = x_(4), x_(3, 4)

    total = small + large

    assert total.sources == (large, small)


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (tp.F32, tp.F32, tp.F32),
        (tp.F16, tp.F16, tp.F16),
        (tp.BF16, tp.BF16, tp.BF16),
        (tp.F32, tp.F16, tp.F32),
        (tp.F16, tp.F32, tp.F32),
        (tp.BF16, tp.F32, tp.F32),
        (tp.F16, tp.BF16, tp.F32),
    ],
)
@pytest.mark.parametrize("sign", SIGNS)
def test_mixed_types_give_the_wider_one(sign: str, left, right, wanted) -> None:
    y = SIGNS[sign](x_(3, dtype=left), x_(3, dtype=right))

    assert y.dtype is wanted


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        (lambda x: x + 2, [3, 4]),
        (lambda x: 2 + x, [3, 4]),
        (lambda x: x - 2, [-1, 0]),
        (lambda x: 2 - x, [1, 0]),
        (lambda x: x * 2, [2, 4]),
        (lambda x: 2 * x, [2, 4]),
        (lambda x: x / 2, [0.5, 1]),
        (lambda x: x / 0, [np.inf, np.inf]),
        (lambda x: x / -0.0, [-np.inf, -np.inf]),
        (lambda x: np.float32(2) * x, [2, 4]),
        (lambda x: x + np.float64(0.5), [1.5, 2.5]),
        (lambda x: np.int64(2) - x, [1, 0]),
    ],
)
def test_numbers_scale_and_shift(evaluate, formula, wanted) -> None:
    x = x_(2)

    found = evaluate(formula(x), {x: np.array([1, 2], np.float32)})

    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_minus_is_neg() -> None:
    assert (-x_(2)).op == "neg"


def test_absolute_value_is_abs() -> None:
    assert abs(x_(2)).op == "abs"


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("other", [np.ones(3, np.float32), "2", None, [1, 2]], ids=str)
def test_other_things_than_tensors_and_numbers_are_refused(sign: str, other) -> None:
    with pytest.raises(TypeError) as error:
        SIGNS[sign](x_(3), other)

    assert str(error.value) == (
        f"{sign}: takes tensors and numbers, got {type(other).__name__}; place() data first"
    )


def test_array_on_the_left_reads_no_memory() -> None:
    with pytest.raises(TypeError, match="takes tensors and numbers, got ndarray"):
        np.ones(3, np.float32) + x_(3)


# --- matrix products ---------------------------------------------------------------------------

PRODUCTS = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((1, 4), (4, 1)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((2, 1, 3, 4), (1, 6, 4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 6, 3, 4), (6, 4, 5)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_product_is_that_of_numpy(evaluate, left, right) -> None:
    a, b = x_(*left), x_(*right)
    va, vb = array(*left, seed=1), array(*right, seed=2)

    y = a @ b

    assert y.shape == (va @ vb).shape
    np.testing.assert_allclose(evaluate(y, {a: va, b: vb}), va @ vb, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("formula", "left", "right"),
    [
        (lambda a, b: a @ b.T, (3, 4), (5, 4)),
        (lambda a, b: a.T @ b, (4, 3), (4, 5)),
        (lambda a, b: a.T @ b.T, (4, 3), (5, 4)),
        (lambda a, b: a @ b.T.T, (3, 4), (4, 5)),
        (lambda a, b: a @ b.T[:, 1:].T.T, (3, 4), (5, 4)),
        (lambda a, b: a[:, ::2] @ b, (3, 8), (4, 5)),
        (lambda a, b: a @ b[:, 1], (3, 4), (4, 5)),
        (lambda a, b: a.T @ b, (4, 3), (4,)),
        (lambda a, b: a @ b[::2].T, (3, 4), (6, 4)),
    ],
)
def test_product_of_views_is_that_of_numpy(evaluate, formula, left, right) -> None:
    a, b = x_(*left), x_(*right)
    va, vb = array(*left, seed=1), array(*right, seed=2)

    found = evaluate(formula(a, b), {a: va, b: vb})

    np.testing.assert_allclose(found, formula(va, vb), rtol=1e-5, atol=1e-6)


def test_product_with_a_transposed_weight_copies_nothing() -> None:
    x, w = x_(3, 64), x_(5, 64, dtype=tp.Q4_0, name="w")

    y = x @ w.T

    assert y.op == "mul_mat"
    assert y.sources == (w, x)


def test_product_of_a_block_matrix_with_a_vector_copies_nothing() -> None:
    w, v = x_(5, 64, dtype=tp.Q4_0, name="w"), x_(64)

    y = w @ v

    assert y.shape == (5,)
    assert y.sources[0].sources == (w, v)


def test_batches_of_weights_repeat_over_the_input_without_a_copy() -> None:
    x, w = x_(2, 3, 4), x_(5, 4)

    y = x @ w.T

    assert y.sources == (w, x)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (5, 6)),
        ((4,), (3,)),
        ((3, 4), (3,)),
        ((), (4,)),
        ((4,), ()),
        ((2, 3, 4), (2, 3, 5)),
    ],
    ids=str,
)
def test_sizes_that_do_not_match_are_refused(left, right) -> None:
    with pytest.raises(tp.ShapeError) as error:
        x_(*left) @ x_(*right)

    assert str(error.value) == (
        f"@: shapes {list(left)} and {list(right)} do not match; the last size of the left side "
        "must equal the second to last size of the right side"
    )


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (3, 4, 5)), ((4, 3, 4), (2, 4, 5))])
def test_batches_that_do_not_broadcast_are_refused(left, right) -> None:
    with pytest.raises(tp.ShapeError) as error:
        x_(*left) @ x_(*right)

    assert str(error.value) == (
        f"@: batches [{left[0]}] and [{right[0]}] do not broadcast; sizes must be equal or 1"
    )


def test_block_type_on_the_right_names_the_remedy() -> None:
    with pytest.raises(tp.ShapeError) as error:
        x_(3, 4) @ x_(4, 64, dtype=tp.Q4_0, name="w")

    assert str(error.value) == (
        "@: <Tensor 'w', none, q4_0[4, 64]> of block type q4_0 cannot be transposed; write "
        "`x @ w.T` with `w` stored as [outputs, inputs], or cast() it first"
    )


def test_product_with_an_array_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@: takes tensors, got ndarray; place\(\) data first"):
        x_(3, 4) @ np.ones((4, 5))


# --- transposing and reshaping -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 5, 3, 4)])
def test_shape_of_mt_has_the_last_two_dimensions_swapped(shape) -> None:
    assert x_(*shape).mT.shape == np.empty(shape).swapaxes(-1, -2).shape


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4)])
def test_t_of_anything_but_a_matrix_names_the_remedy(shape) -> None:
    with pytest.raises(tp.ShapeError, match=rf"two dimensions, got {len(shape)}; .mT swaps"):
        x_(*shape).T  # noqa: B018 - the property raises


@pytest.mark.parametrize("shape", [(), (4,)])
def test_mt_of_fewer_than_two_dimensions_names_the_remedy(shape) -> None:
    with pytest.raises(tp.ShapeError, match=r"reshape\(\) adds dimensions"):
        x_(*shape).mT  # noqa: B018 - the property raises


@pytest.mark.parametrize("exponent", [0.25, 65, -65, 1.5, float("inf"), float("nan")])
def test_a_power_that_has_no_op_names_the_remedy(exponent: float) -> None:
    with pytest.raises(tp.OptionError, match=r"exp\(log\(x\) \* exponent\)"):
        x_(3) ** exponent


@pytest.mark.parametrize("base", [2, x_(3)], ids=["number", "tensor"])
def test_a_tensor_as_exponent_names_the_remedy(base) -> None:
    with pytest.raises(TypeError, match=r"exp\(log\(base\) \* exponent\) takes tensors"):
        base ** x_(3)


def test_transposing_a_block_type_twice_gives_it_back() -> None:
    w = x_(3, 64, dtype=tp.Q4_0)

    assert w.T.T is w


@pytest.mark.parametrize(
    "sizes", [(12,), (-1,), (2, -1), ((6, 2),), ([3, 4],), (3, 2, 2, 1), (1, 12)]
)
def test_reshape_takes_sizes_as_numpy_does(sizes) -> None:
    assert x_(3, 4).reshape(*sizes).shape == np.empty((3, 4)).reshape(*sizes).shape


def test_reshape_of_one_element_to_a_scalar() -> None:
    assert x_(1, 1).reshape(()).shape == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: x.reshape(5, -1),
            "reshape: 12 elements of <Tensor 'x', none, f32[3, 4]> do not fill (5, -1)",
        ),
        (lambda x: x.reshape(-1, -1), "reshape: (-1, -1) has more than one size -1"),
        (lambda x: x.reshape(-2, 6), "reshape: negative size in shape (-2, 6)"),
        (
            lambda x: x.reshape(5),
            "reshape: 12 elements do not fill sizes (5, 1, 1, 1); got x [3, 4]",
        ),
        (
            lambda x: x.T.reshape(12),
            "reshape: x must be contiguous; insert cont(); got x [4, 3]",
        ),
        (
            lambda x: x.reshape(1, 1, 1, 3, 4),
            "reshape: 5 dimensions (1, 1, 1, 3, 4); at most 4 are possible",
        ),
    ],
)
def test_reshape_refuses_what_does_not_fit(make, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        make(x_(3, 4))

    assert str(error.value) == message


# --- indexing ----------------------------------------------------------------------------------


def view_of(array: np.ndarray, index) -> np.ndarray:
    """`array[index]`, as a view even where NumPy would give a number."""
    entries = index if isinstance(index, tuple) else (index,)
    return array[entries if ... in entries else (*entries, ...)]


def positive(index) -> bool:
    entries = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(e, slice) or e.step is None or e.step > 0 for e in entries)


def same_view(tensor: tp.Tensor, root: tp.Tensor, wanted: np.ndarray, whole: np.ndarray) -> bool:
    assert tensor.root is root
    assert tensor.shape == wanted.shape
    if wanted.size == 0:
        return True
    start = wanted.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    assert tensor.view_offset == start
    # NumPy keeps what strides it likes where a dimension has one element.
    for size, mine, theirs in zip(wanted.shape, tensor.strides, wanted.strides, strict=True):
        assert size == 1 or mine == theirs
    return True


@given(data=st.data(), shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
def test_indexing_gives_the_view_that_numpy_gives(data, shape) -> None:
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=False).filter(positive))
    whole = np.empty(shape, np.float32)
    x = x_(*shape)

    view = x[index]

    assert same_view(view, x, view_of(whole, index), whole)


@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
def test_indexing_a_view_of_a_view_gives_what_numpy_gives(data, shape) -> None:
    indices = hnp.basic_indices
    first = data.draw(indices(shape, allow_newaxis=False).filter(positive))
    whole = np.empty(shape, np.float32)
    between = view_of(whole, first)
    second = data.draw(indices(between.shape, allow_newaxis=False).filter(positive))
    x = x_(*shape)

    view = x[first][second]

    assert same_view(view, x, view_of(between, second), whole)


@pytest.mark.parametrize("slow", range(3))
@pytest.mark.parametrize(
    ("fast", "offset", "count"),
    [
        (slice(None), 0, 128),
        (slice(32, None), 18, 96),
        (slice(-64, -32), 36, 32),
        (slice(64, 64), 0, 0),
    ],
)
def test_block_types_are_sliced_by_whole_blocks(slow: int, fast, offset: int, count: int) -> None:
    w = x_(3, 128, dtype=tp.Q4_0)

    row, matrix = w[slow, fast], w[slow:, fast]

    assert row.shape == (count,)
    assert matrix.shape == (3 - slow, count)
    assert row.view_offset == (slow * 72 + offset if count else 0)
    assert matrix.nb[:2] == (18, 72)


def test_row_of_a_block_type_has_the_strides_of_a_row() -> None:
    row = x_(3, 128, dtype=tp.Q4_0)[1]

    assert row.nb == (18, 72, 72, 72)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((0, slice(16, 48)), "slice(16, 48, None)"),
        ((0, slice(0, 48)), "slice(0, 48, None)"),
        ((0, slice(0, 128, 2)), "slice(0, 128, 2)"),
        ((0, 3), "3"),
        ((0, 32), "32"),
    ],
)
def test_index_that_cuts_blocks_is_refused(index, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        x_(3, 128, dtype=tp.Q4_0)[index]

    assert str(error.value) == (
        f"<Tensor 'x', none, q4_0[3, 128]>: index {message} cuts blocks of 32 elements; start and "
        "length must be multiples"
    )


HEAD = "<Tensor 'x', none, f32[3, 4]>: "
ONLY = "; takes integers, slices and `...`; get_rows() takes rows by a tensor of ids"


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (3, IndexError, "index 3 is outside a dimension of 3"),
        (-4, IndexError, "index -4 is outside a dimension of 3"),
        ((0, 0, 0), tp.ShapeError, "3 indices for 2 dimensions"),
        ((..., 0, ...), tp.ShapeError, "more than one `...` in an index"),
        (slice(None, None, -1), tp.ShapeError, "a slice with step -1; steps must be positive"),
        (None, TypeError, "index of type NoneType" + ONLY),
        (True, TypeError, "index of type bool" + ONLY),
        ([0, 1], TypeError, "index of type list" + ONLY),
        (1.0, TypeError, "index of type float" + ONLY),
        ("a", TypeError, "index of type str" + ONLY),
    ],
)
def test_index_that_numpy_or_we_cannot_take_is_refused(index, kind, message: str) -> None:
    with pytest.raises(kind) as error:
        x_(3, 4)[index]

    assert str(error.value) == HEAD + message


def test_tensor_as_an_index_points_to_get_rows() -> None:
    with pytest.raises(TypeError, match="index of type Tensor; takes integers"):
        x_(3, 4)[x_(2, dtype=tp.I32)]


def test_numpy_integers_are_indices() -> None:
    assert x_(3, 4)[np.int64(1)].view_offset == 16


def test_step_of_zero_is_refused_as_in_numpy() -> None:
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        x_(3)[::0]
