"""Which kernels copy what: chosen by strides, so that common layouts take the short way."""

import pytest

import tensorplug as tp
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import copies, merged
from tensorplug_simt.program import region

WIDE, GROUPS = Facts(wide=True), Facts(wide=False)


def _source(ne: tuple[int, ...], axes: tuple[int, int, int, int], dtype: tp.DType) -> tp.Tensor:
    return tp.apply(tp.ops.op("permute"), tp.input("x", ne[::-1], dtype), axes=axes)


@pytest.mark.parametrize(
    ("ne", "axes", "to", "kernel"),
    [
        ((64, 8, 4, 2), (0, 1, 2, 3), tp.F32, "copied_bytes"),
        ((64, 8, 4, 2), (0, 1, 2, 3), tp.F16, "copied_flat"),
        ((64, 8, 4, 2), (0, 2, 1, 3), tp.F32, "copied_rows"),
        ((64, 8, 1, 1), (0, 2, 1, 3), tp.F32, "copied_bytes"),
        ((4, 8, 16, 2), (0, 2, 1, 3), tp.F32, "copied"),
        ((64, 32, 4, 2), (1, 0, 2, 3), tp.F32, "copied_tiles"),
        ((64, 32, 16, 2), (2, 1, 0, 3), tp.F16, "copied_tiles"),
        ((64, 3, 4, 2), (1, 0, 2, 3), tp.F32, "copied"),
    ],
)
def test_kernel_suits_the_strides(ne, axes, to, kernel):
    x = _source(ne, axes, tp.F32)
    y = tp.cast(x, to)

    launches = copies(region(x), region(y), WIDE)

    assert [launch.kernel.name for launch in launches] == [kernel]


def test_dimensions_without_gaps_become_one():
    x = _source((6, 5, 4, 3), (0, 1, 3, 2), tp.F32)
    y = tp.dup(x)

    short, _ = merged(region(x), region(y))

    assert (short.ne, short.nb[:3]) == ((30, 3, 4, 1), (4, 480, 120))


def test_blocks_are_copied_as_bytes():
    x = tp.input("x", (4, 256), tp.Q4_0)

    (launch,) = copies(region(x), region(tp.dup(x)), GROUPS)

    assert launch.kernel.name == "copied_bytes"
    assert launch.numbers["count"] * 16 + launch.numbers["rest"] == x.nbytes


def test_long_rows_keep_several_groups_busy():
    x = tp.view(tp.input("x", (4, 10_000), tp.F32), (3, 5000))

    (launch,) = copies(region(x), region(tp.dup(x)), GROUPS)

    assert launch.groups == (9, 1, 1)


def test_empty_tensors_need_no_launch():
    x = tp.input("x", (0, 5), tp.F32)

    assert copies(region(x), region(tp.dup(x)), GROUPS) == ()
