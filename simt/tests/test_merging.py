"""Neighbouring launches that become one."""

from types import SimpleNamespace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.fusion.library import RMS_NORM_ROPE
from tensorplug.fusion.matching import find_groups
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elementwise import SCALE
from tensorplug_simt.families.rope import norm_rope
from tensorplug_simt.lowering import lower
from tensorplug_simt.merging import (
    LARGEST_BLOCK,
    Placed,
    merged,
    merged_groups,
    merged_parameters,
    most_parts,
)
from tensorplug_simt.source import source

WIDE, GPU = Facts(wide=True), Facts(wide=False, subgroup=32)
HERE, THERE = SimpleNamespace(), SimpleNamespace()


def scaled(start: int, end: int, *, rows: int = 4, buffer=HERE, dtype=tp.F32, homes=()) -> Placed:
    """`rows` of 32 numbers at byte `start`, scaled to byte `end`."""
    node = tp.scale(tp.input("x", (rows, 32), dtype), scale=2.0)
    (launch,) = lower(node, WIDE).launches
    return Placed(launch, (buffer, buffer), (start, end), homes)


def turned(heads: int, start: int, *, normed: bool) -> Placed:
    """Heads of 64 numbers of one token, turned from byte `start` to 16 KiB beyond it."""
    x, positions = tp.input("x", (1, heads, 64), tp.F32), tp.input("positions", (1,), tp.I32)
    if normed:
        x = tp.rms_norm(x) * tp.input("weight", (64,), tp.F32)
    graph = tp.Graph(tp.rope(x, positions, dims=64))
    groups = find_groups(graph, [RMS_NORM_ROPE])
    (launch,) = (norm_rope(*groups, GPU) if normed else lower(graph.outputs[0], GPU)).launches
    places = {"x": start, "y": start + 16384, "weight": 65536, "positions": 131072, "factors": 0}
    offsets = tuple(places[name] for name in launch.regions)
    return Placed(launch, (HERE,) * len(offsets), offsets)


def lengths(*placed: Placed) -> list[int]:
    return [len(parts) for parts in merged(placed)]


def test_neighbours_that_share_nothing_become_one():
    assert lengths(scaled(0, 1024), scaled(2048, 3072), scaled(0, 4096)) == [3]


@pytest.mark.parametrize(
    "second",
    [scaled(1024, 4096), scaled(2048, 0), scaled(2048, 1024 + 511), scaled(1024, 1024)],
    ids=["reads what the first writes", "writes what it reads", "writes over its end", "both"],
)
def test_neighbours_that_touch_what_the_other_writes_stay_apart(second):
    assert lengths(scaled(0, 1024), second) == [1, 1]


@pytest.mark.parametrize(
    "second",
    [scaled(2048, 3072, buffer=THERE), scaled(2048, 3072, dtype=tp.F16)],
    ids=["buffer", "type"],
)
def test_neighbours_of_another_kind_stay_apart(second):
    assert lengths(scaled(0, 1024), second) == [1, 1]


@pytest.mark.parametrize("normed", [False, True], ids=["rope", "rms_norm_rope"])
def test_queries_and_keys_turn_together_though_they_have_other_numbers_of_heads(normed):
    queries, keys = turned(9, 0, normed=normed), turned(3, 4096, normed=normed)

    assert lengths(queries, keys) == [2]


def test_order_of_what_depends_on_each_other_is_kept():
    first, second, third = scaled(0, 1024), scaled(1024, 2048), scaled(4096, 8192)

    assert merged([first, second, third]) == [(first,), (second, third)]


def test_launch_passes_the_last_one_to_join_the_one_before():
    first, other, later = scaled(0, 1024), scaled(2048, 3072, dtype=tp.F16), scaled(4096, 5120)

    assert merged([first, other, later]) == [(first, later), (other,)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(3072, 4096), (4096, 2048), (4096, 3072)],
    ids=["reads what that writes", "writes what it reads", "writes what it writes"],
)
def test_launch_does_not_pass_one_that_it_must_follow(start, end):
    first, other = scaled(0, 1024), scaled(2048, 3072, dtype=tp.F16)
    later = scaled(start, end)

    assert merged([first, other, later]) == [(first,), (other,), (later,)]


def test_launch_passes_one_other_at_most():
    first, later = scaled(0, 1024), scaled(4096, 5120)
    others = [scaled(2048, 3072, dtype=tp.F16), scaled(6144, 8192, dtype=tp.BF16)]

    assert lengths(first, *others, later) == [1, 1, 1, 1]


def test_launches_that_meet_where_two_buffers_lie_over_the_same_memory_stay_apart():
    memory = SimpleNamespace()
    homes = ((memory, 0), (memory, 2048))

    # The second reads at 2048 what the first writes at 0 of a buffer that starts there.
    first, second = scaled(0, 0, homes=homes), scaled(2048, 4096, homes=homes)

    assert lengths(first, second) == [1, 1]
    assert lengths(first, scaled(1024, 4096, homes=homes)) == [2]


def test_no_more_are_merged_than_one_parameter_block_holds():
    many = [scaled(2048 * i, 2048 * i + 1024) for i in range(9)]

    counts = lengths(*many)

    most = most_parts(SCALE)
    assert counts == [most, most, 1]
    parameters = merged_parameters(merged(many)[0])
    assert parameters.nbytes <= LARGEST_BLOCK + 8  # the end is padded


def test_groups_of_all_parts_follow_each_other():
    parts = [scaled(0, 8192, rows=4), scaled(16384, 32768, rows=40)]
    own = [part.launch.groups[0] for part in parts]

    block = merged_parameters(parts)[0]

    assert merged_groups(parts) == (sum(own), 1, 1)
    assert block["starts"][:2].tolist() == [0, own[0]]
    assert (block["starts"][2:] == np.iinfo(np.int32).max).all()
    assert block["each"]["count"][:2].tolist() == [128, 1280]


def test_text_of_merged_launches_finds_the_part_of_each_group():
    launch = scaled(0, 1024).launch

    text = source(launch, OPENCL, parts=2)

    assert "KERNEL_HEAD { KERNEL_START" in text
    assert "number_ >= all_.starts[1]" in text
    assert "#define MERGED" not in source(launch, OPENCL)
