"""The CUDA dialect: heads of kernels, grids within CUDA's limits, options."""

import pytest

import tensorplug as tp
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source, grid
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower
from tensorplug_simt.program import Launch

GPU = Facts(wide=False)


@pytest.fixture
def scaled() -> Launch:
    return lower(tp.scale(tp.input("x", (4, 32), tp.F32), scale=2.0), GPU).launches[0]


def test_kernel_takes_its_buffers_and_then_its_parameters_by_value(scaled):
    head = 'extern "C" __global__ void tp_scale(const uchar* x_base, uchar* y_base, '

    assert f"{head}const __grid_constant__ scale_parameters p FOLDS)" in cuda_source(scaled)


@pytest.mark.parametrize("groups", [(1, 1, 1), (2**31 - 1, 65535, 65535)])
def test_grid_within_the_limits_stays_as_it_is(groups):
    assert grid(groups) == (groups, ())


@pytest.mark.parametrize("groups", [(2, 65536, 3), (2, 3, 65536)])
def test_longer_grid_lies_along_x_and_kernels_are_told_its_sizes(groups):
    x, y, z = groups

    assert grid(groups) == ((x * y * z, 1, 1), (x, y))


def test_folded_source_takes_the_sizes_of_the_grid(scaled):
    assert cuda_source(scaled, folded=True).startswith("#define FOLDED 1\n")


def test_kernel_that_writes_blocks_rounds_each_step(scaled):
    x = tp.input("x", (4, 32), tp.F32)
    encoded = lower(tp.cast(x, tp.Q4_0), GPU).launches[0]

    assert cuda_options(scaled) == ("--std=c++17",)
    assert cuda_options(encoded) == ("--std=c++17", "--fmad=false")
