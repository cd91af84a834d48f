"""Split states: what they say, what they scale to, what is refused."""

import math

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug.meta import MIRRORED, PARTIAL, SUMMANDS, WHOLE, Partition, cut, deal

QKV = cut(1, (4, 4), (2, 2), (2, 2))


@pytest.mark.parametrize(
    ("size", "ratio", "unit", "parts"),
    [
        (8, (1, 1), 1, (4, 4)),
        (8, (3, 1), 1, (6, 2)),
        (10, (1, 1, 1), 1, (3, 4, 3)),
        (128, (3, 1), 64, (128, 0)),
        (96, (2, 1), 32, (64, 32)),
        (5, (0, 1), 1, (0, 5)),
        (0, (1, 1), 1, (0, 0)),
    ],
)
def test_size_is_dealt_out_by_ratio_and_none_is_lost(size, ratio, unit, parts):
    assert deal(size, ratio, unit=unit) == parts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: deal(8, ()),
            "deal: ratio (); give a part, finite and not negative, for each device",
        ),
        (
            lambda: deal(8, (1, -1)),
            "deal: ratio (1, -1); give a part, finite and not negative, for each device",
        ),
        *(
            (
                lambda ratio=ratio: deal(8, ratio),
                f"deal: ratio {ratio}; give a part, finite and not negative, for each device",
            )
            for ratio in [
                (0.0, 0.0),
                (math.nan, 1.0),
                (math.inf, 1.0),
                (math.inf, -math.inf),
                (1e308, 1e308),
            ]
        ),
        (lambda: deal(10, (1, 1), unit=4), "deal: 10 elements are not a multiple of the unit 4"),
        (
            lambda: Partition(0),
            "Partition: axis 0 with 0 segments; an axis from 0 to 3 has at least one, mirrored "
            "and partial have none",
        ),
        (
            lambda: Partition(MIRRORED, ((1, 1),)),
            "Partition: axis mirrored with 1 segments; an axis from 0 to 3 has at least one, "
            "mirrored and partial have none",
        ),
        (
            lambda: cut(4, (1, 1)),
            "Partition: axis 4 with 1 segments; an axis from 0 to 3 has at least one, mirrored "
            "and partial have none",
        ),
        (
            lambda: cut(0, (1, 1), (1,)),
            "Partition: sizes ((1, 1), (1,)); each segment has one size, not negative, for each "
            "device",
        ),
    ],
)
def test_states_that_cannot_be_are_refused(call, message):
    with pytest.raises(tp.OptionError) as caught:
        call()

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("state", "dtype", "message"),
    [
        (SUMMANDS, tp.F32, "cannot be stored as summands; cut or mirror it"),
        (
            cut(1, (2, 1)),
            tp.F32,
            "axis 1: 2+1 does not cut dimension 1, of 4 elements, over 2 devices; deal() cuts a "
            "size by ratio",
        ),
        (
            cut(1, (2, 1, 1)),
            tp.F32,
            "axis 1: 2+1+1 does not cut dimension 1, of 4 elements, over 2 devices; deal() cuts a "
            "size by ratio",
        ),
        (
            cut(0, (48, 16)),
            tp.Q8_0,
            "axis 0: 48+16 cuts blocks of 32 elements; use deal(..., unit=32)",
        ),
    ],
)
def test_states_that_do_not_fit_a_tensor_are_refused(state, dtype, message):
    tensor = leaf("w", (4, 64), dtype)

    with pytest.raises(tp.OptionError) as caught:
        state.check(tensor, 2)

    assert str(caught.value) == f"{tensor}: {message}"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (WHOLE, "mirrored"),
        (Partition(PARTIAL), "partial"),
        (cut(0, (6, 2)), "axis 0: 6+2"),
        (QKV, "axis 1: 4+4, 2+2 x2"),
        (cut(2, (1, 1), repeat=3), "axis 2: 1+1 x3"),
    ],
)
def test_state_is_printed_for_people(state, text):
    assert str(state) == text
    assert state.axis_name == text.partition(":")[0]


def test_slice_of_a_device_has_its_part_of_each_segment():
    assert (QKV.length, QKV.size(1)) == (16, 8)
    assert QKV.pieces(0) == ((0, 4), (8, 2), (12, 2))
    assert QKV.pieces(1) == ((4, 4), (10, 2), (14, 2))


def test_device_without_elements_has_no_pieces():
    assert cut(0, (4, 0)).pieces(1) == ()


def test_state_of_whole_segments_is_found_with_where_they_begin():
    assert QKV.within(8, 16) == (cut(1, (2, 2), (2, 2)), (4, 4))
    assert QKV.within(0, 8) == (cut(1, (4, 4)), (0, 0))
    assert QKV.within(4, 8) is None


def test_proportions_are_kept_along_another_axis_or_cannot_be():
    assert QKV.scaled(0, 32) == cut(0, (8, 8), (4, 4), (4, 4))
    assert cut(0, (48, 16)).scaled(2, 4) == cut(2, (3, 1))
    assert cut(0, (5, 3)).scaled(1, 4) is None
