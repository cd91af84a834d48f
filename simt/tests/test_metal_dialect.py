"""The Metal dialect: heads of kernels, where buffers are, how steps are rounded."""

import pytest

import tensorplug as tp
from tensorplug_emulator import spaces
from tensorplug_emulator.msl import Parameter, heads
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.metal import APPLE, metal_source, symbol
from tensorplug_simt.lowering import lower
from tensorplug_simt.program import Launch


@pytest.fixture
def scaled() -> Launch:
    return lower(tp.scale(tp.input("x", (4, 32), tp.F32), scale=2.0), APPLE).launches[0]


def test_kernel_takes_its_buffers_and_then_its_parameters_by_place(scaled):
    (head,) = heads(metal_source(scaled))

    assert head.name == symbol(scaled) == "tp_scale"
    assert head.parameters[:3] == (
        Parameter("device const uchar*", "x_base", "buffer", 0),
        Parameter("device uchar*", "y_base", "buffer", 1),
        Parameter("constant scale_parameters&", "p", "buffer", 2),
    )
    assert [each.attribute for each in head.parameters[3:]] == [
        "threadgroup_position_in_grid",
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
    ]


def test_kernel_that_writes_blocks_rounds_each_step(scaled):
    x = tp.input("x", (4, 32), tp.F32)
    encoded = lower(tp.cast(x, tp.Q4_0), APPLE).launches[0]

    assert metal_source(encoded).startswith("#define ROUNDS_EACH_STEP 1\n")
    assert "#define ROUNDS_EACH_STEP" not in metal_source(scaled)


@pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
def test_launches_merged_keep_their_parameters_where_they_are(scaled):
    text = metal_source(scaled, parts=3)

    assert "constant scale_parameters& p = all_.each[part_];" in text
    assert spaces.space_problems(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kernel void f(device float* x) {}", "parameter 'device float\\* x' has no attribute"),
        ("kernel void f(device float* x [[buffer(0)]]", "has no end"),
    ],
)
def test_head_that_is_none_is_an_error(text, problem):
    with pytest.raises(ValueError, match=problem):
        heads(text)
