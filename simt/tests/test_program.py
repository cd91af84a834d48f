"""Launches and programs as data."""

from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Refusal, Tensor
from tensorplug.dtypes import IQ2_XXS
from tensorplug.errors import ShapeError
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elementwise import SCALE
from tensorplug_simt.lowering import lower
from tensorplug_simt.program import launch, region
from tensorplug_simt.source import BYTES, source

GPU = Facts(wide=False)


def scaled(shape=(4, 32)) -> Tensor:
    return tp.scale(tp.input("x", shape, tp.F32), scale=2.0, bias=1.0)


def test_parameter_block_holds_places_then_numbers():
    node = scaled()
    (made,) = lower(node, GPU).launches

    block = made.parameters({"x": 64, "y": 4096})[0]

    assert (block["x"]["off"], block["y"]["off"]) == (64, 4096)
    assert block["x"]["ne"].tolist() == [32, 4, 1, 1]
    assert block["x"]["nb"].tolist() == [4, 128, 512, 512]
    assert (block["count"], block["scale"], block["bias"]) == (128, 2.0, 1.0)


@pytest.mark.parametrize("op", ["cast", "set_rows", "add"])
def test_kernels_that_write_blocks_round_each_step(op):
    x, blocks = tp.input("x", (4, 32), tp.F32), tp.input("blocks", (4, 32), tp.Q4_0)
    node = {
        "cast": lambda: tp.cast(x, tp.Q4_0),
        "set_rows": lambda: tp.set_rows(blocks, x, tp.input("ids", (4,), tp.I64)),
        "add": lambda: tp.add(blocks, x),
    }[op]()

    (encoded,), (plain,) = (lower(each, GPU).launches for each in (node, scaled()))

    assert source(encoded, OPENCL).startswith("#define ROUNDS_EACH_STEP 1\n")
    assert "#define ROUNDS_EACH_STEP" not in source(plain, OPENCL)


def test_sizes_of_tensors_are_no_part_of_a_variant():
    small, large = (lower(scaled(shape), GPU).launches[0] for shape in ((1, 32), (7, 64)))

    assert small.variant == large.variant


def test_parts_of_a_text_are_part_of_a_variant():
    (launch,) = lower(scaled(), GPU).launches
    other = replace(launch, kernel=replace(launch.kernel, parts=(BYTES,)))

    assert launch.variant != other.variant


def test_types_of_tensors_are_part_of_a_variant():
    x = tp.input("x", (4, 32), tp.F16)

    assert lower(tp.scale(x, scale=2.0), GPU).launches[0].variant != (
        lower(scaled(), GPU).launches[0].variant
    )


def test_op_without_lowering_is_refused_by_name():
    x = tp.input("x", (4,), tp.F32)

    answer = lower(tp.scale(x, scale=2.0), GPU, {})

    assert answer == Refusal("no kernel for scale")


def test_type_without_kernel_is_refused_by_name():
    a, b = (tp.input(name, (4, 256), dtype) for name, dtype in (("a", IQ2_XXS), ("b", tp.F32)))

    assert lower(tp.add(a, b), GPU) == Refusal("add: no encoder for iq2_xxs")


def test_numbers_that_are_not_the_kernels_are_an_error():
    node = scaled()

    with pytest.raises(ShapeError, match=r"takes \['bias', 'count', 'scale'\].*got \['count'\]"):
        launch(SCALE, {"x": node.sources[0], "y": node}, groups=(1,), count=1)


def test_absent_buffer_is_seen_as_empty():
    node = scaled()

    made = launch(SCALE, {"x": node.sources[0]}, groups=(1,), count=1, scale=1.0, bias=0.0)

    assert made.regions["y"].ne == (0, 0, 0, 0)
    assert made.regions["y"].nbytes == 0


def test_region_spans_its_elements_and_the_gaps_between_them():
    base = tp.input("x", (4, 32), tp.F32)

    assert region(base.T).nbytes == 4 * 32 * 4
    assert region(base[:, :8]).nbytes == (3 * 32 + 8) * 4


def test_structure_of_the_block_is_that_of_a_c_compiler():
    assert SCALE.parameters.itemsize == 2 * 56 + 16
    assert SCALE.parameters.fields["count"][1] == 112
    assert SCALE.parameters["x"] == np.dtype(
        {
            "names": ["off", "nb", "ne"],
            "formats": ["<i8", ("<i8", 4), ("<i4", 4)],
            "offsets": [0, 8, 40],
            "itemsize": 56,
            "aligned": True,
        }
    )


def test_a_number_beyond_a_kernels_integers_is_refused():
    refused = lower(tp.diag_mask_inf(tp.input("x", (4, 32), tp.F32), n_past=2**31), GPU)

    assert isinstance(refused, Refusal)
    assert "n_past=2147483648 is beyond 2147483647" in refused.reason


@pytest.mark.parametrize(
    "node",
    [
        tp.group_norm(tp.input("x", (2, 0, 5, 8), tp.F32), groups=1),
        tp.flash_attn_ext(*[tp.input(name, (2, 0, 5, 8), tp.F32) for name in "qkv"], scale=1.0),
    ],
    ids=lambda node: node.op,
)
def test_a_node_without_elements_has_no_launches(node):
    assert lower(node, GPU).launches == ()
