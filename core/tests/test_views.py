"""Views: bounds, strides, ranks, and refused views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.graph.tensor import array_view


def t(*ne: int, dtype: tp.DType = tp.F32) -> tp.Tensor:
    """A tensor of sizes `ne` in ggml order."""
    return tp.input("x", ne[::-1], dtype)


def seen(view: tp.Tensor) -> np.ndarray:
    """The elements of an f32 view whose root holds 0, 1, 2, ..."""
    memory = np.arange(view.root.size, dtype=np.float32).view(np.uint8)
    return array_view(view, memory, view.view_offset)


# --- view --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "wanted"),
    [
        ((3,), None, 0, [0, 1, 2]),
        ((3,), None, 8, [2, 3, 4]),
        ((2, 2), None, 4, [[1, 2], [5, 6]]),
        ((2, 2), (16, 4), 4, [[1, 2], [5, 6]]),
        ((2, 2), (8, 4), 0, [[0, 1], [2, 3]]),
        ((3, 2), (4, 4), 0, [[0, 1], [1, 2], [2, 3]]),
        ((2, 2), (4, 16), 0, [[0, 4], [1, 5]]),
        ((2, 2), (0, 4), 0, [[0, 1], [0, 1]]),
        ((12,), None, 0, list(range(12))),
        ((3, 1), (16, 4), 12, [[3], [7], [11]]),
        ((3, 1, 2), (16, 8, 4), 0, [[[0, 1]], [[4, 5]], [[8, 9]]]),
        ((), None, 8, 2),
    ],
)
def test_view_shows_the_window_it_names(shape, strides, offset: int, wanted) -> None:
    view = tp.view(t(4, 3), shape, strides=strides, offset=offset)

    assert view.shape == shape
    np.testing.assert_array_equal(seen(view), wanted)


def test_missing_strides_are_those_of_the_last_axes() -> None:
    assert tp.view(t(4, 3), (3, 2)).strides == (16, 4)
    assert tp.view(t(4, 3), (12,)).nb == (4, 48, 48, 48)
    assert tp.view(t(64, 3, dtype=tp.Q4_0), (32,)).nb == (18, 18, 18, 18)


def test_numpy_numbers_are_taken_as_they_are() -> None:
    strides = (np.int64(16), np.int64(4))
    view = tp.view(t(4, 3), tuple(np.array([2, 2])), strides=strides, offset=np.int64(4))

    np.testing.assert_array_equal(seen(view), [[1, 2], [5, 6]])


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "message"),
    [
        ((3, 5), (16, 4), 0, "the view covers bytes 0 to 52 of 48"),
        ((4, 4), (16, 4), 0, "the view covers bytes 0 to 64 of 48"),
        ((4,), None, 36, "the view covers bytes 36 to 52 of 48"),
        ((0,), None, 52, "the view covers bytes 52 to 52 of 48"),
        ((1 << 62,), None, 0, f"the view covers bytes 0 to {1 << 64} of 48"),
        (
            (4,),
            None,
            -4,
            "sizes (4, 1, 1, 1), strides (4, 16, 16, 16) and offset -4 must not be negative",
        ),
        (
            (2, 2),
            (-16, 4),
            16,
            "sizes (2, 2, 1, 1), strides (4, -16, -32, -32) and offset 16 must not be negative",
        ),
        ((2,), None, 2, "strides (4, 8, 8, 8) and offset 2 must be multiples of 4 bytes"),
        ((2, 2), (10, 4), 0, "strides (4, 10, 20, 20) and offset 0 must be multiples of 4 bytes"),
    ],
)
def test_window_outside_or_between_elements_is_refused(
    shape, strides, offset: int, message: str
) -> None:
    with pytest.raises(tp.ShapeError) as error:
        tp.view(t(4, 3), shape, strides=strides, offset=offset)

    assert str(error.value) == f"view: {message}; got x [3, 4]"


def test_window_of_a_view_stays_inside_the_view() -> None:
    row = t(4, 3)[1]

    assert tp.view(row, (2,), offset=8).view_offset == 24
    with pytest.raises(tp.ShapeError, match="the view covers bytes 12 to 20 of 16"):
        tp.view(row, (2,), offset=12)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (1, 1, 1, 3, 4)])
def test_fifth_dimension_is_refused(shape) -> None:
    with pytest.raises(tp.ShapeError, match="5 dimensions"):
        tp.view(t(4, 3), shape)


@pytest.mark.parametrize("make", [tp.view, lambda x, shape, **k: tp.acc(x, t(4), **k)])
def test_strides_of_another_number_than_axes_are_refused(make) -> None:
    with pytest.raises(tp.ShapeError) as error:
        make(t(4, 3), (4,), strides=(16, 4))

    assert str(error.value).partition(": ")[2] == (
        "strides (16, 4) for 1 axes; give one for each axis, in bytes"
    )


def test_window_of_acc_needs_elements_of_a_row_side_by_side() -> None:
    with pytest.raises(tp.ShapeError) as error:
        tp.acc(t(4, 3), t(3), strides=(16,))

    assert str(error.value) == (
        "acc: the last stride is 16 bytes, and elements of a row are 4 bytes apart; transpose "
        "both tensors first"
    )


def test_window_of_blocks_starts_and_ends_with_a_block() -> None:
    w = t(64, 3, dtype=tp.Q4_0)

    assert tp.view(w, (3, 32), strides=(36, 18), offset=18).nbytes == 18 + 2 * 36
    with pytest.raises(tp.ShapeError, match="a row of 16 elements is not a multiple"):
        tp.view(w, (16,))
    with pytest.raises(tp.ShapeError, match="offset 4 must be multiples of 18 bytes"):
        tp.view(w, (32,), offset=4)
    with pytest.raises(tp.ShapeError, match="rows of q4_0 hold blocks of 18 bytes, not 36"):
        tp.view(w, (1, 32), strides=(36, 36))


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    strides=st.lists(st.integers(0, 8).map(lambda n: 4 * n), min_size=4, max_size=4),
    offset=st.integers(0, 12).map(lambda n: 4 * n),
)
def test_accepted_windows_never_leave_their_memory(shape, strides, offset: int) -> None:
    x = t(4, 3)
    memory = np.arange(12, dtype=np.float32).view(np.uint8)
    try:
        view = tp.view(x, tuple(shape), strides=strides[: len(shape)], offset=offset)
    except tp.ShapeError:
        return

    array = array_view(view, memory, view.view_offset)

    assert view.view_offset + view.nbytes <= 48
    assert np.all(array < 12)


# --- permute and transpose ---------------------------------------------------------------------


def moved(x: tp.Tensor, axes: tuple[int, ...]) -> tp.Tensor:
    """The op as backends see it: dimension `i` of `ne` goes to `axes[i]`."""
    return tp.apply(tp.ops.op("permute"), x, axes=axes)


@pytest.mark.parametrize(
    ("axes", "numpy_axes"),
    [
        ((0, 1, 2, 3), (0, 1, 2)),
        ((1, 0, 2, 3), (0, 2, 1)),
        ((0, 2, 1, 3), (1, 0, 2)),
        ((2, 0, 1, 3), (2, 0, 1)),
        ((2, 1, 0, 3), (2, 1, 0)),
        ((1, 2, 0, 3), (1, 2, 0)),
    ],
)
def test_permute_moves_dimension_i_to_axes_i(axes, numpy_axes) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

    view = moved(t(2, 3, 4), axes)

    assert all(view.ne[axes[i]] == (2, 3, 4, 1)[i] for i in range(4))
    np.testing.assert_array_equal(seen(view), array.transpose(numpy_axes))


@pytest.mark.parametrize(
    ("shape", "axes", "wanted"),
    [
        ((3, 4), (0, 2, 1, 3), (3, 1, 4)),
        ((4,), (1, 0, 2, 3), (4, 1)),
        ((4,), (3, 0, 1, 2), (4, 1, 1, 1)),
        ((2, 3, 4), (0, 1, 3, 2), (2, 1, 3, 4)),
        ((), (1, 0, 2, 3), ()),
    ],
)
def test_permute_keeps_all_dimensions_that_hold_something(shape, axes, wanted) -> None:
    view = moved(tp.input("x", shape, tp.F32), axes)

    assert view.shape == wanted


@pytest.mark.parametrize("axes", [(0, 1, 2, 2), (1, 2, 3, 4), (-1, 0, 1, 2)])
def test_permute_takes_each_dimension_once(axes) -> None:
    with pytest.raises(tp.ShapeError, match=r"are not a permutation of 0, 1, 2, 3; got x \[3, 4\]"):
        moved(t(4, 3), axes)


def test_permute_keeps_blocks_whole() -> None:
    w = t(64, 3, 2, dtype=tp.Q4_0)

    assert moved(w, (0, 2, 1, 3)).nb == (18, 108, 36, 216)
    with pytest.raises(tp.ShapeError) as error:
        moved(w, (1, 0, 2, 3))

    assert str(error.value) == (
        "permute: rows of q4_0 hold blocks and cannot be permuted; cast() x first; got x [2, 3, 64]"
    )


def test_transposing_twice_gives_the_layout_back() -> None:
    x = t(4, 3, 2)

    assert tp.transpose(tp.transpose(x)).same_layout(x)


def test_views_of_transposed_memory_follow_its_strides() -> None:
    x = t(4, 3)

    np.testing.assert_array_equal(seen(x.T[1:3]), [[1, 5, 9], [2, 6, 10]])
    np.testing.assert_array_equal(seen(tp.view(x.T, (2, 2))), [[0, 4], [1, 5]])


# --- reshape -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((2, 6), (2, 6)), ((-1, 3), (4, 3)), ((12,), (12,)), ((1, 12, 1), (1, 12, 1))],
)
def test_reshape_keeps_memory_and_order(shape, wanted) -> None:
    view = tp.reshape(t(4, 3), shape)

    assert view.shape == wanted
    assert view.is_contiguous
    np.testing.assert_array_equal(seen(view).ravel(), np.arange(12))


def test_reshape_of_rows_within_a_view_keeps_the_offset() -> None:
    assert tp.reshape(t(4, 3)[1:], (8,)).view_offset == 16


def test_reshape_keeps_blocks_whole() -> None:
    w = t(64, 3, dtype=tp.Q4_0)

    assert tp.reshape(w, (6, 32)).nb == (18, 18, 108, 108)
    with pytest.raises(tp.ShapeError, match="a row of 48 elements is not a multiple"):
        tp.reshape(w, (4, 48))


def test_reshape_of_nothing_is_nothing() -> None:
    assert tp.reshape(t(4, 0), (0, 7)).shape == (0, 7)
    with pytest.raises(tp.ShapeError, match="do not fill"):
        tp.reshape(t(4, 0), (0, -1))


def test_views_compute_nothing_and_are_no_writes() -> None:
    x = t(4, 3)

    views = [x.T, x[1], x.reshape(12), tp.permute(x, (1, 0)), tp.view(x, (4,))]

    assert all(v.is_view and not v.writes and v.root is x for v in views)
